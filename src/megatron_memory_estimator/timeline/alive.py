"""The named tensors of any moment of a training step: what `explain` lists of the peak, of every other moment too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from ..errors import ConfigError
from ..rank.boundary import pipeline_tensors, resting_tensors
from ..rank.captures import capturing
from ..rank.peak import Closing, closing, draining, drains
from ..rank.rank import Candidate, Rank, Row
from ..rank.rows import boundary_rows, merged, rows_at, rows_at_rest, saved_rows, state_rows
from ..rank.schedule import Direction, Occupancy, Step
from ..wording import shown
from .moments import NONE, Levels, Moment, capture, moments
from .passes import MOST_PASSES, Listed, Pass, listed_passes

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
