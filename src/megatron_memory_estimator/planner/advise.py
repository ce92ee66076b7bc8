"""What would make a run fit, or a run that fits faster: the smallest changes, each with what it saves and what it costs.

Every change is a job of its own, estimated like any other: alone, and where that is not enough together (`together.py`).

Changes of a run that only together make it fit: pairs, then triples, then four, each group estimated like any other.

There are thousands of groups. Those that are tried come in the order of what smaller groups say: a group is foreseen to take, phase
by phase, what its changes alone and its pairs take relative to the run, as if pairs did not act on each other. What is foreseen only
orders the tries; every answer is an estimate of its own.

A changed run, estimated like any other, and what it costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from itertools import combinations, count, islice, zip_longest
from math import inf, isinf, log
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..dataclass import dataclass
from ..device.terms import Range
from ..device.verdict import Verdict
from ..doors import door
from ..errors import EstimatorError
from ..estimator import Estimate, estimate
from ..frames import frame
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from ..tape.tensor import total
from ..throughput.machine import Efficiency
from ..throughput.step import Throughput, throughput
from .base import TOKENS_OF_A_STEP, timed_as
from .changes import (
    Change,
    Settings,
    allocator,
    changed,
    concerns_samples,
    larger_changes,
    memory_changes,
    speed_changes,
)

if TYPE_CHECKING:
    from pandas import DataFrame


KEPT = 8
"""How many of the best changes alone are combined to make a run faster."""
ROOM = 0.9
"""A run has room to be made faster where the most that it needs is below this share of the memory."""


@dataclass(frozen=True)
class Advice:
    """A run as it is, its memory limit, and changes of it, the best first."""

    now: Outcome
    """The run as it is."""
    limit: int
    """Bytes of a GPU that it may take."""
    outcomes: tuple[Outcome, ...]
    """The changed runs."""
    assumptions: tuple[str, ...] = ()
    """What was decided because it was not given."""

    def __repr__(self) -> str:
        gpu = f"{self.now.job.gpu.name}, {self.limit / GIB:.2f} GiB"
        return f"<Advice {gpu}: {self.now.verdict(self.limit)}, {len(self.outcomes)} change{'' if len(self.outcomes) == 1 else 's'}>"

    def table(self) -> list[dict[str, Any]]:
        """The run as it is, then one record for each change, with plain numbers, units in the names of the columns."""
        found: list[dict[str, Any]] = door("advice as records")(self)
        return found

    def to_frame(self) -> DataFrame:
        """`table()` as a frame of pandas."""
        return frame(self.table())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(door("advice as html")(self))

    @property
    def without_layout(self) -> bool:
        """Whether no layout was given and data parallelism alone does not fit: `plan` searches layouts."""
        open_layout = self.now.job.only_data_parallel or self.now.job.nothing_laid_out
        return open_layout and not self.now.verdict(self.limit).fits

    @property
    def faster(self) -> bool:
        """Whether the run fits with room, so that the changes are for speed."""
        return self.now.needed.high <= self.limit * ROOM


def advise(
    job: TrainingJob,
    *,
    limit: int | None = None,
    most: int = 10,
    efficiency: Efficiency | None = None,
    progress: Callable[[int], None] | None = None,
) -> Advice:
    """The smallest changes that make a run fit surely; for one that fits with room, those that make it faster.

    A model without a layout that no change makes fit gets none: `plan` searches layouts. `progress` is told how many were tried.
    Raises LayoutError for a run that Megatron-Core refuses and UnsupportedError for what is not modelled.
    """
    job, said = priced(job)
    now = Outcome((), estimate(job), efficiency, _counting(progress))
    limit = job.gpu.memory_bytes if limit is None else limit
    wanted = Advice(now, limit, (), said)
    if wanted.faster:
        found = _faster(now, limit)
    else:
        found = [one for one in fitting(now, limit) if saves(now, one)]
    found = worth(found)
    if not any(one.needed.high <= limit for one in found):  # nothing is enough: what saves most first
        if wanted.without_layout:
            return wanted
        found = sorted(found, key=lambda one: one.needed.high)
    if now.verdict(limit).word == "fits only without fragmentation":  # costs nothing: first, and there whatever else is
        found = [
            *outcomes(now, [(allocator(now.job),)]),
            *(one for one in found if not _is_allocator(one)),
        ]
    return dataclasses.replace(wanted, outcomes=tuple(found[:most]))


def _counting(progress: Callable[[int], None] | None) -> Callable[[], object]:
    """What is called for each change that is tried, and tells how many were."""
    numbers = count(1)
    return object if progress is None else lambda: progress(next(numbers))


def saves(now: Outcome, one: Outcome) -> bool:
    """Whether changes leave more room, and cost nothing at the peak."""
    return one.needed.high < now.needed.high and one.peak <= now.peak


def step_time(found: Estimate) -> Throughput:
    """The step time of an estimate, of a step as `priced` takes it."""
    job, _ = priced(found.job)
    return throughput(found if job is found.job else estimate(job))


def priced(job: TrainingJob) -> tuple[TrainingJob, tuple[str, ...]]:
    """The job with a global batch that a step time means something for, and what was decided.

    Where no global batch is given, an estimate takes as many microbatches as change the peak; their time is that of filling and
    draining the pipeline. A real step has the tokens that `plan` assumes too.
    """
    left_out = tuple(timed_as(job.training))
    if not job.batch_is_assumed or job.layout.dp < 1:
        return job, left_out
    t, multiple = job.training, 2 * job.layout.world_size * job.training.micro_batch_size
    wanted = max(TOKENS_OF_A_STEP // t.seq_length, 1, t.global_batch_size or 1)
    batch = -(-wanted // multiple) * multiple
    said = f"global_batch_size not given: a step of {batch} samples ({batch * t.seq_length / 2**20:.1f} Mi tokens) is timed"
    return changed(job, {"global_batch_size": batch}), (said, *left_out)


def worth(tried: Sequence[Outcome]) -> list[Outcome]:
    """Those that pay for themselves: no other one that asks for nothing else costs as little and takes as little memory."""
    found: list[Outcome] = []
    for one in sorted(tried, key=lambda one: (cost_of(one), one.needed.high, len(one.asks), len(one.changes))):
        if not any(other.needed.high <= one.needed.high and other.asks <= one.asks for other in found):
            found.append(one)
    return found


def _is_allocator(one: Outcome) -> bool:
    return [name for change in one.changes for name, _ in change.settings] == ["expandable_segments"]


def _faster(now: Outcome, limit: int) -> list[Outcome]:
    """Changes that keep a run within memory and make it faster: alone and in pairs, the fastest first."""
    alone = outcomes(now, [(change,) for change in speed_changes(now.job)])
    singles = [one for one in alone if one.needed.high <= limit]
    better = sorted((one for one in singles if one.time.step < now.time.step * 0.995), key=lambda one: one.time.step)
    groups = [(one.changes[0], other.changes[0]) for one, other in combinations(better[:KEPT], 2)]
    tried = [one for one in outcomes(now, filter(compatible, groups)) if one.needed.high <= limit]
    fastest = {one.changes[0].name: one.time.step for one in better}
    worth = [one for one in tried if one.time.step < 0.99 * min(fastest[change.name] for change in one.changes)]
    return sorted([*better, *worth], key=lambda one: one.time.step)


TRIED = {2: 160, 3: 120, 4: 80}
"""Groups of each size that are estimated at most."""
STAGES, LAYERS, LEAST = 8, 125, 12
"""Pipeline stages up to which so many are, layers that count as a stage, and how few with many more: an estimate takes that long."""
CHEAPER = 0.99
"""What more changes must cost at most, relative to fewer that fit already."""
DEAR = 1.5
"""Relative to the run as it is: where what fits costs more, more changes together are tried."""
DEAREST = 2
"""What costs more than so many times another that fits is not listed."""
COST = "cost"
"""The name of what a step costs among the phases of a run."""


def fitting(now: Outcome, limit: int) -> list[Outcome]:
    """Changes that make a run fit, the cheapest first; where none does, single ones and what saves most.

    One at a time, the larger ones too where no small change that costs only time is enough; in pairs where they cost less; in threes
    and fours where nothing fits yet without asking for something, or only at a high price. What takes more than twice the GPUs that are
    enough, or costs more than twice another, is not listed.
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
        return sorted(
            (one for one in found if one.job.layout.world_size <= 2 * fewest and not _dear(one, found)), key=cost_of
        )
    tried = sorted((one for name, one in groups.tries.items() if len(name) > 1), key=lambda one: one.needed.high)
    return [*singles, *tried[:3]]


def _within(tried: Iterable[Outcome], limit: int) -> list[Outcome]:
    return [one for one in tried if one.needed.high <= limit]


def _plain(one: Outcome) -> bool:
    """Whether its changes cost only time: no numerics, no other hardware."""
    return not one.asks


def _cheaper(one: Outcome, found: Sequence[Outcome]) -> bool:
    """Whether it costs less than fewer changes that fit and ask for nothing more."""
    fewer = [cost_of(other) for other in found if len(other.changes) < len(one.changes) and other.asks <= one.asks]
    return not fewer or cost_of(one) < CHEAPER * min(fewer)


def _dear(one: Outcome, found: Iterable[Outcome]) -> bool:
    """Whether it costs more than twice another that asks for nothing else."""
    return any(cost_of(one) > DEAREST * cost_of(other) and other.asks <= one.asks for other in found)


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
        """The most promising groups of a size, estimated. A group with a smaller answer inside it is not tried."""
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


@dataclass(frozen=True)
class Outcome:
    """A changed run with its estimate and its step time."""

    changes: tuple[Change, ...]
    estimate: Estimate
    efficiency: Efficiency | None = None
    tried: Callable[[], object] = field(default=object, compare=False, repr=False)
    """What is called for each change of this run that is tried."""

    def __repr__(self) -> str:
        return f"<Outcome {'; '.join(change.name for change in self.changes) or 'as it is'}: {self.peak / GIB:.2f} GiB allocated>"

    @property
    def job(self) -> TrainingJob:
        """The changed job."""
        return self.estimate.job

    @property
    def peak(self) -> int:
        """Allocated bytes of the fullest stage."""
        return self.estimate.peak_stage.peak_allocated_bytes

    @property
    def needed(self) -> Range:
        """Device bytes of the phase and the stage that need most."""
        return self.estimate.needed

    @cached_property
    def time(self) -> Throughput:
        """Step time."""
        return throughput(self.estimate, self.efficiency)

    @property
    def asks(self) -> frozenset[str]:
        """What its changes ask for beside time."""
        return frozenset(change.asks for change in self.changes if change.asks)

    def verdict(self, limit: int) -> Verdict:
        """What the run is where it may take so many bytes of a GPU."""
        return self.estimate.verdict(limit)


def cost_of(one: Outcome) -> float:
    """GPU-seconds of a step."""
    return one.time.step * one.job.layout.world_size


def compatible(changes: Sequence[Change]) -> bool:
    """Whether no two changes set the same thing."""
    names = [name for change in changes for name, _ in change.settings]
    return len(names) == len(set(names))


def outcomes(now: Outcome, groups: Iterable[tuple[Change, ...]]) -> Iterator[Outcome]:
    """The run with each group of changes; those that Megatron-Core refuses, that do not divide, or that samples decide are left out."""
    for changes in groups:
        values: Settings = {}
        for change in changes:
            values.update(change.values())
        if concerns_samples(now.job, values):
            continue
        try:
            now.tried()
            yield Outcome(changes, estimate(changed(now.job, values)), now.efficiency)
        except EstimatorError:
            continue
