"""The critical paths of a schedule: how many passes of each kind stand on the longest chain of passes that wait for one another.

The seconds of a schedule are those of its longest chain, and which one that is depends on the seconds of the chunks. The chains of a
few sets of seconds are kept as counts; the largest of their sums is a bound from below for every set, exact where a kept chain is the
longest. So the step times of many layouts follow from one product of matrices (docs/explanation/throughput.md says how far they are off).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

from ..tape.tensor import total
from .links import highest
from .schedule import Events, Schedule, ends, events

Row = tuple[int, ...]
"""How many passes of each place stand on a chain."""


class Critical(NamedTuple):
    """Chains of a schedule: of a whole step of `simulated` microbatches, and of what repeats itself beyond them."""

    schedule: Schedule
    simulated: int
    step: tuple[Row, ...]
    repeats: tuple[Row, ...]

    def seconds(self, microbatches: Any, seconds: Sequence[Any]) -> Any:
        """Seconds of so many microbatches, of places that take so long."""
        step = reduce(highest, (_sum(row, seconds) for row in self.step))
        beyond = microbatches - self.simulated
        if not hasattr(beyond, "shape") and not beyond:
            return step
        return step + beyond / self.schedule.period * reduce(highest, (_sum(row, seconds) for row in self.repeats))


def _sum(row: Row, seconds: Sequence[Any]) -> Any:
    return total(count * one for count, one in zip(row, seconds, strict=True) if count)


def critical(schedule: Schedule, microbatches: int, sets: Sequence[Sequence[float]]) -> Critical:
    """The chains that are longest with each of some sets of seconds, for a number of microbatches."""
    simulated = schedule.simulated(microbatches)
    found = events(schedule, simulated)
    at = {number: (rank, place) for rank, lane in enumerate(found.lanes) for place, number in enumerate(lane)}
    step: dict[Row, None] = {}
    repeats = dict.fromkeys(_alone(schedule))
    for seconds in sets:
        chain = _chain(found, ends(found, seconds))
        step[_counts(schedule, found, chain)] = None
        if simulated > schedule.period:
            repeats.update(dict.fromkeys(_repeating(schedule, found, chain, at)))
    return Critical(schedule, simulated, tuple(step), tuple(repeats))


def _alone(schedule: Schedule) -> Iterator[Row]:
    """All that a rank has to do."""
    each = 2 * schedule.vp
    for rank in range(schedule.pp):
        yield tuple(schedule.period if place // each == rank else 0 for place in range(each * schedule.pp))


def _chain(found: Events, ended: Sequence[float]) -> list[int]:
    """The longest chain, its last pass first."""
    number = max((lane[-1] for lane in found.lanes), key=ended.__getitem__)
    chain = [number]
    while found.needs[number]:
        number = max(found.needs[number], key=ended.__getitem__)
        chain.append(number)
    return chain


def _counts(schedule: Schedule, found: Events, chain: Sequence[int]) -> Row:
    counts = [0] * (2 * schedule.pp * schedule.vp)
    for number in chain:
        for place in found.runs[number]:
            counts[place] += 1
    return tuple(counts)


def _repeating(
    schedule: Schedule, found: Events, chain: Sequence[int], at: dict[int, tuple[int, int]]
) -> Iterator[Row]:
    """The part of a chain between two passes of a rank that are one repetition apart, before the backwards only."""
    places = {at[number]: index for index, number in enumerate(chain)}
    for (rank, place), index in places.items():
        first, behind = found.steady[rank]
        before = places.get((rank, place - schedule.span))
        if before is not None and first <= place - schedule.span and place < behind:
            yield _counts(schedule, found, chain[index:before])
            return
