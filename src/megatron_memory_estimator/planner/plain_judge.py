"""Layouts ranked and counted one after the other, as `judge.py` does with many at a time: the same are kept, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from ..job.hardware import GIB
from .places import Idea, Place, near
from .ranking import MOST_GIB, Counts, Ranked, Ranking

KEYS: dict[str, Callable[[Place], float]] = {
    "throughput": lambda place: place.step,
    "memory": lambda place: place.peak,
    "head-room": lambda place: place.high,
}


def judge(ranking: Ranking, places: Sequence[Place]) -> Counts:
    """Keep what is best of some layouts with one style, training and option, and count them."""
    lowest = min(places, key=lambda place: place.low)
    if ranking.least is None or lowest.low < ranking.least.low:
        ranking.least = lowest
    fits = [place for place in places if place.high <= ranking.limit]
    too_large = sum(place.low > ranking.limit for place in places)
    taken = [place for place in places if place.low <= ranking.limit] if ranking.tight else fits
    if taken:
        _rank(ranking, taken)
        _extend_front(ranking, taken)
    if ranking.apart is not None:
        _rank(ranking.apart, [place for place in places if place.low <= ranking.limit < place.high])
    return len(fits), len(places) - len(fits) - too_large, too_large


def _rank(ranking: Ranking, taken: Sequence[Place]) -> None:
    key, worst = KEYS[ranking.objective], ranking.worst()
    items = [(float(key(place)), place.step, place) for place in taken]
    chosen = [item for item in items if item[0] <= worst]
    if ranking.folded:
        chosen = _best_of_each(chosen, ranking.best)
    elif len(chosen) > ranking.best:
        chosen = sorted(chosen, key=lambda item: item[:2])[: ranking.best]
    if chosen:
        ranking.add(chosen)


def _best_of_each(items: Sequence[Ranked], most: int) -> list[Ranked]:
    """The plans of the best ideas that are nearly as good as the best of their idea."""
    ideas: dict[Idea, list[Ranked]] = {}
    for item in sorted(items, key=lambda item: item[:2]):
        ideas.setdefault(item[2].idea, []).append(item)
    best = list(ideas.values())[:most]
    return [item for alike in best for item in alike if near(item[0], item[1], alike[0][0], alike[0][1])]


def _extend_front(ranking: Ranking, taken: Sequence[Place]) -> None:
    fastest: dict[int, Place] = {}
    for place in taken:
        room = int(min(place.peak / GIB, MOST_GIB - 1))
        if room not in fastest or place.step < fastest[room].step:
            fastest[room] = place
    for room, place in sorted(fastest.items()):
        reach = min((one.step for at, one in ranking.front.items() if at <= room), default=inf)
        if place.step < reach:
            ranking.front[room] = place
