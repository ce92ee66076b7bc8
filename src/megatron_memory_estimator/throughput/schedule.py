"""Seconds of a pipeline: the schedule that memory is counted by, event by event, each behind what it waits for.

A pass waits for the one before it on its rank and for the stage that hands it its tensor. What a microbatch costs a stage does not
say how long that takes: chunks of unequal length make ranks wait for one another although all have the same work. Of a long step so
many microbatches are simulated that the schedule repeats itself, and what repeats is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ..rank.schedule import Order, enough_microbatches, warmup_steps, whole
from ..tape.tensor import total

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


Pass = tuple[int, int, int, int, int, int, int]
"""What a rank runs without a break, a forward or a backward, or with all-to-all overlap one of each: the rank; its number, the number that
it waits for, its place; and the same of the other one. Nothing has the last number of all, and a place behind all places."""


class Events(NamedTuple):
    """The passes of all ranks, each behind those that it waits for: how many numbers they have; the last number of each rank; of each rank
    the numbers between which its middle repeats itself once, if it is long enough."""

    passes: list[Pass]
    size: int
    last: list[int]
    repeats: list[tuple[int, int] | None]


@lru_cache(maxsize=256)
def events(schedule: Schedule, microbatches: int) -> Events:
    """The passes of a step of just so many microbatches."""
    lanes = list((_pairs if schedule.together else _singles)(schedule, microbatches))
    size = 2 * schedule.pp * schedule.vp * microbatches + 1
    done = bytearray(size)
    done[-1] = 1
    found: list[Pass] = []
    places = [0] * schedule.pp
    left = sum(map(len, lanes))
    while left:
        before = left
        for rank, lane in enumerate(lanes):
            first = at = places[rank]
            for one in lane[first:]:
                if not (done[one[2]] and done[one[5]]):
                    break
                done[one[1]] = done[one[4]] = 1
                at += 1
            found += lane[first:at]
            left -= at - first
            places[rank] = at
        assert left < before, "the passes of the stages wait for one another"
    return Events(found, size, [lane[-1][1] for lane in lanes], [_repeat(schedule, lane) for lane in lanes])


def _repeat(schedule: Schedule, lane: Sequence[Pass]) -> tuple[int, int] | None:
    """The pass before the backwards only, and the one that is one repetition before it."""
    last = next(at for at in range(len(lane) - 1, -1, -1) if lane[at][3] % 2 == 0)
    alone = lane[last][6] == 2 * schedule.pp * schedule.vp
    behind = min(last + alone, len(lane) - 1)
    return (lane[behind - schedule.span][1], lane[behind][1]) if behind >= schedule.span else None


def _singles(schedule: Schedule, microbatches: int) -> Iterator[list[Pass]]:
    """The passes of each rank in order: forwards before the first backward, then one of each in turn, then backwards.

    All ranks run the same forwards, and the same backwards, in the same order.
    """
    pp, vp, group, _ = schedule
    each, nothing, nowhere = 2 * vp * microbatches, 2 * pp * vp * microbatches, 2 * pp * vp
    forwards, backwards = [], []
    done = [0] * vp
    for chunk, size in Order(vp, microbatches, group if vp > 1 else 1).blocks():
        some = range(done[chunk], done[chunk] + size)
        done[chunk] += size
        forwards += [(2 * chunk, 2 * chunk * microbatches + one) for one in some]
        behind = 2 * (vp - 1 - chunk) + 1
        backwards += [(behind, behind * microbatches + one) for one in some]
    around = 2 * microbatches  # to the chunk beside it
    for rank in range(pp):
        start, place = rank * each, 2 * vp * rank
        if rank:  # from the stage beside it
            ahead = [start - each + number for _, number in forwards]
        else:  # from the other end of the pipeline, of the chunk beside it
            ahead = [(pp - 1) * each + number - around if at else nothing for at, number in forwards]
        if rank < pp - 1:
            behind_it = [start + each + number for _, number in backwards]
        else:
            behind_it = [number + around if at < 2 * vp - 1 else nothing for at, number in backwards]
        there, back = (
            [
                (rank, start + number, after, place + at, start + number, nothing, nowhere)
                for (at, number), after in zip(ways, waits, strict=True)
            ]
            for ways, waits in ((forwards, ahead), (backwards, behind_it))
        )
        warm = warmup_steps(pp, vp, rank, microbatches, group)
        turns = [one for both in zip(there[warm:], back, strict=False) for one in both]
        yield there[:warm] + turns + back[len(there) - warm :]


def _pairs(schedule: Schedule, microbatches: int) -> Iterator[list[Pass]]:
    """The passes of each rank in order, of forwards that run beside backwards."""
    pp, vp, group, together = schedule
    each, nothing, nowhere = 2 * vp * microbatches, 2 * pp * vp * microbatches, 2 * pp * vp

    def numbered(rank: int, chunk: int, microbatch: int, *, backward: bool) -> tuple[int, int, int]:
        number = rank * each + (2 * chunk + backward) * microbatches + microbatch
        end, step, edge = (pp - 1, 1, vp - 1) if backward else (0, -1, 0)
        if rank != end:
            after = number + step * each
        elif chunk == edge:
            after = nothing
        else:
            after = (pp - 1 - end) * each + (2 * (chunk + step) + backward) * microbatches + microbatch
        return number, after, 2 * vp * rank + 2 * chunk + backward

    for rank in range(pp):
        lane: list[Pass] = []
        done = {False: [0] * vp, True: [0] * vp}
        for step, _ in whole(pp, vp, rank, microbatches, group, together).held((0,) * vp, every=True):
            runs = [(step.chunk, step.direction == "B")] + ([(step.beside, True)] if step.beside >= 0 else [])
            first, *more = [numbered(rank, chunk, done[way][chunk], backward=way) for chunk, way in runs]
            lane.append((rank, *first, *(more[0] if more else (first[0], nothing, nowhere))))
            for chunk, way in runs:
                done[way][chunk] += 1
        yield lane


def ends(found: Events, seconds: Sequence[float]) -> list[float]:
    """When each pass ends, by number, of places that take so long."""
    ended, clocks = [0.0] * found.size, [0.0] * len(found.last)
    taken = (*seconds, 0.0)
    for rank, number, after, place, other, waits, beside in found.passes:
        end = clocks[rank]
        if ended[after] > end:
            end = ended[after]
        if ended[waits] > end:
            end = ended[waits]
        clocks[rank] = ended[number] = ended[other] = end + taken[place] + taken[beside]
    return ended


def pipeline_seconds(schedule: Schedule, microbatches: int, seconds: Sequence[float]) -> float:
    """Seconds of all forwards and backwards of a step."""
    simulated = schedule.simulated(microbatches)
    found = events(schedule, simulated)
    ended = ends(found, seconds)
    step = max(ended[number] for number in found.last)
    if simulated == microbatches:
        return step
    return step + (microbatches - simulated) / schedule.period * _pace(schedule, found, ended, seconds)


def _pace(schedule: Schedule, found: Events, ended: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds after which the middle of the schedule repeats itself: on the first rank with most work."""
    each = 2 * schedule.vp
    work = [total(seconds[each * rank : each * (rank + 1)]) for rank in range(schedule.pp)]
    repeat = found.repeats[work.index(max(work))]
    assert repeat is not None, "a schedule that is not simulated whole repeats itself"
    before, behind = repeat
    return ended[behind] - ended[before]
