"""Seconds of every moment of a step: the passes on their lanes, data parallelism and the optimizer before and after them."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..rank.rank import Rank
from ..states.fsdp import active
from ..throughput.machine import machine
from ..throughput.stages import ChunkTime, chunk_times
from ..throughput.step import Estimated, step_parts
from .lanes import Span, lanes
from .passes import Listed, passes


class Seconds(NamedTuple):
    """When everything of a step happens on one rank. `step` is the throughput model's time of the step."""

    step: float
    passes: list[Span]
    others: dict[str, Span]
    """What comes before and after the passes, by event."""


def seconds(estimate: Estimated, plan: Listed) -> list[Seconds]:
    """The seconds of the listed passes of every rank and of what is around them.

    Parameters are gathered before the first pass. Behind its last one a rank reduces gradients; the optimizer waits for all ranks.
    """
    m = machine(estimate.job.gpu, None, estimate.job.env.network_gbs)
    ranks = [stage.rank for stage in estimate.stages]
    parts = step_parts(m, estimate.declarer, ranks, plan.num_microbatches)
    times = chunk_times(m, estimate.declarer, ranks)
    reduced = parts["gradient reduction"]
    if active(estimate.declarer.context) and plan.pp == 1:  # of every microbatch
        each = reduced / (plan.num_microbatches * plan.vp)
        times = [[one._replace(backward=one.backward + each) for one in chunks] for chunks in times]
        reduced = 0.0
    return _of_ranks(plan, ranks, times, parts, reduced)


def _of_ranks(
    plan: Listed, ranks: list[Rank], times: list[list[ChunkTime]], parts: dict[str, Any], reduced: float
) -> list[Seconds]:
    """The seconds of every rank, whose chunks take so long."""
    schedules = [plan.schedule(rank.pp_rank) for rank in ranks]
    found = lanes([list(passes(one, (0,) * plan.vp)) for one in schedules], times)
    cuts = [plan.cut(one) for one in schedules]
    gap = _left_out(plan, found, cuts, times) if plan.left_out else 0.0
    first = parts["parameter gather"]
    over = first + gap + max(lane[-1].end for lane in found) + reduced
    done = over + parts["optimizer"]
    every = []
    for lane, cut in zip(found, cuts, strict=True):
        own = [
            Span(first + start + later, first + end + later)
            for place, (start, end) in enumerate(lane)
            for later in (gap if plan.left_out and place >= cut else 0.0,)
        ]
        others = {
            "begin": Span(0.0, first),
            "drain": Span(own[-1].end, own[-1].end),
            "finalize": Span(own[-1].end, over),
            "optimizer": Span(over, done),
            "end": Span(done, done + parts["other"]),
        }
        every.append(Seconds(sum(parts.values()), own, others))
    return every


def _left_out(plan: Listed, found: list[list[Span]], cuts: list[int], times: list[list[ChunkTime]]) -> float:
    """Seconds of what is left out: the slowest stage's last period before it, again and again."""
    slowest = max(range(len(times)), key=lambda stage: sum(map(sum, times[stage])))
    lane, cut = found[slowest], cuts[slowest]
    return (lane[cut].start - lane[cut - plan.span(plan.period)].start) * (plan.left_out / plan.period)
