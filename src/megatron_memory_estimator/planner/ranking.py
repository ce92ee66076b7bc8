"""What is kept of evaluated layouts: the best by an objective, the front of memory against time, the one that needs least, counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..job.hardware import GIB
from .arrays.view import Figures
from .ideas import NEAR, Idea, best_of_each, near
from .places import Place
from .space.points import Array

MOST_GIB = 4096
"""Steps of the front, one for each GiB: more than any GPU has."""
UNTIMED = 1e9
"""Seconds behind every plan whose step time is known."""
Ranked = tuple[float, float, Place]
"""The value of the objective, seconds of a step, and the place."""
Counts = tuple[int, int, int]
"""Layouts that fit, are tight, and are too large."""
Ideas = Callable[[Array], Array]
"""A number for each of some layouts: equal ones are of one idea."""


@dataclass
class Ranking:
    """The best layouts so far of those that fit in `limit`; with `tight` those too that fit unless memory is fragmented.

    With `folded`, the best ideas, each with all its layouts that are nearly as good as its best.
    """

    best: int
    objective: str
    limit: int
    tight: bool = False
    folded: bool = False
    top: list[Ranked] = field(default_factory=list)
    front: dict[int, Place] = field(default_factory=dict)
    """The fastest layout for each GiB of allocated memory, where less memory is not as fast."""
    least: Place | None = None
    _reach: Array = field(default_factory=lambda: np.full(MOST_GIB, np.inf), repr=False)

    def judge(self, figures: Figures, place: Callable[[int], Place], ideas: Ideas, *, untimed: bool) -> Counts:
        """Keep what is best of some layouts, and count them. `untimed`: their step times are not modelled."""
        fits = figures.high <= self.limit
        fitting, too_large = int(np.count_nonzero(fits)), int(np.count_nonzero(figures.low > self.limit))
        lowest = int(figures.low.argmin())
        if figures.low[lowest] < (np.inf if self.least is None else self.least.low):
            self.least = place(lowest)
        taken = figures.low <= self.limit if self.tight else fits
        if taken.any():
            self._rank(taken, figures, place, ideas, untimed=untimed)
            if not untimed:
                self._extend_front(taken, figures, place)
        return fitting, len(fits) - fitting - too_large, too_large

    def _rank(
        self, fits: Array, figures: Figures, place: Callable[[int], Place], ideas: Ideas, *, untimed: bool
    ) -> None:
        key = {"throughput": figures.step, "memory": figures.peak, "head-room": figures.high}[self.objective]
        if untimed and self.objective == "throughput":
            key = key + UNTIMED
        chosen = np.nonzero(fits & (key <= self._worst()))[0]
        if not len(chosen):
            return
        if self.folded:
            chosen = chosen[best_of_each(key[chosen], figures.step[chosen], ideas(chosen), self.best)]
        elif len(chosen) > self.best:
            chosen = chosen[np.lexsort((figures.step[chosen], key[chosen]))[: self.best]]
        self.top += [(float(key[i]), float(figures.step[i]), place(int(i))) for i in chosen]
        self.top = self._shortened(self.top)

    def _worst(self) -> float:
        """The value of the objective behind which nothing is kept."""
        if self.folded:
            firsts = [alike[0][0] for alike in self.by_idea().values()]
            return NEAR * firsts[-1] if len(firsts) >= self.best else np.inf
        return self.top[-1][0] if len(self.top) >= self.best else np.inf

    def by_idea(self) -> dict[Idea, list[Ranked]]:
        """The layouts that are kept by their ideas, the best first."""
        found: dict[Idea, list[Ranked]] = {}
        for item in self.top:
            found.setdefault(item[2].idea, []).append(item)
        return found

    def _shortened(self, top: Sequence[Ranked]) -> list[Ranked]:
        """The best, each once: sets of recomputation that cover the same layers are one layout, the first counts."""
        alike: dict[Any, Ranked] = {}
        for item in sorted(top, key=lambda item: (item[0], item[1], item[2].order)):
            at = item[2]
            same = (item[0], at.step, at.peak, at.high, at.structure, at.cell, at.style, at.option)
            alike.setdefault(same, item)
        if not self.folded:
            return list(alike.values())[: self.best]
        ideas: dict[Idea, list[Ranked]] = {}
        for item in alike.values():
            several = ideas.setdefault(item[2].idea, [])
            if not several or near(item[0], item[1], several[0][0], several[0][1]):
                several.append(item)
        return [item for several in list(ideas.values())[: self.best] for item in several]

    def _extend_front(self, fits: Array, figures: Figures, place: Callable[[int], Place]) -> None:
        room = np.minimum(figures.peak / GIB, MOST_GIB - 1).astype(np.int32)
        better = np.nonzero(fits & (figures.step < self._reach.take(room)))[0]
        if not len(better):
            return
        order = better[np.lexsort((figures.step[better], room[better]))]
        firsts = np.unique(room[order], return_index=True)[1]
        for index in order[firsts].tolist():
            at, step = int(room[index]), float(figures.step[index])
            if step < self._reach[at]:
                self.front[at] = place(index)
                self._reach[at:] = np.minimum(self._reach[at:], step)

    def join(self, other: Ranking) -> None:
        """Keep what is best of this ranking and of one of other layouts."""
        self.top = self._shortened([*self.top, *other.top])
        for at, place in other.front.items():
            if at not in self.front or (place.step, place.order) < (self.front[at].step, self.front[at].order):
                self.front[at] = place
        least = other.least
        if self.least is None or (least and (least.low, least.order) < (self.least.low, self.least.order)):
            self.least = least

    def fastest_by_memory(self) -> list[Place]:
        """The front, least memory first."""
        front, fastest = [], np.inf
        for _, place in sorted(self.front.items()):
            if place.step < fastest:
                front.append(place)
                fastest = place.step
        return front
