"""From a model and the settings that a user gave to a complete TrainingJob; everything decided here is said.

Two sets of defaults: with a model name, the habits of published recipes; with Megatron's own settings, the class defaults
of TransformerConfig, DistributedDataParallelConfig and OptimizerConfig.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from ..hardware import Environment, find_gpu
from ..job import DEFAULT_GPU, TrainingJob
from ..layout import Layout
from ..model import Model
from ..modules.kinds import kinds_in
from ..settings import LARGEST_INTEGER, build, checked, nearest
from ..training import Training
from ..wording import plain, shown
from .decide import decide_layout, recompute_defaults
from .defaults import CLASS_DEFAULTS, DEFAULT_SEQ_LENGTH, habits_for
from .effects import without_effect
from .transformer_config import IRRELEVANT, RENAMED, UNSUPPORTED


@dataclass(frozen=True)
class LoadedModel:
    """A model read from a config: its settings in our names, where it comes from, what cannot be estimated."""

    config: Mapping[str, Any]
    name: str
    source: str
    model_type: str
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    foreign: tuple[tuple[str, int], ...] = ()


LONGEST_NAME = 300
"""Characters of a name or a source that are kept."""

PARTS: tuple[type[Any], ...] = (Model, Layout, Training, Environment)


@functools.cache
def known_settings() -> dict[str, type[Any]]:
    """Every setting's name and the dataclass that owns it."""
    return {f.name: part for part in PARTS for f in dataclasses.fields(part) if not f.metadata.get("internal")}


def sorted_settings(values: Mapping[str, Any]) -> dict[type[Any], dict[str, Any]]:
    """The values by owning dataclass; unknown names are refused with the nearest match."""
    known = known_settings()
    found: dict[type[Any], dict[str, Any]] = {part: {} for part in PARTS}
    for name, value in values.items():
        name = name.replace("-", "_")
        if name in RENAMED:
            name = RENAMED[name]
        if name in IRRELEVANT:
            continue
        if name in UNSUPPORTED:
            if value not in UNSUPPORTED[name]:
                raise ConfigError(f"{name}={value!r} is not modelled; only {UNSUPPORTED[name][0]!r} is")
            continue
        if name not in known:
            raise ConfigError(f'unknown setting "{name}".{nearest(name, [*known, *IRRELEVANT])}')
        found[known[name]][name] = value
    return found


def current_name(name: str) -> str:
    """Megatron's current name of a setting, underscored."""
    word = name.replace("-", "_")
    return RENAMED.get(word, word)


def canonical(values: Mapping[str, Any], name_of: Callable[[str], str] = current_name) -> dict[str, Any]:
    """The values by Megatron's current names; two spellings with different values are refused."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        word = name_of(name)
        if word in found and not _same(found[word], value):
            raise ConfigError(f"{word} is given twice, under two names, with different values; give one")
        found[word] = value
    return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def precision(values: dict[str, Any]) -> dict[str, Any]:
    """`bf16=True` and `fp16=True` as the params_dtype that they mean; "torch.bfloat16" and "bfloat16" likewise."""
    out = dict(values)
    bf16, fp16 = out.pop("bf16", None), out.pop("fp16", None)
    for flag, value in (("bf16", bf16), ("fp16", fp16)):
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{flag}={value!r} must be true or false")
    if bf16 and fp16:
        raise ConfigError("bf16 and fp16 exclude each other; give one")
    named = (
        str(out.get("params_dtype", "")).removeprefix("torch.").replace("bfloat16", "bf16").replace("float16", "fp16")
    )
    if (bf16 and named not in ("", "bf16")) or (fp16 and named not in ("", "fp16")):
        raise ConfigError(f"params_dtype={out['params_dtype']!r} contradicts {'bf16' if bf16 else 'fp16'}; give one")
    if bf16 is False and not fp16 and not named:
        out["params_dtype"] = "fp32"
    if bf16:
        out["params_dtype"] = "bf16"
    elif fp16:
        out["params_dtype"] = "fp16"
    words = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    dtypes = (
        "params_dtype",
        "main_grads_dtype",
        "main_params_dtype",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "moe_router_dtype",
    )
    for name in dtypes:
        value = out.get(name)
        if isinstance(value, str):
            value = value.removeprefix("torch.")
            out[name] = words.get(value, value)
    return out


def graphs(out: dict[str, Any]) -> None:
    """CUDA graphs in older words: enable_cuda_graph, external_cuda_graph, and the scopes full and full_iteration."""
    if out.pop("enable_cuda_graph", False):
        out["cuda_graph_impl"] = "local"
    if out.pop("external_cuda_graph", False):
        out["cuda_graph_impl"] = "transformer_engine"
    if "cuda_graph_impl" in out and out["cuda_graph_impl"] is None:
        out["cuda_graph_impl"] = "none"
    scope = out.get("cuda_graph_modules")
    if isinstance(scope, str):
        scope = scope.strip("[]").replace(",", " ").split()
    if scope is not None:
        if not isinstance(scope, list | tuple | set | frozenset):
            raise ConfigError(f"cuda_graph_modules={shown(scope)} must be a list of words")
        words = [str(getattr(word, "name", word)) for word in scope]
        if "full_iteration" in words and out.get("cuda_graph_impl") not in (None, "none"):
            out["cuda_graph_impl"] = "full_iteration"
        out["cuda_graph_modules"] = tuple(word for word in words if word not in ("full", "full_iteration"))


def respelled(values: dict[str, Any]) -> dict[str, Any]:
    """Other spellings of values: precision flags, attention back ends, aliases, one-per-kind coefficients."""
    out = precision(values)
    backend = out.pop("attention_backend", None)
    if backend is not None:
        word = str(getattr(backend, "name", backend)).removeprefix("AttnBackend.")
        if word not in ("auto", "flash", "fused", "unfused", "local"):
            raise ConfigError(f"attention_backend={backend!r} is not one of auto, flash, fused, unfused, local")
        if word != "auto":
            out.setdefault("attention_kernel", "cudnn" if word == "fused" else word)
    if out.get("experimental_attention_variant") == "gated_delta_net":
        out["experimental_attention_variant"] = "gdn"
    if out.pop("apply_query_key_layer_scaling", False):
        out["attention_softmax_in_fp32"] = True  # TransformerConfig.__post_init__
    graphs(out)
    if out.pop("moe_router_force_load_balancing", False):
        out.setdefault("routing_phase", "forced_balance")
    if out.pop("cpu_offloading", None) is False:
        out["cpu_offloading_num_layers"] = 0
    layout = out.get("pipeline_model_parallel_layout")
    if isinstance(layout, str) and "\\" in layout:
        out["pipeline_model_parallel_layout"] = layout.replace("\\", "")  # escaped for a shell
    modules = out.get("offload_modules")
    if isinstance(modules, str):
        out["offload_modules"] = modules.strip("[]").replace(",", " ").split()
    if out.get("use_megatron_fsdp"):
        out["use_distributed_optimizer"] = True  # validate_args
    if out.get("optimizer") == "dist_muon":
        out.update(optimizer="muon", use_distributed_optimizer=True)
    kinds = out.get("cp_comm_type")
    if kinds is not None:
        if not isinstance(kinds, str | list | tuple):
            raise ConfigError(f"cp_comm_type={shown(kinds)} must be a word, or a list of one for each layer")
        listed = [kinds] if isinstance(kinds, str) else list(kinds)
        out["cp_comm_type"] = ["all_gather" if kind == "allgather" else kind for kind in listed]
    coeff = out.get("moe_aux_loss_coeff")
    if isinstance(coeff, list | tuple) and all(isinstance(x, int | float) for x in coeff):
        out["moe_aux_loss_coeff"] = max(coeff, default=0.0)
    return out


def job_from_config(config: Mapping[str, Any], num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_config`."""
    if not isinstance(config, Mapping):
        raise ConfigError("config must be a mapping of TransformerConfig names to values")
    merged = {**config, **settings}
    twice = [name for name in config if name in settings and settings[name] != config[name]]
    off = offloading_is_off(merged) if "cpu_offloading_num_layers" not in settings else ()
    mla = bool(merged.get("multi_latent_attention"))
    defaults = {**CLASS_DEFAULTS, **({"normalization": "RMSNorm"} if mla else {})}
    loaded = LoadedModel({}, str(merged.pop("name", "") or ""), "settings", "")
    job = job_from_parts(loaded, num_gpus, merged, habits=False, defaults=defaults)
    job = dataclasses.replace(job, warnings=(*job.warnings, *off))
    notes = tuple(f"the setting {name}={settings[name]!r} overrides {config[name]!r} of the config" for name in twice)
    return dataclasses.replace(job, assumptions=(*notes, *job.assumptions))


def offloading_is_off(values: dict[str, Any]) -> tuple[str, ...]:
    """Sets layers to offload to 0 where the switch is off, as TransformerConfig has it (`cpu_offloading`), and says so.

    Megatron-LM's argument --cpu-offloading-num-layers is its own switch.
    """
    layers = values.get("cpu_offloading_num_layers")
    if not layers or values.get("cpu_offloading"):
        return ()
    values["cpu_offloading_num_layers"] = 0
    return (f"cpu_offloading_num_layers={layers!r} has no effect: cpu_offloading is off",)


def model_of(loaded: LoadedModel) -> Model:
    """The architecture of a loaded model, without a layout."""
    model: Model = build(Model, {**sorted_settings(loaded.config)[Model], "foreign_layers": loaded.foreign})
    return model


def job_from_parts(
    loaded: LoadedModel,
    num_gpus: int | None,
    settings: Mapping[str, Any],
    *,
    habits: bool,
    defaults: Mapping[str, Any] | None = None,
    strict: bool = False,
    single_microbatch: bool = False,
) -> TrainingJob:
    """A complete job: defaults, then what the model's config says, then what the user gave, then what is left to decide."""
    if not all(isinstance(name, str) for name in settings):
        raise ConfigError("names of settings must be words")
    given = respelled(
        canonical({k: v for k, v in settings.items() if v is not None or k.replace("-", "_") in _NULLABLE})
    )
    gpu = find_gpu(_word("gpu", given.pop("gpu", DEFAULT_GPU)))
    env_given = given.pop("env", None)
    strict = given.pop("strict", strict)
    if not isinstance(strict, bool):
        raise ConfigError(f"strict={strict!r} must be true or false")
    if "num_microbatches" in given:
        raise ConfigError("num_microbatches follows from global_batch_size; give that")
    values = {**(habits_for(given) if habits else {}), **canonical(defaults or {}), **canonical(loaded.config), **given}
    parts = sorted_settings(values)
    if isinstance(env_given, Environment):
        env = env_given
    else:
        env = build(Environment, {**parts[Environment], **_environment(env_given)})
    gpu = env.installed(gpu)
    said: list[str] = []
    if habits:
        said.append(
            "published recipes' habits where not given: distributed optimizer, gradient accumulation fusion, "
            "expert_tensor_parallel_size 1, grouped experts, alltoall dispatcher, fused permutation, a balancing loss"
        )
    _longer_positions(parts, given, said, habits=habits)
    model: Model = build(Model, {**parts[Model], "foreign_layers": loaded.foreign})
    if "seq_length" not in parts[Training]:
        length = min(DEFAULT_SEQ_LENGTH, model.max_position_embeddings or DEFAULT_SEQ_LENGTH)
        parts[Training]["seq_length"] = length
        said.append(f"seq_length not given: {length}")
    training: Training = build(Training, parts[Training])
    training, notes = recompute_defaults(training)
    said += notes
    assumed_batch = training.global_batch_size is None and not single_microbatch
    layout_values = {name: checked(_field(Layout, name), value) for name, value in parts[Layout].items()}
    layout, notes, microbatches, training = decide_layout(
        model,
        layout_values,
        training,
        num_gpus,
        given,
        habits=habits,
        strict=strict,
        single_microbatch=single_microbatch,
    )
    said += notes
    warned = [*loaded.warnings, *without_effect(model, training, given)]
    if model.mtp and habits and "mtp_num_layers" not in given:
        warned.append(
            f"{model.mtp} multi-token prediction layer(s) as in the config; --mtp-num-layers 0 turns them off"
        )
    if (
        training.router_imbalance == 1
        and model.has_moe
        and layout.ep > 1
        and training.moe_expert_capacity_factor is None
    ):
        said.append("balanced routing (router_imbalance 1): every expert-parallel rank gets the same number of rows")
    job = TrainingJob(
        model=model,
        layout=layout,
        training=training,
        gpu=gpu,
        env=env,
        name=plain(loaded.name, LONGEST_NAME),
        source=plain(loaded.source, LONGEST_NAME),
        model_type=plain(loaded.model_type, LONGEST_NAME),
        num_microbatches=microbatches,
        batch_is_assumed=assumed_batch,
        refusal=loaded.refusal,
        assumptions=tuple(map(plain, said)),
        warnings=tuple(map(plain, warned)),
    )
    if costly_core_attention(job):
        note = (
            "recompute_modules core_attn costs memory with fused attention: the packed QKV output stays, beside query "
            "and key after RoPE"
        )
        job = dataclasses.replace(job, warnings=(*job.warnings, note))
    return job


def costly_core_attention(job: TrainingJob) -> bool:
    """Whether recomputing core attention keeps more than it drops."""
    fused = job.kernel in ("flash", "cudnn")
    grouped = any(kind.groups for kind in kinds_in(job.model.kinds))
    return fused and grouped and job.training.recomputes("core_attn") and job.model.position_embedding_type == "rope"


def _longer_positions(
    parts: dict[type[Any], dict[str, Any]], given: Mapping[str, Any], said: list[str], *, habits: bool
) -> None:
    """With a model name, RoPE models are trained on longer sequences than their config says by raising the limit."""
    model, length = parts[Model], parts[Training].get("seq_length")
    limit = model.get("max_position_embeddings")
    if not habits or "max_position_embeddings" in given or not isinstance(length, int) or not isinstance(limit, int):
        return
    if limit < length <= LARGEST_INTEGER and model.get("position_embedding_type") == "rope":
        model["max_position_embeddings"] = length
        said.append(f"max_position_embeddings raised from {limit} to seq_length {length}")


_NULLABLE = {"q_lora_rank", "moe_shared_expert_intermediate_size", "mtp_num_layers", "num_moe_experts"}


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name}={value!r} must be a name")
    return value


READ_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_NVLS_ENABLE")


def _environment(value: Any) -> dict[str, Any]:
    """Environment settings, or environment variables by their own names."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError("env must be a mapping of environment settings or variables")
    from difflib import get_close_matches

    found: dict[str, Any] = {}
    for name, setting in value.items():
        if not isinstance(name, str):
            raise ConfigError(f"env: {name!r} must be the name of a variable")
        if name == "CUBLAS_WORKSPACE_CONFIG":
            found["cublas_workspace_config"] = setting
        elif name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            found["expandable_segments"] = "expandable_segments:true" in str(setting).lower()
        elif name == "NCCL_NVLS_ENABLE":
            found["nccl_nvls"] = str(setting).lower() not in ("0", "", "false")
        elif name.isupper():
            near = get_close_matches(name, READ_VARIABLES, n=1, cutoff=0.93)
            if near:
                raise ConfigError(f'env: {name} is not a variable that matters here. Did you mean "{near[0]}"?')
        else:
            found[name] = setting
    return found


def _field(part: type[Any], name: str) -> Any:
    return next(f for f in dataclasses.fields(part) if f.name == name)
