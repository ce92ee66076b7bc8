"""Features that make runs fast or small, and which of them published recipes turn on together.

A feature is some settings of a run that a layout does not need: CUDA graphs, overlap, dispatchers, dtypes. A search has one set of them
for each variant of the job. `published.csv` has the sets of Megatron-Bridge's recipes by generation of GPU, kind of model and precision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...job.settings import nearest
from ...job.training_job import TrainingJob, with_settings
from ...legality.experts import fusible
from ...states.optimizers import OPTIMIZERS
from ...tables import rows_beside
from .choices import precision_of, precision_settings

Settings = dict[str, Any]


class Feature(NamedTuple):
    """Settings that go together, in a few words; `group`: only one of a group is on."""

    says: str
    group: str
    settings: Callable[[TrainingJob], Settings]
    """What it sets in a job; empty where the job has nothing for it."""
    source: str
    numerics: str = ""
    """What it changes of the numbers that are computed; empty where they stay."""
    experimental: bool = False


HYBRIDEP: Settings = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
CAPACITY = 1.5
"""Rows of experts on a rank that paged buffers have room for, times the balanced number: that of all recipes with a paged stash."""
STASH: Settings = {
    "moe_paged_stash": True, "moe_expert_rank_capacity_factor": CAPACITY, "moe_paged_stash_buffer_size_factor_cuda": 1.2,
    "moe_paged_stash_buffer_size_factor_cpu": 1.0,
}  # fmt: skip
DROPS = f"tokens beyond {CAPACITY} times a rank's share are dropped"
FSDP: Settings = {
    "use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "gradient_accumulation_fusion": False
}  # fmt: skip


def _where(condition: bool, settings: Settings) -> Settings:
    return settings if condition else {}


def _gathered(job: TrainingJob) -> bool:
    t = job.training
    return OPTIMIZERS[t.optimizer].distributed and not t.use_torch_fsdp2 and t.use_distributed_optimizer


def _moe(job: TrainingJob) -> bool:
    return job.model.has_moe


def _adam(job: TrainingJob) -> bool:
    return job.training.optimizer == "adam" and job.training.peft == "none"


def _overlap(job: TrainingJob) -> Settings:
    t = job.training
    if t.use_megatron_fsdp or t.use_torch_fsdp2 or not _adam(job):
        return {}
    return {"overlap_grad_reduce": True, **_where(t.use_distributed_optimizer, {"overlap_param_gather": True})}


def _allocator(job: TrainingJob) -> Settings:
    return _where(not job.training.nccl_ub and not job.given.get("env"), {"expandable_segments": True})


def _dispatcher(backend: str) -> Callable[[TrainingJob], Settings]:
    def settings(job: TrainingJob) -> Settings:
        several = job.layout.world_size > 1
        has_it = several and _moe(job) and job.gpu.hopper_or_later and not job.training.deterministic_mode
        t = job.training
        other = t.moe_expert_capacity_factor is not None or t.moe_shared_expert_overlap
        return _where(has_it and not other, {**HYBRIDEP, "moe_flex_dispatcher_backend": backend})

    return settings


def _graphed(*modules: str) -> Callable[[TrainingJob], Settings]:
    """Parts of a layer that a model has, by the names of cuda_graph_modules."""

    def settings(job: TrainingJob) -> Settings:
        mamba = any(kind.startswith("mamba") for kind in job.model.kinds)
        has = {"attn": True, "mamba": mamba, "moe_router": _moe(job), "moe_preprocess": _moe(job)}
        chosen = tuple(module for module in modules if has[module])
        return {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": chosen}

    return settings


def _whole(job: TrainingJob) -> Settings:
    """Of a model with experts only beside the paged stash: else the host waits for the number of their rows."""
    return _where(
        not _moe(job) or job.training.moe_paged_stash, {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ()}
    )


def _fused(job: TrainingJob) -> Settings:
    t = job.training
    has_it = job.gpu.family == "blackwell" and t.low_precision in ("mxfp8", "nvfp4") and fusible(job.model, t)
    interleaved = _where(job.model.gated_linear_unit, {"moe_mlp_glu_interleave_size": 32})
    return _where(_moe(job) and has_it and t.peft == "none", {"use_transformer_engine_op_fuser": True, **interleaved})


def _parameters(job: TrainingJob) -> Settings:
    t = job.training
    if not _gathered(job) or t.peft != "none":
        return {}
    if t.fp4:
        return {"fp4_param_gather": True}
    reuse = _where(t.low_precision == "mxfp8", {"reuse_grad_buf_for_mxfp8_param_ag": True})
    return _where(bool(t.fp8), {"fp8_param_gather": True, **reuse})


def _aware(job: TrainingJob) -> Settings:
    return _where(_adam(job) and _gathered(job), {"use_precision_aware_optimizer": True})


def _moments(job: TrainingJob) -> Settings:
    dtypes = dict.fromkeys(("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), "bf16")
    return {**_aware(job), **dtypes} if _aware(job) else {}


def _gradients(job: TrainingJob) -> Settings:
    t = job.training
    return _where(t.params_dtype == "bf16", {"grad_reduce_in_bf16": True, "accumulate_allreduce_grads_in_fp32": False})


BRIDGE = "Megatron-Bridge src/megatron/bridge/perf_recipes"
FEATURES: dict[str, Feature] = {
    "gradient-overlap": Feature("overlapped gradients and parameters", "overlap", _overlap, f"{BRIDGE}/_common.py"),
    "expandable-segments": Feature(
        "expandable segments", "allocator", _allocator, "Megatron-Bridge src/megatron/bridge/recipes/utils/environment_utils.py"
    ),
    "hybridep": Feature(
        "flex dispatcher with HybridEP", "dispatcher", _dispatcher("hybridep"),
        "Megatron-Bridge src/megatron/bridge/training/flex_dispatcher_backend.py",
    ),
    "deepep": Feature(
        "flex dispatcher with DeepEP", "dispatcher", _dispatcher("deepep"),
        "Megatron-Bridge src/megatron/bridge/training/flex_dispatcher_backend.py",
    ),
    "a2a-overlap": Feature(
        "all-to-all overlap with delayed weight gradients", "a2a",
        lambda job: _where(_moe(job), {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}),
        "Megatron-LM megatron/core/pipeline_parallel/combined_1f1b.py",
    ),
    "paged-stash": Feature(
        "paged stash of experts", "stash", lambda job: _where(_moe(job), {**STASH, **_dispatcher("hybridep")(job)}),
        "Megatron-LM megatron/core/transformer/moe/paged_stash.py", DROPS, experimental=True,
    ),
    "graphs-of-parts": Feature(
        "CUDA graphs of attention, Mamba, router and preprocessing", "graphs",
        lambda job: _where(_moe(job), _graphed("attn", "mamba", "moe_router", "moe_preprocess")(job)),
        "Megatron-LM megatron/core/transformer/cuda_graphs.py",
    ),
    "graphs-of-attention": Feature(
        "CUDA graphs of attention and Mamba", "graphs", _graphed("attn", "mamba"),
        "Megatron-LM megatron/core/transformer/cuda_graphs.py",
    ),
    "graphs-of-layers": Feature(
        "CUDA graphs of layers", "graphs",
        lambda job: _where(not _moe(job), {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ()}),
        "Megatron-LM megatron/core/transformer/cuda_graphs.py",
    ),
    "graph-of-iteration": Feature(
        "CUDA graph of the iteration", "graphs", _whole, "Megatron-LM megatron/core/full_cuda_graph.py", experimental=True
    ),
    "fused-router": Feature(
        "fused router",
        "router",
        lambda job: _where(_moe(job) and job.training.moe_router_dtype != "fp64", {"moe_router_fusion": True}),
        f"{BRIDGE}/qwen",
    ),
    "fused-activation": Feature(
        "fused activation of experts",
        "activation",
        lambda job: _where(
            _moe(job) and job.model.activation_func == "squared_relu", {"use_fused_weighted_squared_relu": True}
        ),
        f"{BRIDGE}/nemotronh/common.py",
    ),
    "fused-experts": Feature(
        "fused grouped MLP of experts", "experts", _fused, f"{BRIDGE}/qwen/common.py", experimental=True
    ),
    "tp-overlap": Feature(
        "tp communication overlapped", "tp", lambda job: {"tp_comm_overlap": True},
        "Megatron-Bridge src/megatron/bridge/training/comm_overlap.py",
    ),
    "quantized-parameters": Feature(
        "weights gathered in low precision", "parameters", _parameters, "Megatron-Bridge src/megatron/bridge/training/mixed_precision.py",
        "weights are quantized from fp32 masters, without a bf16 copy between",
    ),
    "bf16-gradients": Feature(
        "bf16 gradients", "gradients", _gradients, f"{BRIDGE}/_common.py",
        "gradients are added up and reduced in bf16",
    ),
    "precision-aware": Feature(
        "precision-aware optimizer", "optimizer", _aware, "Megatron-Bridge scripts/performance/run_script.py"
    ),
    "bf16-moments": Feature(
        "bf16 moments", "optimizer", _moments, f"{BRIDGE}/deepseek/common.py",
        "Adam's moments and main gradients are kept in bf16",
    ),
    "fp8-attention": Feature(
        "fp8 attention", "attention",
        lambda job: _where(job.training.low_precision == "mxfp8", {"fp8_dot_product_attention": True}),
        f"{BRIDGE}/qwen/common.py", "attention's products are in fp8",
    ),
    "offloaded-experts": Feature(
        "inputs of experts offloaded", "offload",
        lambda job: _where(_moe(job), {"fine_grained_activation_offloading": True, "offload_modules": ("expert_fc1",)}),
        f"{BRIDGE}/nemotronh/h100/nemotronh.py", experimental=True,
    ),
    "offloaded-attention": Feature(
        "attention offloaded", "offload",
        lambda job: {"fine_grained_activation_offloading": True, "offload_modules": ("core_attn", "attn_proj")},
        f"{BRIDGE}/deepseek/common.py", experimental=True,
    ),
    "megatron-fsdp": Feature(
        "Megatron-FSDP", "overlap", lambda job: _where(_adam(job), FSDP), f"{BRIDGE}/llama/common.py", experimental=True
    ),
    "optimizer-instances": Feature(
        "2 optimizer instances", "instances",
        lambda job: _where(_gathered(job), {"num_distributed_optimizer_instances": 2}),
        "Megatron-LM megatron/core/parallel_state.py (num_distributed_optimizer_instances)",
    ),
}  # fmt: skip
"""Features by name, in the order in which they are applied and said."""
BASICS = ("gradient-overlap", "expandable-segments", "hybridep")
"""What nearly all recipes of any generation have: it changes no numbers."""
BASIC = "+".join(BASICS)
"""The same as a word."""
WORDS = ("published", "safe", "all", "none")
"""Sets of features by one word."""


class Published(NamedTuple):
    """Features that recipes have together, and the models whose recipes have them."""

    generations: tuple[str, ...]
    kinds: tuple[str, ...]
    precisions: tuple[str, ...]
    features: tuple[str, ...]
    models: tuple[str, ...]


@functools.cache
def published() -> tuple[Published, ...]:
    """The rows of published.csv."""
    rows = rows_beside(__file__, "published.csv")
    return tuple(Published(*(tuple(row[name].split()) for name in Published._fields)) for row in rows)


def kind_of(job: TrainingJob) -> str:
    """The kind of a model, as recipes differ by: hybrid, experts with latent attention, other experts, or dense."""
    model = job.model
    if model.hybrid:
        return "hybrid"
    if not model.has_moe:
        return "dense"
    return "mla" if model.multi_latent_attention else "moe"


class Variant(NamedTuple):
    """A job with a precision and with the features that are on."""

    job: TrainingJob
    precision: str
    features: tuple[str, ...]


def sets_of(job: TrainingJob, word: str) -> Iterator[tuple[str, ...]]:
    """The sets of features that a word means for a job with its precision. Raises ConfigError for a word that makes no sense."""
    if word == "none":
        yield ()
    elif word == "published":
        yield from sets_of_recipes(job, published())
    elif word == "safe":
        yield BASICS
        yield from dict.fromkeys(tuple(filter(_safe, one)) for one in sets_of_recipes(job, published()))
    elif word == "all":
        yield from sets_of_recipes(job, published())
        yield from dict.fromkeys((*BASICS[:2], *one.features) for one in published())
        yield from ((*BASICS, name) for name in FEATURES)
    else:
        yield named(word)


def named(word: str) -> tuple[str, ...]:
    """The features that a word names, such as hybridep+a2a-overlap; none of a word for several sets. Raises ConfigError."""
    names = () if word in WORDS else tuple(word.split("+"))
    for name in names:
        if name not in FEATURES:
            known = (*WORDS, *FEATURES)
            raise ConfigError(f"features: {name!r} is none of {', '.join(known)}.{nearest(name, known)}")
    return names


def _safe(name: str) -> bool:
    return not FEATURES[name].numerics and not FEATURES[name].experimental


def sets_of_recipes(job: TrainingJob, rows: Iterable[Published]) -> Iterator[tuple[str, ...]]:
    """The sets of recipes for GPUs of this generation, models of this kind and this precision; else what all have.

    Of sets that differ in the optimizer's dtypes alone, the one with the smaller states: it is as fast, and needs less.
    """
    own = precision_of(job.training)
    precision = own if own in ("bf16", "mxfp8", "nvfp4") else "fp8"
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for row in rows:
        if job.gpu.family in row.generations and kind_of(job) in row.kinds and precision in row.precisions:
            others = frozenset(name for name in row.features if FEATURES[name].group != "optimizer")
            if others not in found or "bf16-moments" in row.features:
                found[others] = (*BASICS[:2], *row.features)
    yield from found.values() or [BASICS]


def of_state(names: Iterable[str]) -> tuple[str, ...]:
    """Those of some features that change what weights, gradients and optimizer are."""
    return tuple(name for name in names if FEATURES[name].group in ("parameters", "gradients", "optimizer"))


STATELESS = ("a2a", "activation", "attention", "dispatcher", "graphs", "offload", "router", "tp")
"""Groups of features that change neither state nor how it is reduced, loaded and saved."""


def beside_stateless(names: Iterable[str]) -> tuple[str, ...]:
    """The features of a set that may change what a rank's state is, or what becomes of it."""
    return tuple(name for name in names if FEATURES[name].group not in STATELESS)


def variants(job: TrainingJob, precisions: Iterable[str], words: Iterable[str]) -> list[Variant]:
    """The variants of a job with every precision and every set of features, each once; what the job was given holds."""
    found: dict[Any, Variant] = {}
    for precision in precisions:
        plain = with_settings(job, precision_settings(job, precision))
        for names in (one for word in words for one in sets_of(plain, word)):
            variant = with_features(plain, names)
            found.setdefault(
                (precision, variant.job.layout, variant.job.training, variant.job.env),
                variant._replace(precision=precision),
            )
    return list(found.values())


def with_features(job: TrainingJob, names: Iterable[str]) -> Variant:
    """The job with some features: of a group the last one, and none whose settings it was given otherwise, or has nothing for."""
    wanted: dict[str, str] = {}
    for name in names:
        wanted[FEATURES[name].group] = name
    on, made = [], job
    for name in (name for name in FEATURES if name in wanted.values()):
        settings = FEATURES[name].settings(made)
        if settings and not any(job.given.get(key, value) not in (value, None) for key, value in settings.items()):
            on.append(name)
            made = with_settings(made, settings)
    return Variant(made, "", tuple(on))
