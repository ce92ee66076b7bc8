"""What would make a run fit, or a run that fits faster: the smallest changes, each with what it saves and what it costs.

Every change is a job of its own, estimated like any other: alone, and where that is not enough together (`together.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ..dataclass import dataclass
from ..estimator import estimate
from ..frames import frame
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from ..throughput.machine import Efficiency
from .base import TOKENS_OF_A_STEP, timed_as
from .changed_run import Outcome, compatible, cost_of, outcomes
from .changes import allocator, changed, speed_changes
from .together import fitting

if TYPE_CHECKING:
    from pandas import DataFrame

KEPT = 8
"""How many of the best changes alone are combined to make a run faster."""
ROOM = 0.9
"""A run has room to be made faster where the high end of its device range is below this share of the memory."""


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
        found = _faster(now, limit)
    else:
        found = [one for one in fitting(now, limit) if saves(now, one)]
    found = worth(found)
    if not any(one.device.high <= limit for one in found):  # nothing is enough: what saves most first
        found = sorted(found, key=lambda one: one.device.high)
    if now.verdict(limit).word == "fits only without fragmentation":  # costs nothing: first, and there whatever else is
        found = [
            *outcomes(now, [(allocator(now.job),)]),
            *(one for one in found if not _is_allocator(one)),
        ]
    return dataclasses.replace(wanted, outcomes=tuple(found[:most]))


def saves(now: Outcome, one: Outcome) -> bool:
    """Whether changes leave more room, and cost nothing at the peak."""
    return one.device.high < now.device.high and one.peak <= now.peak


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
    for one in sorted(tried, key=lambda one: (cost_of(one), one.device.high, len(one.asks), len(one.changes))):
        if not any(other.device.high <= one.device.high and other.asks <= one.asks for other in found):
            found.append(one)
    return found


def _is_allocator(one: Outcome) -> bool:
    return [name for change in one.changes for name, _ in change.settings] == ["expandable_segments"]


def _faster(now: Outcome, limit: int) -> list[Outcome]:
    """Changes that keep a run within memory and make it faster: alone and in pairs, the fastest first."""
    alone = outcomes(now, [(change,) for change in speed_changes(now.job)])
    singles = [one for one in alone if one.device.high <= limit]
    better = sorted((one for one in singles if one.time.step < now.time.step * 0.995), key=lambda one: one.time.step)
    groups = [(one.changes[0], other.changes[0]) for one, other in combinations(better[:KEPT], 2)]
    tried = [one for one in outcomes(now, filter(compatible, groups)) if one.device.high <= limit]
    fastest = {one.changes[0].name: one.time.step for one in better}
    worth = [one for one in tried if one.time.step < 0.99 * min(fastest[change.name] for change in one.changes)]
    return sorted([*better, *worth], key=lambda one: one.time.step)
