"""When each forward and backward of each stage runs: each waits for the stage before it and for its own lane.

The step time of `throughput/step.py` takes the mean stage for filling and draining the pipeline, here each takes its own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..rank.declare import Declarer
from ..rank.rank import Rank
from ..throughput.machine import Machine
from ..throughput.step import StageTime, carried, p2p, timed_units, unit_time
from .passes import Pass


class Span(NamedTuple):
    """Seconds from the start of the pipeline at which something starts and ends."""

    start: float
    end: float


class ChunkTime(NamedTuple):
    """Seconds of one microbatch through a chunk, with what shows of sending it on."""

    forward: float
    backward: float


def chunk_times(m: Machine, declarer: Declarer, ranks: Sequence[Rank]) -> list[list[ChunkTime]]:
    """The times of the chunks of every stage."""
    known: dict[Any, StageTime] = {}
    found = []
    for rank in ranks:
        sent = p2p(m, declarer.context, len(rank.plans)) * carried(declarer.context, rank) / (2 * len(rank.plans))
        times = []
        for plan in rank.plans:
            ahead, behind = sent, sent
            for key, count in timed_units(declarer, replace(rank, plans=(plan,))):
                one = known.get(key) or known.setdefault(key, unit_time(m, declarer, key))
                ahead, behind = ahead + one.forward * count, behind + one.backward * count
            times.append(ChunkTime(ahead, behind))
        found.append(times)
    return found


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
