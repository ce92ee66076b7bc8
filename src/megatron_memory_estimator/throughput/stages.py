"""Seconds of one microbatch on the stages of a pipeline and on their chunks, from the seconds of their units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..modules.context import Context
from ..rank.declare import Declarer
from ..rank.keys import routed
from ..rank.rank import Rank
from ..tape.tensor import chosen
from .links import NETWORK_SHARE, highest, inside
from .machine import Machine
from .units import Costs, Passed, passed

COPY_SHARE = 0.84
"""Share of NVLink's one-way peak that a copy from one GPU to another reaches: H100 376 of 450 GB/s, GB200 746 of 900
(stas00/ml-engineering `network/README.md`)."""
P2P_EXPOSED = 0.15
"""What shows of interleaved sends (judgement)."""


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
    for key, count in timed_units(declarer, rank):
        total = StageTime(*(a + b * count for a, b in zip(total, unit_time(m, declarer, key, shared), strict=True)))
    c = declarer.context
    return total._replace(pp=p2p(m, c, len(rank.plans)) * carried(c, rank))


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
            ahead, behind = sent, sent
            for key, count in timed_units(declarer, replace(rank, plans=(plan,))):
                if key not in known:
                    known[key] = unit_time(m, declarer, key, shared)
                ahead, behind = ahead + known[key].forward * count, behind + known[key].backward * count
            times.append(ChunkTime(ahead, behind))
        found.append(times)
    return found


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
