"""What would make a run fit, or a run that fits faster: the smallest changes, each with what it saves and what it costs.

Every change is a job of its own, estimated like any other. First each change alone; where none is enough, pairs, then triples of
those that save most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf
from typing import Any

from ..errors import EstimatorError
from ..estimator import Estimate, estimate
from ..inputs.effects import recomputable
from ..job import TrainingJob
from ..legality import balanced_split
from ..throughput.machine import Efficiency
from ..throughput.step import Throughput, throughput
from .base import TOKENS_OF_A_STEP
from .borders import EVEN, generated_layout
from .space import RECOMPUTE

Settings = dict[str, Any]
MOST_CHANGES, KEPT = 3, 8
"""Changes at once at most, and how many of the best single ones are combined."""
ROOM = 0.9
"""A run has room to be made faster where what is surely enough is below this share of the memory."""


@dataclass(frozen=True)
class Change:
    """One change of a run: what it is called, and the settings of the layout, the training and the environment that it sets."""

    name: str
    settings: tuple[tuple[str, Any], ...]
    note: str = ""

    def values(self) -> Settings:
        """The settings as a mapping."""
        return dict(self.settings)


@dataclass(frozen=True)
class Outcome:
    """A changed run with its estimate and its step time."""

    changes: tuple[Change, ...]
    estimate: Estimate
    efficiency: Efficiency | None = None

    @property
    def job(self) -> TrainingJob:
        """The changed job."""
        return self.estimate.job

    @property
    def peak(self) -> int:
        """Allocated bytes of the fullest stage."""
        return self.estimate.peak_stage.peak_allocated_bytes

    @property
    def needed(self) -> int:
        """Bytes that the fullest stage needs on the device."""
        return max(stage.needed_bytes for stage in self.estimate.stages)

    @property
    def enough(self) -> int:
        """Bytes that are surely enough on the device."""
        return max(stage.enough_bytes for stage in self.estimate.stages)

    @property
    def most(self) -> int:
        """Bytes that decide whether a run surely fits: enough for training, of loading its checkpoint at least."""
        return max(self.enough, self.estimate.load_low)

    @cached_property
    def time(self) -> Throughput:
        """Step time."""
        return throughput(self.estimate, self.efficiency)

    @property
    def timed(self) -> bool:
        """Whether its step time is modelled: that of an offloaded optimizer is not."""
        return not self.job.training.optimizer_cpu_offload

    def verdict(self, limit: int) -> str:
        """One of VERDICTS in device/verdict.py."""
        return self.estimate.verdict(limit)


@dataclass(frozen=True)
class Advice:
    """A run as it is, its memory limit, and changes of it, the best first."""

    now: Outcome
    limit: int
    outcomes: tuple[Outcome, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def faster(self) -> bool:
        """Whether the run fits with room, so that the changes are for speed."""
        return self.now.enough <= self.limit * ROOM and self.now.most <= self.limit


def advise(
    job: TrainingJob, *, limit: int | None = None, most: int = 10, efficiency: Efficiency | None = None
) -> Advice:
    """The smallest changes that make a run fit surely; for one that fits with room, those that make it faster.

    Raises LayoutError for a run that Megatron-Core refuses and UnsupportedError for what is not modelled.
    """
    job, said = priced(job)
    now = Outcome((), estimate(job), efficiency)
    limit = job.gpu.memory_bytes if limit is None else limit
    wanted = Advice(now, limit, (), said)
    if wanted.faster:
        found = _faster(now, limit, efficiency) if now.timed else []
    else:
        found = _fitting(now, limit, efficiency)
    return dataclasses.replace(wanted, outcomes=tuple(found[:most]))


def priced(job: TrainingJob) -> tuple[TrainingJob, tuple[str, ...]]:
    """The job with a global batch that a step time means something for, and what was decided.

    Where no global batch is given, an estimate takes as many microbatches as change the peak; their time is that of filling and
    draining the pipeline. A real step has the tokens that `plan` assumes too.
    """
    if not job.batch_is_assumed or job.layout.dp < 1:
        return job, ()
    t, multiple = job.training, 2 * job.layout.world_size * job.training.micro_batch_size
    wanted = max(TOKENS_OF_A_STEP // t.seq_length, 1, t.global_batch_size or 1)
    batch = -(-wanted // multiple) * multiple
    said = f"global_batch_size not given: a step of {batch} samples ({batch * t.seq_length / 2**20:.1f} Mi tokens) is timed"
    return changed(job, {"global_batch_size": batch}), (said,)


def _fitting(now: Outcome, limit: int, efficiency: Efficiency | None) -> list[Outcome]:
    """Changes that make a run fit: alone where one is enough, else together. Cheapest in time first."""
    singles = list(_outcomes(now, [(change,) for change in memory_changes(now.job)], efficiency))
    helpful = sorted((one for one in singles if one.most < now.most), key=lambda one: one.most)
    found = sorted((one for one in helpful if one.most <= limit), key=cost_of)
    if found:  # two changes together only where they cost less than the cheapest alone
        rest = sorted((one for one in helpful if one not in found), key=cost_of)[:KEPT]
        pairs = [one for one in _together(now, rest, 2, efficiency) if one.most <= limit]
        cheaper = [one for one in pairs if cost_of(one) < 0.99 * cost_of(found[0])]
        return sorted([*cheaper[:3], *found], key=cost_of)
    for size in range(2, MOST_CHANGES + 1):
        found = [one for one in _together(now, helpful[: 3 * KEPT // size], size, efficiency) if one.most <= limit]
        if found:
            return sorted(found, key=cost_of)
    return helpful  # nothing is enough: what helps most


def cost_of(one: Outcome) -> float:
    """GPU-seconds of a step; infinite where the step time is not modelled."""
    return one.time.step * one.job.layout.world_size if one.timed else inf


def _together(now: Outcome, singles: Sequence[Outcome], size: int, efficiency: Efficiency | None) -> list[Outcome]:
    """So many of the changes at once, where they do not contradict each other."""
    groups = [tuple(one.changes[0] for one in group) for group in combinations(singles, size)]
    return list(_outcomes(now, [group for group in groups if _compatible(group)], efficiency))


def _faster(now: Outcome, limit: int, efficiency: Efficiency | None) -> list[Outcome]:
    """Changes that keep a run within memory and make it faster: alone and in pairs, the fastest first."""
    singles = [
        one for one in _outcomes(now, [(change,) for change in speed_changes(now.job)], efficiency) if one.most <= limit
    ]
    better = sorted((one for one in singles if one.time.step < now.time.step * 0.995), key=lambda one: one.time.step)
    tried = [one for one in _together(now, better[:KEPT], 2, efficiency) if one.most <= limit]
    fastest = {one.changes[0].name: one.time.step for one in better}
    worth = [one for one in tried if one.time.step < 0.99 * min(fastest[change.name] for change in one.changes)]
    return sorted([*better, *worth], key=lambda one: one.time.step)


def _compatible(changes: Sequence[Change]) -> bool:
    """Whether no two changes set the same thing."""
    names = [name for change in changes for name, _ in change.settings]
    return len(names) == len(set(names))


def _outcomes(now: Outcome, groups: Sequence[tuple[Change, ...]], efficiency: Efficiency | None) -> Iterator[Outcome]:
    for changes in groups:
        values: Settings = {}
        for change in changes:
            values.update(change.values())
        try:
            yield Outcome(changes, estimate(changed(now.job, values)), efficiency)
        except (EstimatorError, ZeroDivisionError):
            continue


def changed(job: TrainingJob, values: Settings) -> TrainingJob:
    """The job with other settings; the global batch stays. Raises EstimatorError where it does not divide."""
    parts: dict[str, Any] = {}
    for part in ("layout", "training", "env"):
        old = getattr(job, part)
        mine = {f.name: values[f.name] for f in dataclasses.fields(old) if f.name in values}
        parts[part] = dataclasses.replace(old, **mine) if mine else old
    layout, training = parts["layout"], parts["training"]
    if layout.tp == 1 and layout.sequence_parallel:
        layout = parts["layout"] = dataclasses.replace(layout, sequence_parallel=False)
    if layout.world_size % (layout.tp * layout.cp * layout.pp):
        raise EstimatorError("the GPUs do not divide")
    per_step = training.micro_batch_size * layout.dp
    assert training.global_batch_size is not None
    if per_step < 1 or training.global_batch_size % per_step:
        raise EstimatorError("the global batch does not divide")
    return dataclasses.replace(job, **parts, num_microbatches=training.global_batch_size // per_step)


def _change(name: str, note: str = "", **settings: Any) -> Change:
    return Change(name, tuple(settings.items()), note)


def memory_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes that may save memory."""
    t, layout, model = job.training, job.layout, job.model
    yield from _recompute(job, more=True)
    if t.micro_batch_size > 1:
        half = t.micro_batch_size // 2
        yield _change(f"micro_batch_size {half}", micro_batch_size=half)
    if not t.use_distributed_optimizer and not t.use_megatron_fsdp and not t.use_torch_fsdp2:
        yield _change("use_distributed_optimizer", use_distributed_optimizer=True)
    if not t.use_precision_aware_optimizer and t.optimizer == "adam":
        yield _change("use_precision_aware_optimizer", use_precision_aware_optimizer=True)
        yield _change(
            "use_precision_aware_optimizer with bf16 moments", "changes numerics",
            use_precision_aware_optimizer=True, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16",
        )  # fmt: skip
    if t.grad_dtype == "fp32" and not t.use_precision_aware_optimizer:
        yield _change("grad_reduce_in_bf16", "changes numerics", grad_reduce_in_bf16=True)
    if layout.tp > 1 and not layout.sequence_parallel:
        yield _change("sequence_parallel", sequence_parallel=True)
    if not t.cross_entropy_loss_fusion:
        yield _change("cross_entropy_loss_fusion", cross_entropy_loss_fusion=True)
    if model.has_moe and not t.moe_permute_fusion:
        yield _change("moe_permute_fusion", moe_permute_fusion=True)
    yield from _degrees(job, (2,))
    yield from _splits(job)
    if not job.env.expandable_segments:
        yield _change("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", expandable_segments=True)
    if not t.optimizer_cpu_offload and t.use_distributed_optimizer and t.optimizer == "adam":
        yield _change(
            "optimizer_cpu_offload", "its step time is not modelled; the first to measure where a change must cost no compute",
            optimizer_cpu_offload=True, use_precision_aware_optimizer=True,
        )  # fmt: skip
    yield _change(
        f"num_gpus {2 * layout.world_size}", "twice the GPUs, the same global batch", world_size=2 * layout.world_size
    )


def speed_changes(job: TrainingJob) -> Iterator[Change]:
    """Changes that may make a run faster."""
    t, layout = job.training, job.layout
    yield from _recompute(job, more=False)
    yield _change(f"micro_batch_size {2 * t.micro_batch_size}", micro_batch_size=2 * t.micro_batch_size)
    if t.micro_batch_size > 1:
        yield _change(f"micro_batch_size {t.micro_batch_size // 2}", micro_batch_size=t.micro_batch_size // 2)
    yield from _degrees(job, (0.5, 2))
    yield from _splits(job)
    if t.use_distributed_optimizer and not (t.overlap_grad_reduce and t.overlap_param_gather):
        yield _change(
            "overlap_grad_reduce and overlap_param_gather", overlap_grad_reduce=True, overlap_param_gather=True
        )
    if layout.tp > 1 and not layout.sequence_parallel:
        yield _change("sequence_parallel", sequence_parallel=True)
    if not t.cross_entropy_loss_fusion:
        yield _change("cross_entropy_loss_fusion", cross_entropy_loss_fusion=True)
    if layout.ep > 1 and t.moe_token_dispatcher_type != "flex":
        yield _change(
            "moe_token_dispatcher_type flex (DeepEP)",
            moe_token_dispatcher_type="flex",
            moe_flex_dispatcher_backend="deepep",
        )
    if layout.pp > 1:
        for vpp in (2, 3, 4, 5, 6, 8):
            if vpp != layout.virtual_pipeline_model_parallel_size and layout.pipeline_model_parallel_layout is None:
                yield _change(f"virtual_pipeline_model_parallel_size {vpp}", virtual_pipeline_model_parallel_size=vpp)


def _recompute(job: TrainingJob, *, more: bool) -> Iterator[Change]:
    """Sets of recomputation that cover more, or less, than the run's."""
    t, known = job.training, recomputable(job.model)
    has = set(t.recompute_modules or ("core_attn",)) if t.recompute_granularity == "selective" else set()
    seen: set[str] = set()
    costly = {"core_attn"} if job.kernel in ("flash", "cudnn") else set()
    for name, settings in RECOMPUTE.items():
        modules = set(settings.get("recompute_modules", ()))
        full = settings.get("recompute_granularity") == "full"
        if t.recompute_granularity == "full" if more else full or (t.recompute_granularity is None):
            continue
        if (
            not modules <= known
            or (modules & costly and not modules <= has)
            or (more and not full and not modules - has)
        ):
            continue
        if not more and t.recompute_granularity == "selective" and not modules < has:
            continue
        union = tuple(sorted(modules | has)) if more and modules else tuple(sorted(modules))
        values: Settings = {
            "recompute_granularity": "full" if full else "selective" if union else None,
            "recompute_method": settings.get("recompute_method"),
            "recompute_num_layers": settings.get("recompute_num_layers"), "recompute_modules": () if full else union,
        }  # fmt: skip
        shown = name if full or not union else "+".join(union)
        if shown not in seen:
            seen.add(shown)
            yield Change(f"recompute {shown}", tuple(values.items()))


def _degrees(job: TrainingJob, factors: Sequence[float]) -> Iterator[Change]:
    """One degree doubled or halved; the number of GPUs stays."""
    layout, moe = job.layout, bool(job.model.num_moe_experts)
    for factor in factors:
        for short, name in (
            ("tp", "tensor_model_parallel_size"), ("cp", "context_parallel_size"), ("ep", "expert_model_parallel_size"),
        ):  # fmt: skip
            value = getattr(layout, short) * factor
            if value < 1 or (short == "ep" and not moe):
                continue
            size = int(value)
            values: Settings = {name: size}
            if short == "tp":
                values["sequence_parallel"] = size > 1
                if moe and layout.expert_tensor_parallel_size is None:
                    values["expert_tensor_parallel_size"] = layout.etp
            yield Change(f"{name} {size}", tuple(values.items()))
        pp = layout.pp * factor
        if pp >= 1:
            yield from _pipeline(job, int(pp))


def _pipeline(job: TrainingJob, pp: int) -> Iterator[Change]:
    layout = job.layout
    vp = layout.virtual_pipeline_model_parallel_size or 1
    if layout.num_layers_per_virtual_pipeline_stage is not None or job.model.hybrid:
        return
    if layout.pipeline_model_parallel_layout is not None:
        from ..pipeline import parse_layout

        vp = len(parse_layout(layout.pipeline_model_parallel_layout)) // layout.pp
    cleared: Settings = {
        "pipeline_model_parallel_size": pp, **EVEN, "virtual_pipeline_model_parallel_size": vp if vp > 1 and pp > 1 else None,
    }  # fmt: skip
    if pp > 1 and job.model.num_layers % (pp * vp):
        split = balanced_split(job.model.num_layers, pp, vp)
        if split is None:
            return
        cleared["num_layers_in_first_pipeline_stage"], cleared["num_layers_in_last_pipeline_stage"] = split
    yield Change(f"pipeline_model_parallel_size {pp}", tuple(cleared.items()))


def _splits(job: TrainingJob) -> Iterator[Change]:
    """Other borders between stages: a generated layout, and fewer layers on the first or the last stage."""
    layout, model = job.layout, job.model
    if layout.pp == 1 or model.hybrid or layout.num_layers_per_virtual_pipeline_stage is not None:
        return
    vp = layout.virtual_pipeline_model_parallel_size or 1
    cleared: Settings = {
        **EVEN, "virtual_pipeline_model_parallel_size": layout.virtual_pipeline_model_parallel_size,
    }  # fmt: skip
    if layout.pipeline_model_parallel_layout is None:
        text = generated_layout(model, layout.pp, vp)
        if text is not None:
            values = {**cleared, "pipeline_model_parallel_layout": text, "virtual_pipeline_model_parallel_size": None}
            yield Change(f"pipeline_model_parallel_layout {text}", tuple(values.items()))
        for first, last in _uneven(model.num_layers, layout.pp, vp):
            values = {**cleared, "num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": last}
            words = [f"{name} {n}" for name, n in (("first", first), ("last", last)) if n is not None]
            yield Change(f"layers of the {' and '.join(words)} stage", tuple(values.items()))


def _uneven(layers: int, pp: int, vp: int) -> Iterator[tuple[int | None, int | None]]:
    """Splits with fewer layers on the first stage, on the last, or on both, the others alike."""
    for middle in range(vp * (layers // (pp * vp)), vp * (layers // (pp * vp) + 3), vp):
        rest = layers - (pp - 1) * middle
        if 0 < rest < middle and rest % vp == 0:
            yield rest, None
            yield None, rest
