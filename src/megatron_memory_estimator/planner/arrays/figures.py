"""Memory and step time of the legal cells of one structure, from tables.

The peak of a stage is that of `peak.find_peak`, and the step that of `throughput.step.step_parts`, put together from tables of arrays
(`view.py`); tests hold them equal to `estimate` and `throughput` on random points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ...job.training import Training
from ...job.training_job import TrainingJob
from ...rank.declare import Declarer
from ...throughput.machine import Machine
from ..space.choices import Option, Style, training_with
from ..space.points import Array, Cells, Grid
from .peaks import Peaks
from .sharing import Known, SharingDeclarer, asked
from .tables import Pipelines, States, Tables
from .view import Evaluated, Figures, Outside, StagesOfShapes, Traced, View

FEW, CHUNK = 1 << 13, 1 << 15
"""Cells evaluated at a time, so that the arrays stay in the cache."""


class TabledFigures:
    """The points of one structure with all shapes, evaluated from tables; what several styles share is kept.

    `limit` is bytes of a GPU: cells whose model state alone needs more are not evaluated further. None: every cell is.
    """

    def __init__(
        self, job: TrainingJob, machine: Machine, grid: Grid, pipelines: Pipelines, limit: int | None = None
    ) -> None:
        self.job, self.machine, self.grid, self.pipelines, self.limit = job, machine, grid, pipelines, limit
        self.stages = StagesOfShapes(pipelines)
        self._states: dict[Any, States] = {}
        self._scratch = Known()

    def figures(
        self,
        style: Style,
        cells: Cells,
        trainings: Sequence[Training],
        optimizers: Sequence[Option],
        peaks: Sequence[Peaks],
    ) -> Iterator[Evaluated]:
        """The figures of every training and option, in pieces. Infinite where model state alone needs more than the limit."""
        tables = Tables(self.job, self.machine, self.grid, style, self.pipelines)
        first = tables.declarer(trainings[0])
        states = [
            self._state(tables, first, style, training_with(trainings[0], option), option) for option in optimizers
        ]
        low, high = tables.outside(trainings[0])
        hopeful = self._hopeful(cells, states, low)
        hopeless = np.nonzero(~hopeful)[0]
        for at, number in product(range(len(trainings)), range(len(optimizers))) if len(hopeless) else ():
            yield at, number, hopeless.__getitem__, Figures(*[np.full(len(hopeless), np.inf)] * 4)
        if not hopeful.any():
            return
        outside, sends = Outside(low, high), tables.sends(trainings[0])
        traced = []
        for at, (training, forms) in enumerate(zip(trainings, peaks, strict=True)):
            declarer = first if at == 0 else tables.declarer(training)
            running, times = tables.running(declarer, forms), tables.times(declarer, sends)
            traced.append(Traced(training, forms, running, times, self._scratches(tables, declarer, style)))
        for where, most in self._chunks(cells, np.nonzero(hopeful)[0]):
            view = View(self.job, self.grid, self.stages, cells.at(where), most, outside, states)
            for at, one in enumerate(traced):
                for number, figures in view.figures(one, optimizers):
                    yield at, number, where.__getitem__, figures

    def _hopeful(self, cells: Cells, states: Sequence[States], low: Array) -> Array:
        """Cells that model state does not fill, with the optimizer's settings that need least."""
        if self.limit is None:
            return np.ones(len(cells), dtype=bool)
        worlds, points, micro = self.grid.shape
        least = reduce(np.minimum, [state.state for state in states])
        fullest = reduce(np.maximum, [least[self.stages.at[:, place]] for place in range(self.stages.most)])
        cell = (cells.shape * worlds + cells.world) * points + cells.point
        hopeful: Array = fullest.reshape(-1).take(cell) + low.reshape(-1).take(cell * micro + cells.micro) <= self.limit
        return hopeful

    def _chunks(self, cells: Cells, chosen: Array) -> Iterator[tuple[Array, int]]:
        """Places of cells whose shapes have as many different stages, and how many, so that no stage is evaluated twice."""
        count = self.stages.different[cells.shape[chosen]]
        if len(chosen) < FEW:
            count = np.full(len(chosen), self.stages.most)
        for most in np.unique(count).tolist():
            places = chosen[count == most]
            for start in range(0, len(places), CHUNK):
                yield places[start : start + CHUNK], most

    def _state(self, tables: Tables, declarer: Declarer, style: Style, training: Training, option: Option) -> States:
        recipe = training.low_precision if training.low_precision_weights else ""
        masters = training.fp8_recipe if option.precision_aware else ""  # an fp8 recipe decides who keeps the masters
        key = (recipe, masters, style.sequence_parallel, option)
        if key not in self._states:
            self._states[key] = tables.states(declarer, training)
        return self._states[key]

    def _scratches(self, tables: Tables, declarer: SharingDeclarer, style: Style) -> tuple[Array, Array]:
        asking = asked(declarer.training)
        key = (style.precision, style.sequence_parallel)
        return self._scratch.find(key, asking, lambda: tables.scratch(declarer, asking))
