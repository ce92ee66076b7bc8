"""Layouts ranked and counted many at a time, as they come."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..job.hardware import GIB
from .arrays.view import Figures
from .cell_ideas import best_of_each
from .places import Place
from .ranking import MOST_GIB, Counts, Ranking
from .space.points import Array

Ideas = Callable[[Array], Array]
"""A number for each of some layouts: equal ones are of one idea."""


class Judge:
    """What puts layouts into a ranking."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.reach = np.full(MOST_GIB, np.inf)
        """Seconds of the fastest layout so far with so many GiB or less."""

    def judge(self, figures: Figures, place: Callable[[int], Place], ideas: Ideas) -> Counts:
        """Keep what is best of some layouts, and count them."""
        ranking = self.ranking
        fits = figures.high <= ranking.limit
        fitting, too_large = int(np.count_nonzero(fits)), int(np.count_nonzero(figures.low > ranking.limit))
        lowest = int(figures.low.argmin())
        if figures.low[lowest] < (np.inf if ranking.least is None else ranking.least.low):
            ranking.least = place(lowest)
        taken = figures.low <= ranking.limit if ranking.tight else fits
        if taken.any():
            _rank(ranking, taken, figures, place, ideas)
            self._extend_front(taken, figures, place)
        if ranking.apart is not None:
            _rank(ranking.apart, (figures.low <= ranking.limit) & ~fits, figures, place, ideas)
        return fitting, len(fits) - fitting - too_large, too_large

    def _extend_front(self, fits: Array, figures: Figures, place: Callable[[int], Place]) -> None:
        front, reach = self.ranking.front, self.reach
        room = np.minimum(figures.peak / GIB, MOST_GIB - 1).astype(np.int32)
        better = np.nonzero(fits & (figures.step < reach.take(room)))[0]
        if not len(better):
            return
        order = better[np.lexsort((figures.step[better], room[better]))]
        firsts = np.unique(room[order], return_index=True)[1]
        for index in order[firsts].tolist():
            at, step = int(room[index]), float(figures.step[index])
            if step < reach[at]:
                front[at] = place(index)
                reach[at:] = np.minimum(reach[at:], step)


def _rank(ranking: Ranking, taken: Array, figures: Figures, place: Callable[[int], Place], ideas: Ideas) -> None:
    """Keep the best of the layouts that a ranking takes."""
    key = {"throughput": figures.step, "memory": figures.peak, "head-room": figures.high}[ranking.objective]
    chosen = np.nonzero(taken & (key <= ranking.worst()))[0]
    if not len(chosen):
        return
    if ranking.folded:
        chosen = chosen[best_of_each(key[chosen], figures.step[chosen], ideas(chosen), ranking.best)]
    elif len(chosen) > ranking.best:
        chosen = chosen[np.lexsort((figures.step[chosen], key[chosen]))[: ranking.best]]
    ranking.add([(float(key[i]), float(figures.step[i]), place(int(i))) for i in chosen])
