"""What a rank has allocated along one training step: before, at most during, and after each forward and backward, and what follows.

Bytes are those that `rank/peak.py` takes the maximum of, in the order of the schedule. Boundary tensors of the pipeline are counted
as it counts them: all that a forward (a backward) ever sees, at each, and between two passes those of the one that follows.

The named tensors of any moment of a training step: what `explain` lists of the peak, of every other moment too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple, cast, get_args

from ..errors import ConfigError
from ..rank.boundary import pipeline_tensors, resting_tensors
from ..rank.captures import capturing, pool
from ..rank.peak import Closing, Peak, Running, closing, draining, drains, label_of, running_in
from ..rank.rank import PARTS, Candidate, Rank, Row
from ..rank.rows import (
    boundary_rows,
    breakdown,
    merged,
    rows_at,
    rows_at_peak,
    rows_at_rest,
    running_rows,
    saved_rows,
    state_rows,
)
from ..rank.schedule import Direction, Occupancy, Step
from ..wording import shown
from .passes import MOST_PASSES, Listed, Pass, listed_passes

Event = Literal[
    "begin", "forward", "backward", "forward beside backward", "drain", "finalize", "optimizer", "end", "capture"
]
"""What a moment is: a pass of the schedule, or what comes before and after all of them. A capture of CUDA graphs is once in a run."""
EVENTS: dict[Direction, Event] = {"F": "forward", "B": "backward"}
NONE = -1
"""No chunk, no microbatch."""

Parts = dict[str, int]
"""Bytes by part (`rank.PARTS`)."""


class Moment(NamedTuple):
    """A stretch of the step: what runs, the bytes allocated when it starts, at most, and when it ends, and its seconds if known.

    `parts` are those at most; `label` is what runs then. `beside` is the chunk whose backward runs with a forward.
    """

    event: Event
    label: str
    parts: Parts
    start_bytes: int
    highest_bytes: int
    end_bytes: int
    in_flight: int = 0
    chunk: int = NONE
    microbatch: int = NONE
    beside: int = NONE
    beside_microbatch: int = NONE
    start_s: float | None = None
    end_s: float | None = None

    def later(self, microbatches: int) -> Moment:
        """The same of so many microbatches later."""
        here, beside = (
            place if place == NONE else place + microbatches for place in (self.microbatch, self.beside_microbatch)
        )
        return self._replace(microbatch=here, beside_microbatch=beside)


class Level(NamedTuple):
    """The most that a pass has allocated beyond state and what is kept in flight."""

    nbytes: int
    parts: Parts
    running: Running


def added(*several: Parts) -> Parts:
    """The sum, part by part."""
    return {name: sum(parts[name] for parts in several) for name in several[0]}


class Levels:
    """The bytes of a rank at any moment of its schedule."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.saved = [plan.saved_bytes for plan in rank.plans]
        self.settled = breakdown(list(state_rows(rank, ("setup", "first step"))))
        self.state = sum(self.settled.values())
        passing = any(plan.runs for plan in rank.plans)  # of a stage without any unit the peak counts what rests
        self.pipe = {
            way: sum(t.nbytes for t in (pipeline_tensors(rank, way) if passing else resting_tensors(rank)))
            for way in get_args(Direction)
        }
        self.known: dict[tuple[str, int, int], Level] = {}

    @cached_property
    def left(self) -> int:
        """Bytes behind the last pass."""
        behind = draining(self.rank).nbytes if drains(self.rank) else sum(t.nbytes for t in resting_tensors(self.rank))
        return self.state + behind

    def between(self, kept: int, way: Direction) -> int:
        """Bytes when nothing runs and a forward ("F") or backward ("B") follows."""
        return self.state + kept + self.pipe[way]

    def begin(self, resting: Parts) -> Moment:
        """Tensors left from the step before, until the first forward has its boundary tensors."""
        start, end = sum(resting.values()), self.between(0, "F")
        parts = resting if start >= end else self.outside(end)
        return Moment("begin", "zero_grad_buffer", parts, start, max(start, end), end)

    def outside(self, nbytes: int, kept: int = 0) -> Parts:
        """The parts of so many bytes when nothing runs: state, what is kept in flight, and tensors at the boundaries."""
        return added(
            self.settled, {**dict.fromkeys(PARTS, 0), "activations": kept, "pipeline": nbytes - kept - self.state}
        )

    def level(self, step: Step) -> Level:
        """What runs at the largest moment of a step."""
        key = step.direction, step.chunk, step.beside
        if key not in self.known:
            found = running_in(self.rank, step, self.saved)
            top = max(found, key=lambda one: one.nbytes, default=Running(0, (), ()))  # of a chunk without any unit
            rows = [
                row
                for chunk, moment in top.moments
                for row in running_rows(self.rank.plans[chunk], moment, {}, combined=step.beside >= 0)
            ]
            parts = breakdown(rows)
            parts["activations"] -= sum(self.saved[index] for index in top.apart)
            parts["pipeline"] += self.pipe[step.direction]
            self.known[key] = Level(top.nbytes + self.pipe[step.direction], parts, top)
        return self.known[key]

    def moment(self, one: Pass, after: Direction | None) -> Moment:
        """A pass; `after` is the direction of the one that follows, None for none."""
        step, kept = one.step, one.kept
        level = self.level(step)
        before = kept - (self.saved[step.chunk] if step.direction == "F" else 0)
        ends = step.beside if step.beside >= 0 else step.chunk if step.direction == "B" else NONE
        left = kept - (self.saved[ends] if ends >= 0 else 0)
        event: Event = "forward beside backward" if step.beside >= 0 else EVENTS[step.direction]
        highest, parts = self.state + kept + level.nbytes, added(self.settled, level.parts)
        parts["activations"] += kept
        end = self.left if after is None else self.between(left, after)
        if end > highest:  # boundary tensors of what follows
            highest, parts = end, self.outside(end, 0 if after is None else left)
        label = (
            label_of(self.rank, step, level.running.moments) if level.running.moments else f"{event} of an empty chunk"
        )
        return Moment(
            event, label, parts, self.between(before, step.direction), highest, end,
            step.in_flight, step.chunk, one.microbatch, step.beside, one.beside,
        )  # fmt: skip

    def alone(self, event: Event, candidate: Candidate, start: int, end: int) -> Moment:
        """A moment outside the schedule."""
        return Moment(event, candidate.label, parts_of(self.rank, candidate), start, self.state + candidate.nbytes, end)


def parts_of(rank: Rank, candidate: Candidate) -> Parts:
    """The parts of a moment outside the schedule."""
    return breakdown(rows_at_peak(rank, Peak(candidate, 0, 0, 0)))


def moments(rank: Rank, passes: list[Pass]) -> Iterator[Moment]:
    """The moments of a step whose forwards and backwards are these."""
    levels = Levels(rank)
    resting = breakdown(rows_at_rest(rank))
    steady = sum(resting.values())
    rest = steady - sum(s.nbytes for s in rank.states if s.since == "step")
    yield levels.begin(resting)
    following = [*(one.step.direction for one in passes[1:]), None]
    for one, after in zip(passes, following, strict=True):
        yield levels.moment(one, after)
    before = levels.left
    for event, candidate in closing(rank).items():
        after_it = steady if event == "optimizer" else rest
        yield levels.alone(event, candidate, before, after_it)
        before = after_it
    yield Moment("end", "between two steps", resting, steady, steady, steady)


def capture(rank: Rank) -> Moment | None:
    """The capture of CUDA graphs, before any step, beside the state and workspaces that exist then."""
    if pool(rank)[1] is None:
        return None
    candidate = capturing(rank)
    parts = parts_of(rank, candidate)
    highest = sum(parts.values())
    state = highest - candidate.nbytes
    return Moment("capture", candidate.label, parts, state, highest, state)


CAPTURE = -1
"""The number of the capture of CUDA graphs, which is no part of a step."""


class Alive(NamedTuple):
    """A moment, and every tensor alive when it has most allocated; their bytes add up to its highest ones."""

    moment: Moment
    rows: list[Row]


def alive(rank: Rank, index: int) -> Alive:
    """The tensors of a moment by its number in the whole step, also of one that a timeline leaves out. Raises ConfigError."""
    if index == CAPTURE:
        found = capture(rank)
        if found is None:
            raise ConfigError(f"moment {CAPTURE} is the capture of CUDA graphs, which this run does not have")
        return Alive(found, rows_at(rank, capturing(rank), rank.schedule))
    plan, passes = listed_passes(rank.context, rank, MOST_PASSES)
    every = list(moments(rank, passes))
    hole = plan.hole(rank.pp_rank)
    number = len(every) + (hole.moments if hole else 0)
    if not 0 <= index < number:
        raise ConfigError(f"moment {shown(index)} does not exist; the moments of this stage are 0 to {number - 1}")
    place, later = index, 0
    if hole and index >= hole.behind + hole.moments:
        place, later = index - hole.moments, hole.microbatches
    elif hole and index >= hole.behind:
        again, inside = divmod(index - hole.behind, hole.repeats)
        place, later = hole.behind - hole.repeats + inside, (1 + again) * plan.period
    return Alive(every[place].later(later), _rows(rank, plan, passes, place, every[place]))


def _rows(rank: Rank, plan: Listed, passes: list[Pass], place: int, moment: Moment) -> list[Row]:
    """The rows of a listed moment: the first is before all passes, and a few are behind them."""
    if (behind := closing(rank).get(cast(Closing, moment.event))) is not None:
        return rows_at(rank, behind, rank.schedule)
    if moment.event == "end" or (moment.event == "begin" and moment.start_bytes >= moment.end_bytes):
        return rows_at_rest(rank)
    return merged(list(waiting(rank, "F") if moment.event == "begin" else _of_pass(rank, plan, passes, place - 1)))


def waiting(rank: Rank, way: Direction) -> Iterator[Row]:
    """What is alive beside activations when nothing runs and a forward ("F") or backward ("B") follows."""
    yield from state_rows(rank, ("setup", "first step"))
    if any(plan.runs for plan in rank.plans):
        yield from boundary_rows(pipeline_tensors(rank, way), "boundary of the pipeline stage")
    else:  # of a stage without any unit the peak counts what rests
        yield from boundary_rows(resting_tensors(rank), "kept between steps")


def _of_pass(rank: Rank, plan: Listed, passes: list[Pass], number: int) -> Iterator[Row]:
    """The rows of a forward or backward at its highest, or at its end, where boundary tensors of what follows make that higher."""
    one, levels, schedule = passes[number], Levels(rank), plan.schedule(rank.pp_rank)
    step, level = one.step, levels.level(one.step)
    after = passes[number + 1].step.direction if number + 1 < len(passes) else None
    inside = one.kept + level.nbytes
    if levels.moment(one, after).highest_bytes > levels.state + inside:
        yield from _behind(rank, schedule, step, after)
    elif not any(plan.runs for plan in rank.plans):
        yield from waiting(rank, step.direction)
    else:
        yield from rows_at(rank, Candidate("", inside, step, level.running.moments, level.running.apart), schedule)


def _behind(rank: Rank, schedule: Occupancy, step: Step, after: Direction | None) -> Iterator[Row]:
    """The rows between a pass and what follows it; None for what is behind all passes."""
    if after is None:
        yield from rows_at(rank, draining(rank) if drains(rank) else Candidate("", 0), schedule)
        return
    yield from waiting(rank, after)
    over = step.beside if step.beside >= 0 else step.chunk if step.direction == "B" else NONE
    known: dict[int, list[Row]] = {}
    for chunk, (plan, count) in enumerate(zip(rank.plans, schedule.in_flight(step), strict=True)):
        yield from saved_rows(plan, count - int(chunk == over), known)
