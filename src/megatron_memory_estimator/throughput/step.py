"""Time of a training step: the pipeline's schedule event by event, data parallelism, the optimizer.

chunk    = sum over its layers, embedding, MTP and head of max(kernels + exposed communication, launches)
pipeline = microbatches * slowest stage + what its schedule leaves idle (schedule.py)
step     = pipeline + exposed data-parallel communication + optimizer + 20 ms

Model FLOPs of a training step, by the declarations: what every op multiplies, and three times as much with the backward.

A token passes each linear once, an expert's as often as it has experts. Core attention is causal: half of the square. Megatron counts
no router. Source of the convention: Megatron-LM `megatron/training/training.py` (num_floating_point_operations).

Seconds of an optimizer whose state is in host memory: gradients go there, the CPU's Adam takes its step, parameters come back.

Nothing overlaps unless overlap_cpu_optimizer_d2h_h2d is given, which is not modelled: copies and the CPU's step wait for each other on
one stream. The CPU's Adam is torch's fused one, a single pass over fp32 tensors.
Source: Megatron-LM `megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py` (step, _set_sub_optimizer_grads,
param_copy_back_gpu_hook), `megatron/core/optimizer/__init__.py` (CPUAdam with fused=True); pytorch
`aten/src/ATen/native/cpu/FusedAdamKernel.cpp`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Protocol

from ..dataclass import dataclass
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..modules.layers import Declaration, layer_unit, mtp_unit, output_unit
from ..rank.declare import Declarer
from ..rank.rank import Rank
from ..states.fsdp import active
from ..states.state import state_in_host_memory
from ..tape.ops import flattened
from ..tape.tensor import DTYPE_BYTES, chosen, total
from ..tape.work import Gemm
from .kernels import operand_bytes
from .links import collective, highest
from .machine import Efficiency, Machine, machine
from .schedule import Schedule, pipeline_seconds
from .stages import StageTime, chunk_times, shown, stage_time

OVERHEAD = 20e-3
"""Seconds of a step outside the model: data, logging, the loss's reduction (set after looking at published steps)."""
PASSES, OWNED = 3, 4
"""Passes over the gradient buffer: set to zero (a write), divided by the ranks (a read and a write); and over the share that a rank
owns: norm (a read), clipping (a read and a write), step (a read). Source: Megatron-LM `megatron/core/distributed/
param_and_grad_buffer.py` (start_grad_sync, reset), `megatron/core/optimizer/clip_grads.py`."""
DP_HIDDEN, REDUCE_EXPOSED, GATHER_EXPOSED = 0.8, 0.25, 0.125
"""Overlap, all judgement: the share of one backward (forward) under which gradients (parameters) hide and what of them shows at least."""
EXPOSED = ("tp", "gtp", "cp", "ep", "pp", "gradient reduction", "parameter gather")
"""Parts of a step that are communication."""


class Staged(Protocol):
    """A stage with its rank."""

    @property
    def rank(self) -> Rank: ...


class Estimated(Protocol):
    """What a step time is computed of: an `Estimate`, which stands above this room."""

    @property
    def job(self) -> TrainingJob: ...
    @property
    def stages(self) -> Sequence[Staged]: ...
    @property
    def declarer(self) -> Declarer: ...


@dataclass(frozen=True)
class Throughput:
    """A step in seconds, where its time goes, and rates. `parts` sum to `step`."""

    step: float
    tokens_per_s_gpu: float
    tflops_gpu: float
    mfu: float
    bubble: float
    exposed: float
    parts: dict[str, float]
    measured_rates: bool


def collectives(m: Machine, c: Context, rank: Rank) -> tuple[Any, Any]:
    """(gradient reduction, parameter gather) of a rank, in seconds before any overlap."""
    t, layout = c.training, c.layout
    reduce: Any = 0.0
    gather: Any = 0.0
    for buffer in rank.buffers:
        ranks = layout.shards(expert=buffer.expert)
        stride = layout.ep * layout.etp * layout.egtp if buffer.expert else layout.tp * layout.gtp
        grads = buffer.elements * DTYPE_BYTES[buffer.grad_dtype]
        weights = buffer.elements * (operand_bytes(buffer.recipe) if buffer.recipe else DTYPE_BYTES[buffer.param_dtype])
        held = buffer.elements > 0  # of an array of stages, some have no such parameters
        if active(c):
            scatter = collective(m, "reduce_scatter", grads, ranks, stride)
            whole = collective(m, "all_gather", weights, ranks, stride)
            reduce = reduce + chosen(held, scatter + 2 * whole, 0.0)
        elif t.use_distributed_optimizer:
            reduce = reduce + chosen(held, collective(m, "reduce_scatter", grads, ranks, stride), 0.0)
            gather = gather + chosen(held, collective(m, "all_gather", weights, ranks, stride), 0.0)
        else:
            reduce = reduce + chosen(held, collective(m, "all_reduce", grads, ranks, stride), 0.0)
    return reduce, gather


def exposed(c: Context, reduce: Any, gather: Any, forward: Any, backward: Any) -> tuple[Any, Any]:
    """(gradient reduction, parameter gather) that no compute of a stage hides."""
    t = c.training
    if active(c):  # of every microbatch, beside its compute
        return shown(reduce, forward + backward), 0.0 * gather
    if t.overlap_grad_reduce:
        reduce = highest(reduce - DP_HIDDEN * backward, REDUCE_EXPOSED * reduce)
    if t.overlap_param_gather:
        gather = highest(gather - DP_HIDDEN * forward, GATHER_EXPOSED * gather)
    return reduce, gather


def optimizer(m: Machine, c: Context, rank: Rank) -> Any:
    """Seconds of the optimizer step: what it keeps is read and written, as are fp32 copies of gradients and moments that exist
    during the step; gradients are read and weights written; both before that pass through memory (PASSES, OWNED). What is offloaded is
    stepped on the host. State that is there between steps is copied in and out, one after the other (no public rate; an upper bound)."""
    away = state_in_host_memory(c, rank.buffers)
    kept = sum(s.nbytes for s in rank.states if s.part == "optimizer" and not (away and s.of_step)) + away
    owned: Any = 0
    grads: Any = 0
    for buffer in rank.buffers:
        grad = DTYPE_BYTES[buffer.grad_dtype]
        owned = owned + buffer.owned * (OWNED * grad + DTYPE_BYTES[buffer.param_dtype])
        grads = grads + buffer.numel * grad
    return (2 * kept + owned + grads * PASSES) / m.hbm + offloaded_seconds(m, rank) + 2 * away / link(m)


def step_parts(
    m: Machine,
    declarer: Declarer,
    ranks: Sequence[Rank],
    microbatches: Any,
    stands: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Where the seconds of a step go. `stands` says which of `ranks` stands for each of the pipeline's (default: each for itself)."""
    c = declarer.context
    known: dict[Any, Any] = {}

    def shared(key: Any, make: Callable[[], Any]) -> Any:
        if key not in known:
            known[key] = make()
        return known[key]

    times = [stage_time(m, declarer, rank, shared) for rank in ranks]
    pace = reduce(_slower, times)
    names = ("compute", "recompute", "tp", *(("gtp",) if c.layout.shards_weights else ()), "cp", "ep", "pp", "host")
    parts = {name: microbatches * getattr(pace, name) for name in names}
    parts["bubble"] = 0.0
    if len(stands or ranks) > 1:
        chunks = chunk_times(m, declarer, ranks, shared)
        seconds = [way for at in stands or range(len(ranks)) for one in chunks[at] for way in one]
        parts["bubble"] = (
            pipeline_seconds(schedule_of(c, len(ranks[0].plans)), microbatches, seconds) - microbatches * pace.total
        )
    exposures = [
        exposed(c, *collectives(m, c, rank), one.forward, one.backward) for rank, one in zip(ranks, times, strict=True)
    ]
    often = microbatches if active(c) else 1
    parts["gradient reduction"] = reduce(highest, (pair[0] for pair in exposures)) * often
    parts["parameter gather"] = reduce(highest, (pair[1] for pair in exposures))
    parts["optimizer"] = reduce(highest, (optimizer(m, c, rank) for rank in ranks))
    parts["other"] = OVERHEAD
    return parts


def schedule_of(c: Context, vp: int) -> Schedule:
    """The schedule of a pipeline whose ranks have so many chunks."""
    layout = c.layout
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    return Schedule(layout.pp, vp, group, c.training.overlap_moe_expert_parallel_comm)


def _slower(a: StageTime, b: StageTime) -> StageTime:
    """The stage that takes longer."""
    return b if b.total > a.total else a


def throughput(estimate: Estimated, efficiency: Efficiency | None = None) -> Throughput:
    """The step time of an estimated job. Rates are per GPU; `mfu` is of the dense bf16 peak."""
    job = estimate.job
    m = machine(job.gpu, efficiency, job.env.network_gbs)
    return timed(
        job, m, step_parts(m, estimate.declarer, [stage.rank for stage in estimate.stages], job.num_microbatches)
    )


def timed(job: TrainingJob, m: Machine, parts: dict[str, float]) -> Throughput:
    """The step time of a job from its parts (`step_parts`)."""
    step, t = total(parts.values()), job.training
    assert t.global_batch_size is not None
    tokens = t.global_batch_size * t.seq_length / step / job.layout.world_size
    flops = tokens * training_flops(job.model, t)
    exposed = total(parts.get(name, 0.0) for name in EXPOSED)
    return Throughput(
        step, tokens, flops / 1e12, flops / m.peak(""), parts["bubble"] / step, exposed / step, parts, m.measured
    )


def forward_flops(model: Model, training: Training) -> float:
    """Forward FLOPs per token of the whole model."""
    c = Context(model, Layout(), replace(training, peft="none"), "cudnn")
    total = sum(count * _flops(c, layer_unit(c, kind)) for kind, count in Counter(model.kinds).items())
    total += _flops(c, output_unit(c, owns_weight=True, shared=False))
    return total + (_flops(c, mtp_unit(c, owns_embedding=False)) if model.mtp else 0.0)


def _flops(c: Context, unit: Declaration) -> float:
    found = 0.0
    for op in flattened(unit.unit.items):
        for one in op.work:
            if isinstance(one, Gemm) and one.counted:
                rows = c.tokens.size * c.model.moe_router_topk if one.experts is not None else one.rows
                found += 2 * rows * one.n * one.k
            elif not isinstance(one, Gemm) and getattr(one, "counted", True):
                found += one.flops
    return found / c.tokens.size


def training_flops(model: Model, training: Training) -> float:
    """FLOPs per token of a training step."""
    return 3 * forward_flops(model, training)


COPIED = 4 + 4
"""Bytes over the link for each parameter: its fp32 gradient to the host, the fp32 parameter back."""
TOUCHED = 4 * 4 + 3 * 4
"""Bytes of host memory that the step passes over for each parameter: parameter, gradient and two moments are read, all but the
gradient written."""
LINK = {"ampere": 32e9, "ada": 32e9, "hopper": 64e9, "blackwell": 64e9}
"""Bytes a second between an x86 host and a GPU, one way: PCIe 4 and 5 with 16 lanes (data sheets of the GPUs)."""
GRACE_LINK = 450e9
"""The same of NVLink-C2C (GH200 and GB200 data sheets: 900 GB/s both ways)."""
LINK_SHARE = 0.84
"""Share of it that a copy from pinned memory reaches, as copies between GPUs do."""
CORE = {"x86": 12e9, "grace": 30e9}
"""Bytes a second that one core moves through memory (judgement): torchrun gives each process one thread unless OMP_NUM_THREADS says
otherwise (pytorch `torch/distributed/run.py`)."""


def offloaded_seconds(m: Machine, rank: Rank) -> Any:
    """Seconds of the offloaded part of an optimizer step on one rank; 0 where nothing is offloaded."""
    count = sum((buffer.offloaded for buffer in rank.buffers), 0)
    return count * (COPIED / link(m) + TOUCHED / CORE[m.gpu.host])


def link(m: Machine) -> float:
    """Bytes a second that a copy between host and GPU reaches, one way."""
    return (GRACE_LINK if m.gpu.host == "grace" else LINK[m.gpu.family]) * LINK_SHARE
