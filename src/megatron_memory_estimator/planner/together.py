"""Changes of a run that only together make it fit: pairs, then triples, then four, each group estimated like any other.

There are thousands of groups. Those that are tried come in the order of what smaller groups say: a group is foreseen to take, phase
by phase, what its changes alone and its pairs take relative to the run, as if pairs did not act on each other. What is foreseen only
orders the tries; every answer is an estimate of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice, zip_longest
from math import inf, isinf, log
from operator import itemgetter

from ..tape.tensor import total
from .change import Change
from .changed_run import Outcome, compatible, cost_of, outcomes
from .changes import larger_changes, memory_changes

TRIED = {2: 160, 3: 120, 4: 80}
"""Groups of each size that are estimated at most."""
STAGES, LAYERS, LEAST = 8, 125, 12
"""Pipeline stages up to which so many are, layers that count as a stage, and how few with many more: an estimate takes that long."""
CHEAPER = 0.99
"""What more changes must cost at most, relative to fewer that fit already."""
DEAR = 1.5
"""Relative to the run as it is: where what fits costs more, more changes together are tried."""
COST = "cost"
"""The name of what a step costs among the phases of a run."""


def fitting(now: Outcome, limit: int) -> list[Outcome]:
    """Changes that make a run fit, the cheapest first; where none does, single ones and what saves most.

    Alone, larger ones too where no small one is enough that asks for nothing beside time; in pairs where they cost less; in threes
    and fours where nothing fits yet without asking for something, or only at a high price. More than twice the GPUs that are enough
    are not listed.
    """
    singles = _helpful(now, memory_changes(now.job))
    if not any(_plain(one) for one in _within(singles, limit)):
        singles += _helpful(now, larger_changes(now.job))
    groups = Groups(now, singles, limit)
    found = _within(singles, limit)
    for size in TRIED:
        if size > 2 and any(_plain(one) and cost_of(one) < DEAR * cost_of(now) for one in found):
            break
        found += [one for one in _within(groups.tried(size, found), limit) if _cheaper(one, found)]
    if found:
        fewest = min(one.job.layout.world_size for one in found)
        return sorted((one for one in found if one.job.layout.world_size <= 2 * fewest), key=cost_of)
    tried = sorted((one for name, one in groups.tries.items() if len(name) > 1), key=lambda one: one.device.high)
    return [*singles, *tried[:3]]


def _within(tried: Iterable[Outcome], limit: int) -> list[Outcome]:
    return [one for one in tried if one.device.high <= limit]


def _plain(one: Outcome) -> bool:
    """Whether it asks for nothing beside time."""
    return not one.asks


def _cheaper(one: Outcome, found: Sequence[Outcome]) -> bool:
    """Whether it costs less than fewer changes that fit and ask for nothing more."""
    fewer = [cost_of(other) for other in found if len(other.changes) < len(one.changes) and other.asks <= one.asks]
    return not fewer or cost_of(one) < CHEAPER * min(fewer)


def _helpful(now: Outcome, changes: Iterable[Change]) -> list[Outcome]:
    """Changes alone that lower what some phase takes: the phase that decides may be another one with other changes."""
    before = _highs(now)
    alone = outcomes(now, [(one,) for one in changes])
    return [one for one in alone if any(high < before.get(phase, 0) for phase, high in _highs(one).items())]


def _highs(one: Outcome) -> dict[str, int]:
    """Device bytes of each phase, at most."""
    return {phase: found.high for phase, found in one.estimate.phases.items()}


class Groups:
    """Groups of changes of one run, with what is known of them."""

    def __init__(self, now: Outcome, singles: Sequence[Outcome], limit: int) -> None:
        self.now, self.limit = now, limit
        self.changes = [one.changes[0] for one in singles]
        self.tries: dict[frozenset[Change], Outcome] = {}
        self.figures: dict[frozenset[Change], dict[str, float]] = {}
        self.refused: set[frozenset[Change]] = set()
        self._note([now, *singles])

    def tried(self, size: int, found: Sequence[Outcome]) -> list[Outcome]:
        """Groups of a size estimated, the most promising; none that holds a smaller one that was found already."""
        enough = [frozenset(one.changes) for one in found]
        load = max(len(self.now.estimate.stages), self.now.job.model.num_layers // LAYERS, STAGES)
        most = max(TRIED[size] * STAGES // load, LEAST)
        groups = (group for group in self._ordered(size) if not any(less <= set(group) for less in enough))
        chosen = list(islice(groups, most))
        made = list(outcomes(self.now, chosen))
        self._note(made)
        self.refused |= {frozenset(group) for group in chosen} - self.tries.keys()
        return made

    def _note(self, made: Iterable[Outcome]) -> None:
        """Keep outcomes, and the logarithms of what they take and cost."""
        for one in made:
            name = frozenset(one.changes)
            self.tries[name] = one
            self.figures[name] = {phase: log(high) for phase, high in _highs(one).items()}
            self.figures[name][COST] = log(cost_of(one))

    def _ordered(self, size: int) -> Iterator[tuple[Change, ...]]:
        """Groups in the order in which they are tried: those that ask for nothing, for one thing and for more in turn, and of each
        first what is foreseen to fit, the cheapest first, then what is foreseen to take least."""
        queues: dict[int, list[tuple[tuple[bool, float, float], tuple[Change, ...]]]] = {0: [], 1: [], 2: []}
        for group in combinations(self.changes, size):
            if compatible(group) and not any(frozenset(pair) in self.refused for pair in combinations(group, 2)):
                asked = len({change.asks for change in group if change.asks})
                queues[min(asked, 2)].append((self._promise(group), group))
        for turn in zip_longest(*(sorted(queue, key=itemgetter(0)) for queue in queues.values())):
            yield from (one[1] for one in turn if one is not None)

    def _promise(self, group: Sequence[Change]) -> tuple[bool, float, float]:
        """What orders a group: whether it is foreseen to miss the limit, what it costs if not, and what it takes."""
        phases = [phase for phase in self.figures[frozenset()] if phase != COST]
        takes = max(self._foreseen(group, phase) for phase in phases)
        misses = takes > log(self.limit)
        return misses, inf if misses else self._foreseen(group, COST), takes

    def _foreseen(self, group: Sequence[Change], figure: str) -> float:
        """The logarithm of a figure of a group, of its changes and its pairs; infinite where one of them has none."""
        now = self.figures[frozenset()].get(figure, inf)
        alone = {one: self.figures[frozenset((one,))].get(figure, inf) for one in group}
        foreseen: float = now + total(value - now for value in alone.values())
        if isinf(foreseen):
            return inf
        for one, other in combinations(group, 2):
            pair = self.figures.get(frozenset((one, other)), {})
            if len(group) > 2 and figure in pair:
                foreseen += pair[figure] - alone[one] - alone[other] + now
        return foreseen
