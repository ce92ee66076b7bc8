"""The forwards and backwards of one training step of a rank, in order, with the microbatch that each runs.

How memory goes inside a forward or a backward of a chunk: a point for each layer, the highest moment of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..dataclass import dataclass
from ..modules.context import Context
from ..rank.chunks import ChunkPlan
from ..rank.rank import Rank
from ..rank.schedule import Direction, Occupancy, Step, enough_microbatches, whole

MOST_PASSES = 1024
"""Forwards and backwards of a rank that are listed. Of a longer step the middle is left out, where the schedule repeats itself."""


class Pass(NamedTuple):
    """A step of the schedule, its microbatch, that of the backward beside it (-1: none), and what is kept in flight at it."""

    step: Step
    microbatch: int
    beside: int
    kept: int


class LeftOut(NamedTuple):
    """The middle of a long step, where the schedule repeats itself: behind which of the moments, how many of them, of how many
    microbatches; and how many moments before it are what repeats."""

    behind: int
    moments: int
    microbatches: int
    repeats: int


@dataclass(frozen=True)
class Listed:
    """The microbatches of a step that are listed, and how the pipeline orders them."""

    pp: int
    vp: int
    group: int
    together: bool
    num_microbatches: int
    listed: int

    @property
    def left_out(self) -> int:
        """Microbatches that are not listed."""
        return self.num_microbatches - self.listed

    @property
    def period(self) -> int:
        """Microbatches after which the middle of the schedule repeats itself."""
        return self.group if self.vp > 1 else 1

    def schedule(self, pp_rank: int) -> Occupancy:
        """The steps of a rank that are listed."""
        return whole(self.pp, self.vp, pp_rank, self.listed, self.group, self.together)

    def span(self, microbatches: int) -> int:
        """Steps of a rank that run so many microbatches in the middle of the schedule."""
        return microbatches * self.vp * (1 if self.together else 2)

    def cut(self, schedule: Occupancy) -> int:
        """Steps in front of the ones left out: up to the middle of the alternating forwards and backwards, in whole groups."""
        turns = self.listed // self.period * self.period * self.vp - schedule.num_warmup
        return schedule.num_warmup + turns // 2 * (1 if self.together else 2)

    def hole(self, pp_rank: int) -> LeftOut | None:
        """What a rank leaves out, None where every microbatch is listed."""
        if not self.left_out:
            return None
        behind = 1 + self.cut(self.schedule(pp_rank))
        return LeftOut(behind, self.span(self.left_out), self.left_out, self.span(self.period))


def listing(c: Context, vp: int, num_microbatches: int, most: int = MOST_PASSES) -> Listed:
    """Which microbatches are listed: all, or as many as `most` passes hold, but each step of the schedule at least once."""
    layout, together = c.layout, c.training.overlap_moe_expert_parallel_comm
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    least = enough_microbatches(layout.pp, vp, num_microbatches, group, a2a_overlap=together)
    least = min(least + (2 if vp == 1 else 0), num_microbatches)  # one more before the middle, one behind it
    period = group if vp > 1 else 1
    fits = num_microbatches - max(-(-(num_microbatches - most // (2 * vp)) // period), 0) * period
    return Listed(layout.pp, vp, group, together, num_microbatches, max(least, fits))


def listed_passes(c: Context, rank: Rank, most: int = MOST_PASSES) -> tuple[Listed, list[Pass]]:
    """Which microbatches of a rank are listed, and their passes."""
    plan = listing(c, len(rank.plans), rank.num_microbatches, most)
    return plan, list(passes(plan.schedule(rank.pp_rank), [one.saved_bytes for one in rank.plans]))


def passes(schedule: Occupancy, saved: Sequence[int]) -> Iterator[Pass]:
    """Every step of a rank, whose chunks keep so much of each microbatch."""
    forwards, backwards = ([0] * schedule.order.vp for _ in range(2))
    for step, kept in schedule.held(saved, every=True):
        done = forwards if step.direction == "F" else backwards
        beside = backwards[step.beside] if step.beside >= 0 else -1
        yield Pass(step, done[step.chunk], beside, kept)
        done[step.chunk] += 1
        if step.beside >= 0:
            backwards[step.beside] += 1


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
