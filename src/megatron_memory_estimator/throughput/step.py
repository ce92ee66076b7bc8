"""Time of a training step: the slowest stage times the microbatches, the pipeline's bubble, data parallelism, the optimizer.

stage    = sum over its layers, embedding, MTP and head of max(kernels + exposed communication, launches)
pipeline = microbatches * slowest stage + (pp - 1) / vp * mean stage
step     = pipeline + exposed data-parallel communication + optimizer + 20 ms
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol

from ..dataclass import dataclass
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..rank.declare import Declarer
from ..rank.keys import routed
from ..rank.rank import Rank
from ..states.fsdp import active
from ..tape.tensor import DTYPE_BYTES, chosen
from .flops import training_flops
from .kernels import operand_bytes
from .links import NETWORK_SHARE, collective, highest, inside
from .machine import Efficiency, Machine, machine
from .units import Costs, Passed, passed

OVERHEAD = 20e-3
"""Seconds of a step outside the model: data, logging, the loss's reduction (set after looking at published steps)."""
PASSES, OWNED = 3, 4
"""Passes over the gradient buffer: set to zero (a write), divided by the ranks (a read and a write); and over the share that a rank
owns: norm (a read), clipping (a read and a write), step (a read). Source: Megatron-LM `megatron/core/distributed/
param_and_grad_buffer.py` (start_grad_sync, reset), `megatron/core/optimizer/clip_grads.py`."""
COPY_SHARE = 0.84
"""Share of NVLink's one-way peak that a copy from one GPU to another reaches: H100 376 of 450 GB/s, GB200 746 of 900
(stas00/ml-engineering `network/README.md`)."""
DP_HIDDEN, REDUCE_EXPOSED, GATHER_EXPOSED, FSDP_HIDDEN, FSDP_EXPOSED, P2P_EXPOSED = 0.8, 0.25, 0.125, 0.85, 0.05, 0.15
"""Overlap, all judgement: the share of one backward (forward) under which gradients (parameters) hide and what of them shows at least;
the same of FSDP; what shows of interleaved sends."""


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


class StageTime(NamedTuple):
    """Seconds of one microbatch on one stage, or on one of its units, by part. `forward` and `backward` count all but pp again."""

    compute: Any = 0.0
    recompute: Any = 0.0
    tp: Any = 0.0
    cp: Any = 0.0
    ep: Any = 0.0
    pp: Any = 0.0
    host: Any = 0.0
    backward: Any = 0.0
    forward: Any = 0.0

    @property
    def total(self) -> Any:
        """Forward and backward of one microbatch."""
        return self.compute + self.recompute + self.tp + self.cp + self.ep + self.pp + self.host


Shared = Callable[[Any, Callable[[], Any]], Any]
"""Makes what a key stands for, or knows it."""
TimeKey = tuple[Any, ...]
"""A unit as far as time goes: ("layer", its kind, the share of its stage that is recomputed), or ("part", its key)."""


def timed_units(declarer: Declarer, rank: Rank) -> list[tuple[TimeKey, int]]:
    """The units of a stage and how many of each."""
    c = declarer.context
    found: list[tuple[TimeKey, int]] = []
    for plan in rank.plans:
        chunk = plan.chunk
        kinds = [declarer.kind(i) for i in chunk.layers]
        share = recomputed_share(c, len(kinds))
        found += [(("layer", kind, share), kinds.count(kind)) for kind in dict.fromkeys(kinds)]
        found += [(("part", key), 1) for keys in declarer.parts(chunk) for key in keys]
    return found


def unit_time(m: Machine, declarer: Declarer, key: TimeKey, shared: Shared | None = None) -> StageTime:
    """One microbatch through one unit. `shared` knows what does not depend on recomputation, or makes it."""

    def make() -> Passed:
        known = shared(("costs", key[1]), lambda: _costs(declarer.context, key[1])) if shared else None
        if key[0] == "layer":
            return passed(m, declarer.context_of(key[1]), declarer.layer(key[1]), known)
        return passed(m, declarer.context, declarer.part(key[1]).unit, known)

    one = shared(("seconds", key[1]), make) if shared else make()
    return _seconds(_full(one, key[2]) if key[0] == "layer" else one)


def _costs(c: Context, key: object) -> Costs:
    """Costs of ops, for trainings that route alike."""
    if routed(key):
        _ = c.routing
    return Costs()


def stage_time(m: Machine, declarer: Declarer, rank: Rank, shared: Shared | None = None) -> StageTime:
    """One microbatch through all chunks of a stage."""
    total = StageTime()
    for key, count in timed_units(declarer, rank):
        total = StageTime(*(a + b * count for a, b in zip(total, unit_time(m, declarer, key, shared), strict=True)))
    c = declarer.context
    return total._replace(pp=p2p(m, c, len(rank.plans)) * carried(c, rank))


def carried(c: Context, rank: Rank) -> float:
    """Hidden states that cross the borders of a stage at once, on average: with attention residuals the bank goes along."""
    layers = rank.plans[0].chunk.layers
    if not c.model.attn_res_block_size or not layers:
        return 1
    return 1 + (c.model.rows_before(layers[0]) + c.model.rows_before(layers[-1] + 1)) / 2


def p2p(m: Machine, c: Context, chunks: Any) -> Any:
    """Exposed sends and receives of one microbatch between stages."""
    size = c.residual("").nbytes
    pp = c.layout.pp
    stride = c.layout.world_size // pp
    rate = chosen(inside(m, pp, stride), m.speed.nvlink * COPY_SHARE, m.speed.network * NETWORK_SHARE)
    shown = chosen((chunks > 1) & c.training.overlap_p2p_comm, P2P_EXPOSED, 1.0)
    return chosen(pp > 1, chunks * 2 * size / (rate * 1e9) * shown, 0.0 * size)


def recomputed_share(c: Context, layers: int) -> float:
    """The share of a chunk's layers that full recomputation covers."""
    t = c.training
    if t.recompute_granularity != "full":
        return 0.0
    if t.recompute_method == "block":
        return min((t.recompute_num_layers or 0) / max(layers, 1), 1.0)
    return 1.0


def _full(one: Passed, share: float) -> Passed:
    """With full recomputation the forward of a checkpointed layer runs again in its backward."""
    if not share:
        return one
    again = one.host + one.checkpoint
    return one._replace(recompute=one.forward.total * share, host_backward=one.host_backward + again * share)


def _seconds(one: Passed) -> StageTime:
    ahead, behind = one.forward, one.backward
    wait = highest(one.host - ahead.total, 0.0)
    wait_back = highest(one.host_backward - behind.total - one.recompute, 0.0)
    return StageTime(
        compute=ahead.compute + behind.compute, recompute=one.recompute, tp=ahead.tp + behind.tp, cp=ahead.cp + behind.cp,
        ep=ahead.ep + behind.ep, host=wait + wait_back, forward=ahead.total + wait,
        backward=behind.total + one.recompute + wait_back,
    )  # fmt: skip


def collectives(m: Machine, c: Context, rank: Rank) -> tuple[Any, Any]:
    """(gradient reduction, parameter gather) of a rank, in seconds before any overlap."""
    t, layout = c.training, c.layout
    reduce: Any = 0.0
    gather: Any = 0.0
    for buffer in rank.buffers:
        ranks = layout.shards(expert=buffer.expert)
        stride = layout.ep * layout.etp if buffer.expert else layout.tp
        grads = buffer.numel_unpadded * DTYPE_BYTES[buffer.grad_dtype]
        weights = buffer.numel_unpadded * (
            operand_bytes(buffer.recipe) if buffer.recipe else DTYPE_BYTES[buffer.param_dtype]
        )
        held = buffer.numel_unpadded > 0  # of an array of stages, some have no such parameters
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
        return highest(reduce - FSDP_HIDDEN * (forward + backward), FSDP_EXPOSED * reduce), 0.0 * gather
    if t.overlap_grad_reduce:
        reduce = highest(reduce - DP_HIDDEN * backward, REDUCE_EXPOSED * reduce)
    if t.overlap_param_gather:
        gather = highest(gather - DP_HIDDEN * forward, GATHER_EXPOSED * gather)
    return reduce, gather


def optimizer(m: Machine, c: Context, rank: Rank) -> Any:
    """Seconds of the optimizer step: what it keeps is read and written, as are fp32 copies of gradients and moments that exist
    during the step; gradients are read and weights written; both before that pass through memory (PASSES, OWNED)."""
    kept = sum(state.nbytes for state in rank.states if state.part == "optimizer")
    owned: Any = 0
    grads: Any = 0
    for buffer in rank.buffers:
        grad = DTYPE_BYTES[buffer.grad_dtype]
        owned = owned + buffer.owned * (OWNED * grad + DTYPE_BYTES[buffer.param_dtype])
        grads = grads + buffer.numel * grad
    return (2 * kept + owned + grads * PASSES) / m.hbm


def step_parts(
    m: Machine, declarer: Declarer, ranks: Sequence[Rank], microbatches: Any, copies: Sequence[int] | None = None
) -> dict[str, Any]:
    """Where the seconds of a step go, for one layout or an array of them; `ranks` are the pipeline's, each `copies` times."""
    c = declarer.context
    known: dict[Any, Any] = {}

    def shared(key: Any, make: Callable[[], Any]) -> Any:
        if key not in known:
            known[key] = make()
        return known[key]

    times = [stage_time(m, declarer, rank, shared) for rank in ranks]
    pace = reduce(_slower, times)
    vp = len(ranks[0].plans)
    parts = {
        name: microbatches * getattr(pace, name) for name in ("compute", "recompute", "tp", "cp", "ep", "pp", "host")
    }
    parts["bubble"] = (c.layout.pp - 1) / vp * _mean([one.total for one in times], copies or [1] * len(times))
    exposures = [
        exposed(c, *collectives(m, c, rank), one.forward, one.backward) for rank, one in zip(ranks, times, strict=True)
    ]
    often = microbatches if active(c) else 1
    parts["gradient reduction"] = reduce(highest, (pair[0] for pair in exposures)) * often
    parts["parameter gather"] = reduce(highest, (pair[1] for pair in exposures))
    parts["optimizer"] = reduce(highest, (optimizer(m, c, rank) for rank in ranks))
    parts["other"] = OVERHEAD
    return parts


def _mean(values: Sequence[Any], copies: Sequence[int]) -> Any:
    return sum(value * count for value, count in zip(values, copies, strict=True)) / sum(copies)


def _slower(a: StageTime, b: StageTime) -> StageTime:
    """The stage that takes longer; of arrays of layouts the longer of each."""
    longer = b.total > a.total
    return StageTime(*(chosen(longer, y, x) for x, y in zip(a, b, strict=True)))


def throughput(estimate: Estimated, efficiency: Efficiency | None = None) -> Throughput:
    """The step time of an estimated job. Rates are per GPU; `mfu` is of the dense bf16 peak."""
    job = estimate.job
    m = machine(job.gpu, efficiency, job.env.network_gbs)
    parts = step_parts(m, estimate.declarer, [stage.rank for stage in estimate.stages], job.num_microbatches)
    step = sum(parts.values())
    t = job.training
    assert t.global_batch_size is not None
    tokens = t.global_batch_size * t.seq_length / step / job.layout.world_size
    flops = tokens * training_flops(job.model, t)
    exposed = sum(parts[name] for name in ("tp", "cp", "ep", "pp", "gradient reduction", "parameter gather"))
    return Throughput(
        step, tokens, flops / 1e12, flops / m.peak(""), parts["bubble"] / step, exposed / step, parts, m.measured
    )
