"""Changes of one run that may save memory, or time.

Changes of a run of reinforcement learning: less of the trainer or of the engine on the GPU while samples are generated.

One change of a run, as advice proposes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ..dataclass import dataclass
from ..errors import EstimatorError
from ..job.pipeline import parse_layout
from ..job.rollout import MOVED
from ..job.training_job import TrainingJob, with_settings
from ..legality import balanced_split
from ..legality.asserted_environment import refuses_loss
from ..modules.kinds import recomputable
from ..states.optimizers import OPTIMIZERS
from ..wording import counted
from .space.borders import EVEN, generated_layout
from .space.recompute import RECOMPUTE

SWITCHES = {
    "use_distributed_optimizer": "the distributed optimizer",
    "use_precision_aware_optimizer": "the precision-aware optimizer",
    "grad_reduce_in_bf16": "gradients in bf16",
    "sequence_parallel": "sequence parallelism",
    "moe_permute_fusion": "fused permutation of tokens",
}
NUMBERS = {
    "tensor_model_parallel_size": "tensor parallel",
    "pipeline_model_parallel_size": "pipeline parallel",
    "context_parallel_size": "context parallel",
    "expert_model_parallel_size": "expert parallel",
    "virtual_pipeline_model_parallel_size": "virtual pipeline",
    "micro_batch_size": "micro batch",
}
"""Settings in the words of a change."""
LARGER = (4, 8)
"""Factors of larger changes."""


def changed(job: TrainingJob, values: Settings) -> TrainingJob:
    """The job with other settings; the global batch stays. Raises EstimatorError where it does not divide."""
    new = with_settings(job, values)
    if new.layout.tp == 1 and new.layout.sequence_parallel:
        new = with_settings(new, {"sequence_parallel": False})
    layout, training = new.layout, new.training
    if layout.world_size % (layout.tp * layout.gtp * layout.cp * layout.pp):
        raise EstimatorError("the GPUs do not divide")
    per_step = training.micro_batch_size * layout.readers
    assert training.global_batch_size is not None
    if per_step < 1 or training.global_batch_size % per_step:
        raise EstimatorError("the global batch does not divide")
    return dataclasses.replace(new, num_microbatches=training.global_batch_size // per_step)


OF_SAMPLES = frozenset((
    "world_size", "micro_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
))  # fmt: skip
"""Settings that dynamic context parallelism decides, or that decide how many ranks it has for a sample."""


def concerns_samples(job: TrainingJob, values: Settings) -> bool:
    """Whether a change is of the ranks that share a sample, which the lengths of the samples say."""
    return job.training.dynamic_context_parallel and not OF_SAMPLES.isdisjoint(values)


def _switch(name: str) -> Change:
    """A setting turned on."""
    return Change(SWITCHES[name], ((name, True),))


def _number(job: TrainingJob, name: str, value: int, **beside: Any) -> Change:
    """A setting with another number, and what goes with it."""
    old = getattr(job.training if name == "micro_batch_size" else job.layout, name) or 1
    return Change(f"{NUMBERS[name]} {value} instead of {old}", ((name, value), *beside.items()))


def allocator(job: TrainingJob) -> Change:
    """The allocator setting that leaves least unused."""
    graphs = job.training.cuda_graph_impl != "none"
    note = "with CUDA graphs Megatron-LM also wants NCCL_GRAPH_REGISTER=0" if graphs else ""
    return change("expandable segments of the allocator", note, expandable_segments=True)


def memory_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes that may save memory."""
    t, layout, model = job.training, job.layout, job.model
    yield from _recompute(job, more=True)
    if t.micro_batch_size > 1:
        yield _number(job, "micro_batch_size", t.micro_batch_size // 2)
    yield from _optimizers(job)
    if layout.tp > 1 and not layout.sequence_parallel:
        yield _switch("sequence_parallel")
    yield from _losses(job)
    yield from low_precision_weights(job)
    if model.has_moe and not t.moe_permute_fusion:
        yield _switch("moe_permute_fusion")
    if t.create_attention_mask_in_dataloader:
        yield change(
            "no attention mask from the data loader",
            "causal attention needs none, --reset-attention-mask does",
            create_attention_mask_in_dataloader=False,
        )
    yield from _degrees(job, (2,))
    yield from _splits(job)
    if not job.env.expandable_segments:
        yield allocator(job)
    trained = [tower for tower in model.towers if tower.given(t) and not tower.frozen(t, projection=False)]
    if any(tower.rerun for tower in trained) and not t.vit_gradient_checkpointing:
        yield change("layers of the towers recomputed", vit_gradient_checkpointing=True)
    for tower in trained if t.peft == "none" else ():
        note = "it learns nothing more" if tower.whole else "its projection is trained alone"
        frozen = {"freeze_audio_model" if tower.hears else "freeze_vision_model": True}
        yield change(f"a frozen {tower.name}", note, "numerics", **frozen)
    if not t.optimizer_cpu_offload and t.use_distributed_optimizer and OPTIMIZERS[t.optimizer].offloaded:
        yield change(
            "the optimizer in host memory",
            "its step time is that of one CPU core for each GPU, as torchrun starts them; OMP_NUM_THREADS gives more",
            "host memory",
            optimizer_cpu_offload=True,
            use_precision_aware_optimizer=True,
        )
    yield from rollout_changes(job)
    yield _gpus(layout.world_size, 2)


def larger_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes that may save much memory: those of `memory_changes` that have a size, four and eight times as large."""
    batch, gpus = job.training.micro_batch_size, job.layout.world_size
    for factor in LARGER:
        if batch >= factor:
            yield _number(job, "micro_batch_size", batch // factor)
    yield from _degrees(job, LARGER)
    yield _gpus(gpus, LARGER[0])


def _gpus(now: int, factor: int) -> Change:
    """More GPUs with the same global batch."""
    name = f"{factor * now} GPUs instead of {now}"
    return change(name, "the same global batch", "GPUs", world_size=factor * now)


def _optimizers(job: TrainingJob) -> Iterator[Change]:
    """Optimizers and gradients of fewer bytes."""
    t = job.training
    if not t.use_distributed_optimizer and not t.use_megatron_fsdp and not t.use_torch_fsdp2:
        yield _switch("use_distributed_optimizer")
    if not t.use_precision_aware_optimizer and OPTIMIZERS[t.optimizer].precision_aware:
        yield _switch("use_precision_aware_optimizer")
        yield change(
            "the precision-aware optimizer with bf16 moments",
            "changes numerics",
            "numerics",
            use_precision_aware_optimizer=True,
            exp_avg_dtype="bf16",
            exp_avg_sq_dtype="bf16",
        )
    if t.grad_dtype == "fp32" and not t.use_precision_aware_optimizer:
        yield dataclasses.replace(_switch("grad_reduce_in_bf16"), note="changes numerics", asks="numerics")


def low_precision_weights(job: TrainingJob) -> Iterator[Change]:
    """Weights that are kept and gathered in the low precision of their products, without a 16-bit copy."""
    t = job.training
    if t.low_precision and not t.low_precision_weights:
        name = "fp4" if t.fp4 else "fp8"
        beside = [("reuse_grad_buf_for_mxfp8_param_ag", True)] if t.low_precision == "mxfp8" else []
        yield Change(f"weights kept in {name}", ((f"{name}_param_gather", True), *beside))


def _losses(job: TrainingJob) -> Iterator[Change]:
    """Other forms of Megatron's cross entropy: op by op, native fused, and TransformerEngine's where the run's front end takes it."""
    t = job.training
    if t.loss_function != "cross_entropy":
        return
    now = t.cross_entropy_fusion_impl if t.cross_entropy_loss_fusion else None
    if now is not None:
        yield change("cross entropy op by op", cross_entropy_loss_fusion=False)
    if now != "native":
        yield change("fused cross entropy", cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="native")
    fused: Settings = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    stops = refuses_loss(dataclasses.replace(t, **fused))
    if now != "te" and not (stops and job.of_arguments):
        note = "Megatron-Bridge takes it; Megatron-LM's pretrain_gpt.py stops since 0.19" if stops else ""
        asks: Asks | None = "Megatron-Bridge" if stops and job.by_name else None
        yield Change("cross entropy fused by TransformerEngine", tuple(fused.items()), note, asks)


def speed_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes that may make a run faster."""
    t, layout = job.training, job.layout
    yield from _recompute(job, more=False)
    yield _number(job, "micro_batch_size", 2 * t.micro_batch_size)
    if t.micro_batch_size > 1:
        yield _number(job, "micro_batch_size", t.micro_batch_size // 2)
    yield from _degrees(job, (0.5, 2))
    yield from _splits(job)
    if t.use_distributed_optimizer and not (t.overlap_grad_reduce and t.overlap_param_gather):
        yield change(
            "gradients and parameters communicated under compute", overlap_grad_reduce=True, overlap_param_gather=True
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        yield _switch("sequence_parallel")
    yield from _losses(job)
    if layout.ep > 1 and t.moe_token_dispatcher_type != "flex":
        yield change(
            "the flex dispatcher with DeepEP",
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="deepep",
        )
    if layout.pp > 1:
        for vpp in (2, 3, 4, 5, 6, 8):
            if vpp != layout.virtual_pipeline_model_parallel_size and layout.pipeline_model_parallel_layout is None:
                yield _number(job, "virtual_pipeline_model_parallel_size", vpp)


def _recompute(job: TrainingJob, *, more: bool) -> Iterator[Change]:
    """Sets of recomputation that cover more, or less, than the run's."""
    t = job.training
    seen: set[tuple[tuple[str, ...], bool]] = set()
    has = set(t.recomputed_modules)
    for settings in RECOMPUTE.values():
        modules = set(settings.get("recompute_modules", ()))
        full = settings.get("recompute_granularity") == "full"
        if not _covers(job, modules, has, full=full, more=more):
            continue
        union = () if full else tuple(sorted(modules | has if more and modules else modules))
        values: Settings = {
            "recompute_granularity": "full" if full else "selective" if union else None,
            "recompute_method": settings.get("recompute_method"),
            "recompute_num_layers": settings.get("recompute_num_layers"),
            "recompute_modules": union or None,
        }
        if (union, full) not in seen:
            seen.add((union, full))
            yield Change(_recompute_words(union, has, full=full), tuple(values.items()))


def _recompute_words(modules: Sequence[str], has: set[str], *, full: bool) -> str:
    """Other recomputation in words."""
    if full:
        return "full recomputation"
    if not modules:
        return "no recomputation"
    new = [module for module in modules if module not in has]
    return f"recompute {_listed(new)}{' too' if has else ''}" if new else f"recompute only {_listed(modules)}"


def _listed(words: Sequence[str]) -> str:
    """Words with commas, and `and` before the last."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _covers(job: TrainingJob, modules: set[str], has: set[str], *, full: bool, more: bool) -> bool:
    """Whether a set of recomputation covers more, or less, than that of the run, and exists in the model.

    core_attn is not added where a fused kernel keeps no scores: it costs more than it saves.
    """
    granularity = job.training.recompute_granularity
    costly = {"core_attn"} if job.kernel in ("flash", "cudnn") else set()
    if not modules <= recomputable(job.model) or (modules & costly and not modules <= has):
        return False
    if more:
        return granularity != "full" and (full or bool(modules - has))
    return not full and granularity is not None and (granularity == "full" or modules < has)


def _degrees(job: TrainingJob, factors: Sequence[float]) -> Iterator[Change]:
    """One degree doubled or halved; the number of GPUs stays."""
    layout, moe = job.layout, bool(job.model.num_moe_experts)
    for factor in factors:
        tp, cp, ep = (int(degree * factor) for degree in (layout.tp, layout.cp, layout.ep))
        if tp >= 1:
            beside: Settings = {"sequence_parallel": tp > 1}
            if moe and layout.expert_tensor_parallel_size is None:
                beside["expert_tensor_parallel_size"] = layout.etp
            yield _number(job, "tensor_model_parallel_size", tp, **beside)
        if cp >= 1:
            yield _number(job, "context_parallel_size", cp)
        if ep >= 1 and moe:
            yield _number(job, "expert_model_parallel_size", ep)
        pp = layout.pp * factor
        if pp >= 1:
            yield from _pipeline(job, int(pp))


def _pipeline(job: TrainingJob, pp: int) -> Iterator[Change]:
    layout = job.layout
    vp = layout.virtual_pipeline_model_parallel_size or 1
    if layout.num_layers_per_virtual_pipeline_stage is not None or job.model.hybrid:
        return
    if layout.pipeline_model_parallel_layout is not None:
        vp = len(parse_layout(layout.pipeline_model_parallel_layout)) // layout.pp
    cleared: Settings = {**EVEN, "virtual_pipeline_model_parallel_size": vp if vp > 1 and pp > 1 else None}
    if pp > 1 and job.model.num_layers % (pp * vp):
        split = balanced_split(job.model.num_layers, pp, vp)
        if split is None:
            return
        cleared["num_layers_in_first_pipeline_stage"], cleared["num_layers_in_last_pipeline_stage"] = split
    yield _number(job, "pipeline_model_parallel_size", pp, **cleared)


def _splits(job: TrainingJob) -> Iterator[Change]:
    """Other borders between stages: a generated layout, and fewer layers on the first or the last stage."""
    layout, model = job.layout, job.model
    if layout.pp == 1 or model.hybrid or layout.num_layers_per_virtual_pipeline_stage is not None:
        return
    vp = layout.virtual_pipeline_model_parallel_size or 1
    cleared: Settings = {
        **EVEN,
        "virtual_pipeline_model_parallel_size": layout.virtual_pipeline_model_parallel_size,
    }
    if layout.pipeline_model_parallel_layout is None:
        text = generated_layout(model, layout.pp, vp)
        if text is not None:
            values = {**cleared, "pipeline_model_parallel_layout": text, "virtual_pipeline_model_parallel_size": None}
            yield Change("layers split by their work", tuple(values.items()))
        for first, last in _uneven(model.num_layers, layout.pp, vp):
            values = {**cleared, "num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
            words = f"{counted(first or last or 0, 'layer')} on the {'first' if first is not None else 'last'} stage"
            yield Change(words, tuple(values.items()))


def _uneven(layers: int, pp: int, vp: int) -> Iterator[tuple[int | None, int | None]]:
    """Splits with fewer layers on the first stage, on the last, or on both, the others alike."""
    for middle in range(vp * (layers // (pp * vp)), vp * (layers // (pp * vp) + 3), vp):
        rest = layers - (pp - 1) * middle
        if 0 < rest < middle and rest % vp == 0:
            yield rest, None
            yield None, rest


LEAST_SHARE = 0.2
"""Of a GPU's memory for an engine: what is less leaves no KV cache worth the name."""


SMALL_BUCKET = 2**29
"""Bytes of a bucket of the weight sync that most tensors are still smaller than."""


def rollout_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes for an engine that shares the GPUs; none without one."""
    r = job.rollout
    if not r.shares_gpus:
        return
    if set(r.rollout_offload) != set(MOVED):
        words = "weights, gradients and optimizer in host memory while samples are generated"
        yield change(words, "the framework moves them twice a step", "host memory", rollout_offload=MOVED)
    share = r.rollout_memory_share
    for less in (0.1, 0.2, 0.3):
        if share is not None and share - less >= LEAST_SHARE:
            lower = round(share - less, 2)
            words = f"{lower:g} of the GPU for the engine instead of {share:g}"
            yield change(words, "a smaller KV cache", rollout_memory_share=lower)
    if not r.rollout_sleeps:
        yield change("an engine that sleeps while the trainer runs", rollout_sleeps=True)
    ways = r.rollout_tensor_parallel_size
    for wider in (2, 4):
        if ways and ways * wider <= job.layout.world_size and job.model.num_attention_heads % (ways * wider) == 0:
            words = f"one copy of the engine's weights on {ways * wider} GPUs instead of {ways}"
            yield change(words, "fewer copies generate samples", rollout_tensor_parallel_size=ways * wider)
    if r.weight_sync_bytes > SMALL_BUCKET:
        words = f"buckets of {SMALL_BUCKET >> 20} MiB for the weight sync instead of {r.weight_sync_bytes >> 20}"
        yield change(words, "more and smaller sends", weight_sync_bytes=SMALL_BUCKET)


Settings = dict[str, Any]
Asks = Literal["numerics", "GPUs", "host memory", "Megatron-Bridge"]
"""What a change asks for beside time."""


@dataclass(frozen=True)
class Change:
    """One change of a run in words, and the settings of the layout, the training and the environment that it sets."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    note: str = ""
    asks: Asks | None = None

    def values(self) -> Settings:
        """The settings as a mapping."""
        return dict(self.settings)


def change(name: str, note: str = "", asks: Asks | None = None, **settings: Any) -> Change:
    """A change with its settings."""
    return Change(name, tuple(settings.items()), note, asks)
