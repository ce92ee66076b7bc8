"""What would make a run fit, or a run that fits faster: the smallest changes, each with what it saves and what it costs.

Every change is a job of its own, estimated like any other. First each change alone; where none is enough, pairs, then triples of
those that save most.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any

from ..dataclass import dataclass
from ..device.terms import Range
from ..device.verdict import Verdict
from ..errors import EstimatorError
from ..estimator import Estimate, estimate
from ..frames import frame
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from ..throughput.machine import Efficiency
from ..throughput.step import Throughput, throughput
from .base import TOKENS_OF_A_STEP, timed_as
from .change import Change, Settings
from .changes import allocator, changed, memory_changes, speed_changes

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CHANGES, KEPT = 3, 8
"""Changes at once at most, and how many of the best single ones are combined."""
ROOM = 0.9
"""A run has room to be made faster where the high end of its device range is below this share of the memory."""


@dataclass(frozen=True)
class Outcome:
    """A changed run with its estimate and its step time."""

    changes: tuple[Change, ...]
    estimate: Estimate
    efficiency: Efficiency | None = None

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
    def device(self) -> Range:
        """Device bytes of the fullest stage."""
        return self.estimate.device

    @cached_property
    def time(self) -> Throughput:
        """Step time."""
        return throughput(self.estimate, self.efficiency)

    @property
    def timed(self) -> bool:
        """Whether its step time is modelled: that of an offloaded optimizer is not."""
        return not self.job.training.optimizer_cpu_offload

    @property
    def asks(self) -> frozenset[str]:
        """What its changes ask for beside time."""
        return frozenset(change.asks for change in self.changes if change.asks)

    def verdict(self, limit: int) -> Verdict:
        """What the run is where it may take so many bytes of a GPU."""
        return self.estimate.verdict(limit)


@dataclass(frozen=True)
class Advice:
    """A run as it is, its memory limit, and changes of it, the best first."""

    now: Outcome
    limit: int
    outcomes: tuple[Outcome, ...]
    assumptions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        gpu = f"{self.now.job.gpu.name}, {self.limit / GIB:.2f} GiB"
        return f"<Advice {gpu}: {self.now.verdict(self.limit)}, {len(self.outcomes)} change{'' if len(self.outcomes) == 1 else 's'}>"

    def table(self) -> list[dict[str, Any]]:
        """The run as it is, then one record for each change, with plain numbers, units in the names of the columns."""
        from ..report import advice_views

        return advice_views.records(self)

    def to_frame(self) -> DataFrame:
        """`table()` as a frame of pandas."""
        return frame(self.table())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from ..report import advice_views

        return advice_views.html(self)

    @property
    def faster(self) -> bool:
        """Whether the run fits with room, so that the changes are for speed."""
        return self.now.device.high <= self.limit * ROOM


def advise(
    job: TrainingJob, *, limit: int | None = None, most: int = 10, efficiency: Efficiency | None = None
) -> Advice:
    """The smallest changes that make a run fit surely; for one that fits with room, those that make it faster.

    Raises LayoutError for a run that Megatron-Core refuses and UnsupportedError for what is not modelled.
    """
    job, said = priced(job)
    now = Outcome((), estimate(job), efficiency)
    limit = job.gpu.memory_bytes if limit is None else limit
    wanted = Advice(now, limit, (), said)
    if wanted.faster:
        found = _faster(now, limit, efficiency) if now.timed else []
    else:
        found = _fitting(now, limit, efficiency)
    found = worth(found)
    if not any(one.device.high <= limit for one in found):  # nothing is enough: what saves most first
        found = sorted(found, key=lambda one: one.device.high)
    if now.verdict(limit).word == "fits only without fragmentation":  # costs nothing: first, and there whatever else is
        found = [
            *_outcomes(now, [(allocator(now.job),)], efficiency),
            *(one for one in found if not _is_allocator(one)),
        ]
    return dataclasses.replace(wanted, outcomes=tuple(found[:most]))


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


def _fitting(now: Outcome, limit: int, efficiency: Efficiency | None) -> list[Outcome]:
    """Changes that make a run fit: alone where one is enough, else together. Cheapest in time first."""
    singles = list(_outcomes(now, [(change,) for change in memory_changes(now.job)], efficiency))
    helpful = sorted((one for one in singles if one.device.high < now.device.high), key=lambda one: one.device.high)
    found = sorted((one for one in helpful if one.device.high <= limit), key=cost_of)
    if found:  # two changes together only where they cost less than the cheapest alone
        rest = sorted((one for one in helpful if one not in found), key=cost_of)[:KEPT]
        pairs = [one for one in _together(now, rest, 2, efficiency) if one.device.high <= limit]
        cheaper = [one for one in pairs if cost_of(one) < 0.99 * cost_of(found[0])]
        return sorted([*cheaper[:3], *found], key=cost_of)
    for size in range(2, MOST_CHANGES + 1):
        found = [
            one for one in _together(now, helpful[: 3 * KEPT // size], size, efficiency) if one.device.high <= limit
        ]
        if found:
            return sorted(found, key=cost_of)
    return helpful  # nothing is enough: what helps most


def worth(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that pay for themselves: no other one that asks for nothing else costs as little and takes as little memory."""
    found: list[Outcome] = []
    for one in sorted(outcomes, key=lambda one: (cost_of(one), one.device.high, len(one.asks), len(one.changes))):
        if not any(other.device.high <= one.device.high and other.asks <= one.asks for other in found):
            found.append(one)
    return found


def _is_allocator(one: Outcome) -> bool:
    return [name for change in one.changes for name, _ in change.settings] == ["expandable_segments"]


def cost_of(one: Outcome) -> float:
    """GPU-seconds of a step; infinite where the step time is not modelled."""
    return one.time.step * one.job.layout.world_size if one.timed else inf


def _together(now: Outcome, singles: Sequence[Outcome], size: int, efficiency: Efficiency | None) -> list[Outcome]:
    """So many of the changes at once, where they do not contradict each other."""
    groups = [tuple(one.changes[0] for one in group) for group in combinations(singles, size)]
    return list(_outcomes(now, [group for group in groups if _compatible(group)], efficiency))


def _faster(now: Outcome, limit: int, efficiency: Efficiency | None) -> list[Outcome]:
    """Changes that keep a run within memory and make it faster: alone and in pairs, the fastest first."""
    singles = [
        one
        for one in _outcomes(now, [(change,) for change in speed_changes(now.job)], efficiency)
        if one.device.high <= limit
    ]
    better = sorted((one for one in singles if one.time.step < now.time.step * 0.995), key=lambda one: one.time.step)
    tried = [one for one in _together(now, better[:KEPT], 2, efficiency) if one.device.high <= limit]
    fastest = {one.changes[0].name: one.time.step for one in better}
    worth = [one for one in tried if one.time.step < 0.99 * min(fastest[change.name] for change in one.changes)]
    return sorted([*better, *worth], key=lambda one: one.time.step)


def _compatible(changes: Sequence[Change]) -> bool:
    """Whether no two changes set the same thing."""
    names = [name for change in changes for name, _ in change.settings]
    return len(names) == len(set(names))


def _outcomes(now: Outcome, groups: Sequence[tuple[Change, ...]], efficiency: Efficiency | None) -> Iterator[Outcome]:
    for changes in groups:
        values: Settings = {}
        for change in changes:
            values.update(change.values())
        try:
            yield Outcome(changes, estimate(changed(now.job, values)), efficiency)
        except EstimatorError:
            continue
