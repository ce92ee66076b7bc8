"""When each forward and backward of each stage runs: each waits for the stage before it and for its own lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..throughput.stages import ChunkTime
from .passes import Pass


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
