"""A changed run, estimated like any other, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from ..dataclass import dataclass
from ..device.terms import Range
from ..device.verdict import Verdict
from ..errors import EstimatorError
from ..estimator import Estimate, estimate
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from ..throughput.machine import Efficiency
from ..throughput.step import Throughput, throughput
from .changes import Change, Settings, changed


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
    """The run with each group of changes; those that Megatron-Core refuses, or that do not divide, are left out."""
    for changes in groups:
        values: Settings = {}
        for change in changes:
            values.update(change.values())
        try:
            yield Outcome(changes, estimate(changed(now.job, values)), now.efficiency)
        except EstimatorError:
            continue
