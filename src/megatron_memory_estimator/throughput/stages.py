"""Seconds of one microbatch on the stages of a pipeline and on their chunks, from the seconds of their units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ..modules.context import Context
from ..modules.embedding import TABLE
from ..rank.chunks import ChunkPlan
from ..rank.declare import Declarer
from ..rank.keys import routed
from ..rank.rank import Rank
from ..rank.weight_shards import chain_of, summed_dtype
from ..tape.tensor import DTYPE_BYTES, chosen
from .links import NETWORK_SHARE, collective, highest, inside
from .machine import Machine
from .units import Costs, Passed, passed

COPY_SHARE = 0.84
"""Share of NVLink's one-way peak that a copy from one GPU to another reaches: H100 376 of 450 GB/s, GB200 746 of 900
(stas00/ml-engineering `network/README.md`)."""
P2P_EXPOSED = 0.15
"""What shows of interleaved sends (judgement)."""
SHARDS_HIDDEN, SHARDS_EXPOSED = 0.85, 0.05
"""The share of a microbatch's compute under which weights are gathered and gradients summed, of full sharding and of weight shards, and
what of them shows at least (judgement)."""


class StageTime(NamedTuple):
    """Seconds of one microbatch on one stage, or on one of its units, by part. `forward` and `backward` count all but pp again."""

    compute: Any = 0.0
    recompute: Any = 0.0
    tp: Any = 0.0
    gtp: Any = 0.0
    cp: Any = 0.0
    ep: Any = 0.0
    pp: Any = 0.0
    host: Any = 0.0
    backward: Any = 0.0
    forward: Any = 0.0

    @property
    def total(self) -> Any:
        """Forward and backward of one microbatch."""
        return self.compute + self.recompute + self.tp + self.gtp + self.cp + self.ep + self.pp + self.host


Shared = Callable[[Any, Callable[[], Any]], Any]
"""Makes what a key stands for, or knows it."""
TimeKey = tuple[Any, ...]
"""A unit as far as time goes: ("layer", its kind, the share of its stage that is recomputed), or ("part", its key)."""


def timed_units(declarer: Declarer, plans: Sequence[ChunkPlan]) -> list[tuple[TimeKey, int]]:
    """The units of some chunks and how many of each."""
    c = declarer.context
    found: list[tuple[TimeKey, int]] = []
    for plan in plans:
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
        return passed(m, declarer.context, declarer.part_unit(key[1]), known)

    one = shared(("seconds", key[1]), make) if shared else make()
    if key[0] != "layer":
        return _seconds(one)
    return _seconds(_full(one, key[2]), together=declarer.context.training.overlap_moe_expert_parallel_comm)


def _costs(c: Context, key: object) -> Costs:
    """Costs of ops, for trainings that route alike."""
    if routed(key):
        _ = c.routing
    return Costs()


def stage_time(m: Machine, declarer: Declarer, rank: Rank, shared: Shared | None = None) -> StageTime:
    """One microbatch through all chunks of a stage."""
    total = StageTime()
    for key, count in timed_units(declarer, rank.plans):
        total = StageTime(*(a + b * count for a, b in zip(total, unit_time(m, declarer, key, shared), strict=True)))
    c = declarer.context
    if c.layout.shards_weights:
        sent = sum(map(sum, (shard_seconds(m, declarer, plan, shared) for plan in rank.plans)))
        total = total._replace(gtp=sent)
    return total._replace(pp=p2p(m, c, len(rank.plans)) * carried(c, rank))


def shown(sent: Any, compute: Any) -> Any:
    """What compute does not hide of the collectives of full sharding or of weight shards."""
    return highest(sent - SHARDS_HIDDEN * compute, SHARDS_EXPOSED * sent)


def shard_seconds(m: Machine, declarer: Declarer, plan: ChunkPlan, shared: Shared | None = None) -> tuple[Any, Any]:
    """What shows of the collectives of weight shards in the forward and in the backward of a chunk: each weight is gathered in both, an
    embedding in the forward alone, and its gradient is summed in the backward over the ranks that share it."""
    c = declarer.context
    ahead = behind = 0.0
    for one in chain_of(c, [(run.params, run.copies) for run in plan.runs]):
        ranks, stride = (c.layout.egtp, c.layout.etp * c.layout.ep) if one.chain else (c.layout.gtp, c.layout.tp)
        whole = one.copies * one.rows * prod(one.columns)
        gather = collective(m, "all_gather", whole * DTYPE_BYTES[c.dtype], ranks, stride)
        ahead += gather
        behind += collective(m, "reduce_scatter", whole * DTYPE_BYTES[summed_dtype(c, one)], ranks, stride)
        behind += gather if one.name != TABLE else 0.0
    forward, backward = _ways(m, declarer, plan, {}, shared, 0.0)
    return shown(ahead, forward), shown(behind, backward)


class ChunkTime(NamedTuple):
    """Seconds of one microbatch through a chunk, with what shows of sending it on."""

    forward: Any
    backward: Any


def chunk_times(
    m: Machine, declarer: Declarer, ranks: Sequence[Rank], shared: Shared | None = None
) -> list[list[ChunkTime]]:
    """The times of the chunks of every stage."""
    known: dict[Any, StageTime] = {}
    found = []
    for rank in ranks:
        sent = p2p(m, declarer.context, len(rank.plans)) * carried(declarer.context, rank) / (2 * len(rank.plans))
        times = []
        for plan in rank.plans:
            ahead, behind = _ways(m, declarer, plan, known, shared, sent)
            if declarer.context.layout.shards_weights:
                more = shard_seconds(m, declarer, plan, shared)
                ahead, behind = ahead + more[0], behind + more[1]
            times.append(ChunkTime(ahead, behind))
        found.append(times)
    return found


def _ways(
    m: Machine, declarer: Declarer, plan: ChunkPlan, known: dict[Any, StageTime], shared: Shared | None, sent: Any
) -> tuple[Any, Any]:
    """Seconds of the units of a chunk, forward and backward, with those of sending it on; `known` are those of units that were timed."""
    ahead, behind = sent, sent
    for key, count in timed_units(declarer, (plan,)):
        if key not in known:
            known[key] = unit_time(m, declarer, key, shared)
        ahead, behind = ahead + known[key].forward * count, behind + known[key].backward * count
    return ahead, behind


def carried(c: Context, rank: Rank) -> float:
    """Hidden states that cross the borders of a stage at once, on average: with attention residuals the bank goes along."""
    layers = rank.plans[0].chunk.layers
    if c.model.stream != "bank" or not layers:
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


def _seconds(one: Passed, *, together: bool = False) -> StageTime:
    """What the GPU does, and where it waits for launches: of each way, or of both where the forward of a microbatch runs beside the
    backward of another (Megatron-LM `combined_1f1b.py`: one CPU thread launches both)."""
    ahead, behind = one.forward, one.backward
    idle, idle_back = one.host - ahead.total, one.host_backward - behind.total - one.recompute
    wait, wait_back = highest(idle, 0.0), highest(idle_back, 0.0)
    if together:
        wait = wait_back = highest(idle + idle_back, 0.0) / 2
    return StageTime(
        compute=ahead.compute + behind.compute, recompute=one.recompute, tp=ahead.tp + behind.tp, cp=ahead.cp + behind.cp,
        ep=ahead.ep + behind.ep, host=wait + wait_back, forward=ahead.total + wait,
        backward=behind.total + one.recompute + wait_back,
    )  # fmt: skip
