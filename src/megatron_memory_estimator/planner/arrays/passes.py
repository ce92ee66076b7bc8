"""Seconds of the pipelines of all shapes from the chains of their schedules, as arrays over degrees and micro batch sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...job.training_job import TrainingJob
from ...tape.tensor import total
from ...throughput.critical import Row
from ...throughput.schedule import Schedule
from ...throughput.stages import TimeKey
from ..space.chains import Chains
from ..space.points import Array, Shape
from .peaks import StageUnits


class Rows(NamedTuple):
    """Chains of several pipelines: forwards and backwards of the chunks of every stage, or of units [row, column], sends of a microbatch
    [row], the pipeline of each [row], and where those of each pipeline and number of microbatches begin."""

    forward: Array
    backward: Array
    sends: Array
    shape: Array
    starts: Array

    def seconds(self, forward: Array, backward: Array, sends: Array) -> Array:
        """[pipeline and microbatches, GPUs, point x micro batch]: the longest chain of each, of a forward and a backward of every
        column [column, point x micro batch] and of sends [shape, GPUs, point x micro batch]."""
        chains = self.forward @ forward + self.backward @ backward
        whole = chains[:, None] + self.sends[:, None, None] * sends[self.shape]
        found: Array = np.maximum.reduceat(whole, self.starts, axis=0)
        return found

    def of(self, units: Array) -> Rows:
        """The same over the units that chunks have [chunk of a stage, unit]."""
        return self._replace(forward=self.forward @ units, backward=self.backward @ units)


class Timed(NamedTuple):
    """Units as far as time goes: how many every stage has [stage, unit], and the chains of all pipelines [row, unit]."""

    keys: list[TimeKey]
    stages: Array
    step: Rows
    repeats: Rows


class PassTables:
    """The chains of all shapes with all their numbers of microbatches. `at` says where those of a shape and a number begin."""

    def __init__(
        self, job: TrainingJob, shapes: Sequence[Shape], stages: Sequence[StageUnits], counts: Iterable[tuple[int, int]]
    ) -> None:
        self.chunks = [(index, chunk) for index, stage in enumerate(stages) for chunk in range(len(stage.plans))]
        """Stage and chunk, in the order of the columns of rows."""
        self.shapes = shapes
        columns = {one: column for column, one in enumerate(self.chunks)}
        stands = {(stage.shape, rank): index for index, stage in enumerate(stages) for rank in stage.ranks}
        self.at: dict[tuple[int, int], int] = {}
        chains = Chains(job.model)
        step, repeats = _Written(columns, stands), _Written(columns, stands)
        for number, count in sorted(counts):
            schedule = schedule_of(shapes[number])
            simulated = schedule.simulated(count)
            if (number, simulated) in self.at:
                continue
            self.at[number, simulated] = len(self.at)
            found = chains.of(shapes[number].layout, schedule, count)
            step.write(number, schedule, found.step)
            repeats.write(number, schedule, found.repeats)
        self.step, self.repeats = step.rows(), repeats.rows()

    def beyond(self, number: int, count: int) -> tuple[int, float]:
        """Where the chains of a shape with so many microbatches stand, and how often the middle of its schedule repeats itself."""
        schedule = schedule_of(self.shapes[number])
        simulated = schedule.simulated(count)
        return self.at[number, simulated], (count - simulated) / schedule.period


def schedule_of(shape: Shape) -> Schedule:
    """The schedule of a pipeline without all-to-all overlap, which no table holds."""
    return Schedule(shape.pp, shape.vp, shape.group)


class _Written:
    """Rows as they come."""

    def __init__(self, columns: dict[tuple[int, int], int], stands: dict[tuple[int, int], int]) -> None:
        self.columns, self.stands = columns, stands
        self.starts: list[int] = []
        self.shape: list[int] = []
        self.sends: list[float] = []
        self.forward: list[Array] = []
        self.backward: list[Array] = []

    def write(self, number: int, schedule: Schedule, rows: Sequence[Row]) -> None:
        """Add the chains of a shape."""
        self.starts.append(len(self.shape))
        for row in rows:
            ways = np.zeros((2, len(self.columns)))
            for place, count in enumerate(row):
                rank, rest = divmod(place, 2 * schedule.vp)
                ways[rest % 2, self.columns[self.stands[number, rank], rest // 2]] += count
            self.forward.append(ways[0])
            self.backward.append(ways[1])
            self.sends.append(total(row) / (2 * schedule.vp))
            self.shape.append(number)

    def rows(self) -> Rows:
        """All of them."""
        shape, starts = np.array(self.shape), np.array(self.starts)
        return Rows(np.array(self.forward), np.array(self.backward), np.array(self.sends), shape, starts)
