"""Memory and step time of every legal layout, by the route that the training takes (`routes.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..job.training import Training
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..rank.build import context_of
from ..throughput.machine import Machine
from .arrays.figures import TabledFigures
from .arrays.passes import PassTables
from .arrays.peaks import Peaks, peaks, stages, symbols
from .arrays.tables import Pipelines
from .arrays.view import Evaluated, Figures
from .arrays.whole import WholeRanks
from .cell_ideas import CellIdeas, cell_ideas
from .counting import LegalSpace, LegalStructure, LegalStyle
from .places import NANOSECONDS, Place, idea_of
from .space.chains import Chains
from .space.points import Array, Cells, Grid, Shape
from .space.routes import route


class Piece(NamedTuple):
    """The figures of some cells of a structure with one style, training and option, by number."""

    structure: int
    style: int
    training: int
    option: int
    chosen: LegalStyle
    cells_of: Callable[[Array], Array]
    figures: Figures
    grid: Grid
    shapes: Sequence[Shape]
    numbers: CellIdeas

    def ideas(self, at: Array) -> Array:
        """A number for each of some layouts: equal ones are of one idea."""
        return self.numbers.of(self.chosen.cells, self.cells_of(at))

    def place(self, index: int) -> Place:
        """One of the layouts."""
        name, training = self.chosen.trainings[self.training]
        source = int(self.cells_of(np.array(index)))
        cell = tuple(int(getattr(self.chosen.cells, f.name)[source]) for f in dataclasses.fields(Cells))
        shape, world, point, *_ = cell
        option, grid = self.chosen.options[self.option], self.grid
        return Place(
            (self.structure, self.style, self.training, self.option, source),
            self.chosen.style,
            name,
            training,
            option,
            cell,
            float(self.figures.step[index]),
            int(self.figures.peak[index]),
            int(self.figures.low[index]),
            int(self.figures.high[index]),
            idea_of(grid.worlds[world], grid.points[point], self.shapes[shape], self.chosen.style, option, training),
        )


class Evaluation:
    """The figures of the structures of a space."""

    def __init__(self, base: TrainingJob, machine: Machine, legal: LegalSpace) -> None:
        self.base, self.machine, self.legal = base, machine, legal
        self.tabled = route(base.training, base.model) == "tables"
        self.chains = Chains(base.model)

    def pieces(self, chosen: Sequence[int], limit: int | None, ask: Callable[[], None]) -> Iterator[Piece]:
        """The figures of the chosen structures. Layouts whose model state alone is above a limit may have infinite ones."""
        forms = _Forms(self.base, self.legal, chosen, ask) if self.tabled else None
        for number in chosen:
            ask()
            structure = self.legal.structures[number]
            tables = None
            if forms is not None:
                tables = TabledFigures(self.base, self.machine, structure.grid, forms.pipelines, limit)
            numbers = cell_ideas(structure.grid, self.legal.shapes)
            for place, style in enumerate(structure.styles):
                for at, option, cells_of, figures in self._figures(structure, style, tables, forms):
                    rounded = dataclasses.replace(figures, step=np.rint(figures.step * NANOSECONDS) / NANOSECONDS)
                    yield Piece(
                        number, place, at, option, style, cells_of, rounded, structure.grid, self.legal.shapes, numbers
                    )

    def _figures(
        self, structure: LegalStructure, style: LegalStyle, tables: TabledFigures | None, forms: _Forms | None
    ) -> Iterable[Evaluated]:
        trainings = [training for _, training in style.trainings]
        if tables is None or forms is None:
            ranks = WholeRanks(self.base, self.machine, structure.grid, style.style, self.legal.shapes, self.chains)
            return ranks.figures(style.cells, trainings, style.options)
        known = [forms.peaks(training) for training in trainings]
        return tables.figures(style.style, style.cells, trainings, style.options, known)


class _Forms:
    """The peaks of all stages of some structures as forms, by what they depend on."""

    def __init__(self, base: TrainingJob, legal: LegalSpace, chosen: Sequence[int], ask: Callable[[], None]) -> None:
        self.base, self.shapes, self.ask = base, legal.shapes, ask
        counts = {
            pair for number in chosen for style in legal.structures[number].styles for pair in style.cells.counts()[0]
        }
        self.counts = {(shape, legal.shapes[shape].effective(count)) for shape, count in counts}
        """Shapes with the microbatches that their schedules tell apart."""
        different = stages(base, self.shapes, symbols(_unrecomputed(base)))
        self.pipelines = Pipelines(self.shapes, different, PassTables(base, self.shapes, different, counts))
        self.known: dict[Any, Peaks] = {}

    def peaks(self, training: Training) -> Peaks:
        """Peaks as forms; they differ in how recomputation groups layers into units, and in which layers stay in 16 bits."""
        self.ask()
        t = training
        full = t.recompute_granularity == "full"
        low = bool(t.low_precision and t.first_last_layers_bf16)
        groups = t.recomputes("mhc") and (t.mhc_recompute_layer_num or "chunk")
        key = (full and (t.recompute_method, t.recompute_num_layers), groups, low)
        one = t.recompute_method == "uniform" and t.recompute_num_layers == 1
        if key not in self.known and full and one and not self.base.model.has_moe:
            plain = dataclasses.replace(t, recompute_granularity=None, recompute_method=None, recompute_num_layers=None)
            self.known[key] = self.peaks(plain).checkpointed()
        elif key not in self.known:
            declarer = symbols(dataclasses.replace(context_of(self.base), training=t))
            self.known[key] = peaks(declarer, self.shapes, stages(self.base, self.shapes, declarer), self.counts)
        return self.known[key]


def _unrecomputed(job: TrainingJob) -> Context:
    """A context of the job without recomputation: every layer is a unit of its own."""
    c = context_of(job)
    return dataclasses.replace(
        c, training=dataclasses.replace(c.training, recompute_granularity=None, recompute_modules=None)
    )
