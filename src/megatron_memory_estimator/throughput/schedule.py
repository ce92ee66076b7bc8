"""Seconds of a pipeline: the schedule that memory is counted by, event by event, each behind what it waits for.

A pass waits for the one before it on its rank and for the stage that hands it its tensor. What a microbatch costs a stage does not
say how long that takes: chunks of unequal length make ranks wait for one another although all have the same work. Of a long step so
many microbatches are simulated that the schedule repeats itself, and what repeats is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

from ..rank.schedule import enough_microbatches, every_step, whole
from ..tape.tensor import chosen, total
from .links import highest

REPEATS = 2
"""Groups of microbatches that are simulated beyond those that pass through every step of the schedule: the ranks have found their pace."""


class Schedule(NamedTuple):
    """A pipeline's schedule: its degrees, the microbatches that run through a chunk in a row, and all-to-all overlap.

    Its places are the forward and the backward of each chunk of each rank, in this order.
    """

    pp: int
    vp: int
    group: int
    together: bool = False

    @property
    def period(self) -> int:
        """Microbatches after which the middle of it repeats itself."""
        return self.group if self.vp > 1 else 1

    @property
    def span(self) -> int:
        """Passes of a rank that run so many microbatches through all its chunks."""
        return self.period * self.vp * (1 if self.together else 2)

    def simulated(self, microbatches: int) -> int:
        """So few microbatches that what follows repeats itself."""
        enough = enough_microbatches(self.pp, self.vp, microbatches, self.group, a2a_overlap=self.together)
        more = REPEATS * self.period if self.vp > 1 else self.pp + REPEATS
        return min(enough + more, microbatches)


class Events(NamedTuple):
    """The passes of all ranks, each behind those that it waits for.

    runs     the places that each runs, one or two at the same time
    needs    the passes that each waits for, by number
    lanes    the passes of each rank in order
    steady   of each rank, how many passes come before a forward and a backward in turn, and before its backwards only
    """

    runs: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[int, ...], ...]
    lanes: tuple[tuple[int, ...], ...]
    steady: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def events(schedule: Schedule, microbatches: int) -> Events:
    """The passes of a step of just so many microbatches."""
    made = _Passes(schedule, microbatches)
    left = sum(map(len, made.orders))
    while left:
        before = left
        for rank in range(schedule.pp):
            left -= made.advance(rank)
        assert left < before, "the passes of the stages wait for one another"
    steady = tuple(_steady(order) for order in made.orders)
    return Events(tuple(made.runs), tuple(made.needs), tuple(map(tuple, made.lanes)), steady)


def _steady(order: Sequence[tuple[Run, ...]]) -> tuple[int, int]:
    """Where a rank's first backward stands, and where its last forward and the backward behind it end."""
    first = next(at for at, runs in enumerate(order) if runs[-1][2])
    last = next(at for at in range(len(order) - 1, -1, -1) if not order[at][0][2])
    return first, min(last + 1 + (not order[last][-1][2]), len(order))


Run = tuple[int, int, bool]
"""A chunk, its microbatch, and whether it is a backward."""


class _Passes:
    """The passes that are numbered so far. `known` are the numbers of runs by rank, direction, chunk and microbatch."""

    def __init__(self, schedule: Schedule, microbatches: int) -> None:
        self.schedule = schedule
        self.orders = [list(_order(schedule, rank, microbatches)) for rank in range(schedule.pp)]
        self.runs: list[tuple[int, ...]] = []
        self.needs: list[tuple[int, ...]] = []
        self.lanes: list[list[int]] = [[] for _ in range(schedule.pp)]
        chunks = range(schedule.vp)
        self.known = [[[[-1] * microbatches for _ in chunks] for _ in (0, 1)] for _ in range(schedule.pp)]

    def advance(self, rank: int) -> int:
        """Number the passes of a rank until one waits for another that has none: how many that were."""
        lane, order, known = self.lanes[rank], self.orders[rank], self.known
        first, last, last_chunk, place = (
            len(lane),
            self.schedule.pp - 1,
            self.schedule.vp - 1,
            2 * self.schedule.vp * rank,
        )
        while len(lane) < len(order):
            needs = []
            for chunk, microbatch, backward in order[len(lane)]:
                end, step, edge = (0, 1, last_chunk) if backward else (last, -1, 0)
                if rank != last - end:  # from the stage beside it
                    needs.append(known[rank + step][backward][chunk][microbatch])
                elif chunk != edge:  # from the other end of the pipeline, of the chunk beside it
                    needs.append(known[end][backward][chunk + step][microbatch])
            if -1 in needs:
                break
            number = len(self.runs)
            for chunk, microbatch, backward in order[len(lane)]:
                known[rank][backward][chunk][microbatch] = number
            self.runs.append(tuple([place + 2 * chunk + backward for chunk, _, backward in order[len(lane)]]))
            self.needs.append((*needs, *lane[-1:]))
            lane.append(number)
        return len(lane) - first


def _order(schedule: Schedule, rank: int, microbatches: int) -> Iterator[tuple[Run, ...]]:
    """What each pass of a rank runs."""
    pp, vp, group, together = schedule
    if not together:
        yield from (((chunk, at, way == "B"),) for way, chunk, at in every_step(pp, vp, rank, microbatches, group))
        return
    done = {False: [0] * vp, True: [0] * vp}
    for step, _ in whole(pp, vp, rank, microbatches, group, together).held((0,) * vp, every=True):
        runs = [(step.chunk, step.direction == "B")] + ([(step.beside, True)] if step.beside >= 0 else [])
        yield tuple((chunk, done[backward][chunk], backward) for chunk, backward in runs)
        for chunk, backward in runs:
            done[backward][chunk] += 1


def ends(found: Events, seconds: Sequence[Any]) -> list[Any]:
    """When each pass ends, of places that take so long: numbers, or arrays of one per layout."""
    if any(hasattr(one, "shape") for one in seconds):
        return _ends_of_arrays(found, seconds)
    ended: list[float] = []
    for runs, needs in zip(found.runs, found.needs, strict=True):
        end = 0.0
        for one in needs:
            if ended[one] > end:
                end = ended[one]
        for place in runs:
            end += seconds[place]
        ended.append(end)
    return ended


def _ends_of_arrays(found: Events, seconds: Sequence[Any]) -> list[Any]:
    ended: list[Any] = []
    for runs, needs in zip(found.runs, found.needs, strict=True):
        end = reduce(highest, [ended[one] for one in needs], 0.0)
        ended.append(end + total(seconds[place] for place in runs))
    return ended


Pipelined = Callable[[Schedule, Any, Sequence[Any]], Any]
"""Seconds of all passes of a schedule with so many microbatches, of places that take so long."""


def pipeline_seconds(schedule: Schedule, microbatches: Any, seconds: Sequence[Any]) -> Any:
    """Seconds of all forwards and backwards of a step; of arrays of layouts, one each."""
    if not hasattr(microbatches, "shape"):
        return _simulated(schedule, int(microbatches), seconds)
    import numpy as np

    taken = [np.broadcast_to(np.asarray(one, dtype=float), microbatches.shape) for one in seconds]
    found = np.zeros(microbatches.shape)
    for many in np.unique(microbatches).tolist():
        where = microbatches == many
        found[where] = _simulated(schedule, many, [one[where] for one in taken])
    return found


def _simulated(schedule: Schedule, microbatches: int, seconds: Sequence[Any]) -> Any:
    simulated = schedule.simulated(microbatches)
    found = events(schedule, simulated)
    ended = ends(found, seconds)
    step = reduce(highest, (ended[lane[-1]] for lane in found.lanes))
    if simulated == microbatches:
        return step
    return step + (microbatches - simulated) / schedule.period * _pace(schedule, found, ended, seconds)


def _pace(schedule: Schedule, found: Events, ended: Sequence[Any], seconds: Sequence[Any]) -> Any:
    """Seconds after which the middle of the schedule repeats itself: on the rank with most work."""
    each, span = 2 * schedule.vp, schedule.span
    pace: Any = None
    most: Any = None
    for rank, lane in enumerate(found.lanes):
        work = total(seconds[each * rank : each * (rank + 1)])
        at = found.steady[rank][1] - 1
        here = ended[lane[at]] - ended[lane[at - span]]
        pace = here if most is None else chosen(work > most, here, pace)
        most = work if most is None else highest(work, most)
    return pace
