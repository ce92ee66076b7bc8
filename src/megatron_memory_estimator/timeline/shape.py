"""How memory goes inside a forward or a backward of a chunk: a point for each layer, the highest moment of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..rank.chunks import ChunkPlan
from ..rank.schedule import Direction

DIRECTIONS: dict[str, Direction] = {"forward": "F", "backward": "B"}
"""Passes by their event."""


MOST_POINTS = 40
"""Points of a pass of many layers, and its highest."""


class Shape(NamedTuple):
    """Points of a pass: `at` which share of its events, and how many bytes `below` the highest of them."""

    at: tuple[float, ...]
    below: tuple[int, ...]

    @property
    def top(self) -> float:
        """Where the highest point is."""
        return self.at[self.below.index(0)] if self.at else 0.5


def shapes_of(plans: Sequence[ChunkPlan]) -> dict[tuple[str, int], Shape]:
    """The points of each pass of a stage, by event and chunk."""
    return {
        (event, chunk): shape_of(plan, direction)
        for chunk, plan in enumerate(plans)
        for event, direction in DIRECTIONS.items()
    }


def shape_of(plan: ChunkPlan, direction: Direction) -> Shape:
    """The points of a pass, in the order in which its layers run."""
    order = [(index, copy) for index, run in enumerate(plan.runs) for copy in range(run.copies)]
    found: list[tuple[int, int]] = []
    done = 0
    for index, copy in order if direction == "F" else reversed(order):
        trace = plan.runs[index].trace
        events, before = (trace.forward, 0) if direction == "F" else (trace.backward, len(trace.forward))
        moments = plan.moments_of(direction, index, copy)
        if moments is not None:
            found.append((done + moments[1].event - before, moments[1].nbytes))
        done += len(events)
    highest = max((nbytes for _, nbytes in found), default=0)
    each = -(-len(found) // MOST_POINTS)
    found = [one for number, one in enumerate(found) if number % each == 0 or one[1] == highest] if found else found
    return Shape(tuple(round(at / done, 4) for at, _ in found), tuple(highest - nbytes for _, nbytes in found))
