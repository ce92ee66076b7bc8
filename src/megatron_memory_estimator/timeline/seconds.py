"""Seconds of every moment of a step: the passes on their lanes, data parallelism and the optimizer before and after them.

When each forward and backward of each stage runs: each waits for the stage before it and for its own lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..rank.rank import Rank
from ..states.fsdp import active
from ..throughput.machine import machine
from ..throughput.stages import ChunkTime, chunk_times
from ..throughput.step import Estimated, step_parts
from .passes import Listed, Pass, passes


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


class Span(NamedTuple):
    """Seconds from the start of the pipeline at which something starts and ends."""

    start: float
    end: float


Key = tuple[str, int, int, int]
"""A forward ("F") or backward ("B") of a stage, its chunk, its microbatch."""


def lanes(orders: Sequence[Sequence[Pass]], times: Sequence[Sequence[ChunkTime]]) -> list[list[Span]]:
    """When each pass of each stage runs."""
    ended: dict[Key, float] = {}
    found: list[list[Span]] = [[] for _ in orders]
    left = sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            left -= _advance(stage, order, times, ended, found[stage])
        assert left < before, "the passes of the stages wait for one another"
    return found


def _advance(
    stage: int, order: Sequence[Pass], times: Sequence[Sequence[ChunkTime]], ended: dict[Key, float], lane: list[Span]
) -> int:
    """Run a stage until it waits for another: how many passes that were."""
    first, last, last_chunk = len(lane), len(times) - 1, len(times[0]) - 1
    while len(lane) < len(order):
        step, microbatch, beside, _ = order[len(lane)]
        start, seconds = lane[-1].end if lane else 0.0, 0.0
        runs = [(step.direction, step.chunk, microbatch)] + ([("B", step.beside, beside)] if beside >= 0 else [])
        for direction, chunk, index in runs:
            needs = _before(direction, stage, chunk, index, last, last_chunk)
            if needs is not None:
                if needs not in ended:
                    return len(lane) - first
                start = max(start, ended[needs])
            seconds += times[stage][chunk][0 if direction == "F" else 1]
        for direction, chunk, index in runs:
            ended[direction, stage, chunk, index] = start + seconds
        lane.append(Span(start, start + seconds))
    return len(lane) - first


def _before(direction: str, stage: int, chunk: int, microbatch: int, last: int, last_chunk: int) -> Key | None:
    """The pass that hands its tensor to this one; the last stage hands its forwards to the next chunk of the first."""
    if direction == "F":
        if stage:
            return "F", stage - 1, chunk, microbatch
        return ("F", last, chunk - 1, microbatch) if chunk else None
    if stage < last:
        return "B", stage + 1, chunk, microbatch
    return ("B", 0, chunk + 1, microbatch) if chunk < last_chunk else None
