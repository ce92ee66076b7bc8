"""Evaluated layouts that are kept: the best by an objective, the front of memory against time, the smallest, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from .places import NEAR, Idea, Place, near

MOST_GIB = 4096
"""Steps of the front, one for each GiB: more than any GPU has."""
APART = 3
"""Tight layouts that are kept beside those that fit."""
Ranked = tuple[float, float, Place]
"""The value of the objective, seconds of a step, and the place."""
Counts = tuple[int, int, int]
"""Layouts that fit, are tight, and are too large."""


@dataclass
class Ranking:
    """The best layouts so far of those that fit in `limit`; with `tight` those too that fit unless memory is fragmented.

    With `folded`, the best ideas, each with all its layouts that are nearly as good as its best. `apart` ranks those that `tight` would
    take too, a few.
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
    apart: Ranking | None = None

    def add(self, items: Sequence[Ranked]) -> None:
        """Keep what is best of some layouts that fit."""
        self.top = self._shortened([*self.top, *items])

    def worst(self) -> float:
        """The value of the objective behind which nothing is kept."""
        if self.folded:
            firsts = [alike[0][0] for alike in self.by_idea().values()]
            return NEAR * firsts[-1] if len(firsts) >= self.best else inf
        return self.top[-1][0] if len(self.top) >= self.best else inf

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

    def join(self, other: Ranking) -> None:
        """Keep what is best of this ranking and of one of other layouts."""
        self.top = self._shortened([*self.top, *other.top])
        for at, place in other.front.items():
            if at not in self.front or (place.step, place.order) < (self.front[at].step, self.front[at].order):
                self.front[at] = place
        if self.apart is not None and other.apart is not None:
            self.apart.join(other.apart)
        least = other.least
        if self.least is None or (least and (least.low, least.order) < (self.least.low, self.least.order)):
            self.least = least

    def fastest_by_memory(self) -> list[Place]:
        """The front, least memory first."""
        front, fastest = [], inf
        for _, place in sorted(self.front.items()):
            if place.step < fastest:
                front.append(place)
                fastest = place.step
        return front


def ranking_of(best: int, objective: str, limit: int, *, tight: bool, folded: bool) -> Ranking:
    """An empty ranking, with one apart for tight layouts where they are not taken."""
    apart = None if tight else Ranking(APART, objective, limit, True, folded)
    return Ranking(best, objective, limit, tight, folded, apart=apart)
