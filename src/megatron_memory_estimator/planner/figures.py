"""Memory and step time of legal cells: from tables, or from the engine on arrays where a feature needs more than tables hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ..activations import Planner
from ..captures import REUSED_GRAPH_BUFFERS
from ..device.reserved import built_high, unused_bytes
from ..device.verdict import enough_bytes, needed_bytes
from ..estimator import context_of, estimate
from ..job import TrainingJob
from ..peak import find_peak
from ..throughput.machine import Machine
from ..throughput.step import OVERHEAD, exposed, step_parts
from ..training import Training
from .batch import Batch, fullest
from .legal import Cells, at_point
from .shapes import Peaks, Shape
from .space import Option, Style
from .tables import Grid, Pipelines, States, Tables, Times

Array = np.ndarray[Any, Any]
FEW, CHUNK = 1 << 13, 1 << 15
"""Cells evaluated at a time, so that the arrays stay in the cache."""


@dataclass(frozen=True)
class Figures:
    """Of every cell: seconds of a step, allocated bytes of the fullest stage, bytes needed on the device, and surely enough."""

    step: Array
    peak: Array
    needed: Array
    enough: Array


def in_arrays(training: Training) -> bool:
    """Whether arrays of layouts have one structure: not where sizes decide what is offloaded or which rank owns a parameter."""
    t = training
    return not (t.fine_grained_activation_offloading or t.cpu_offloading_num_layers or t.optimizer == "muon")


@dataclass
class Structure:
    """The points of one structure with all shapes, and what is known of them."""

    job: TrainingJob
    machine: Machine
    grid: Grid
    pipelines: Pipelines
    limit: int | None = None
    """Bytes of a GPU: cells whose model state alone needs more are not evaluated further. None: every cell is."""

    def __post_init__(self) -> None:
        self.shapes, self.stages = self.pipelines.shapes, self.pipelines.stages
        members: dict[int, list[int]] = {}
        for index, stage in enumerate(self.stages):
            members.setdefault(stage.shape, []).append(index)
        self.different = np.array([len(row) for _, row in sorted(members.items())])
        self.most = int(self.different.max())
        self.stage_of = np.array([(row + row[-1:] * self.most)[: self.most] for _, row in sorted(members.items())])
        self.pp = np.array([shape.pp for shape in self.shapes])
        self.vp = np.array([shape.vp for shape in self.shapes])
        weights = np.zeros((len(self.shapes), len(self.stages)))
        for index, stage in enumerate(self.stages):
            weights[stage.shape, index] = stage.copies / self.shapes[stage.shape].pp
        self.weights = weights
        self._states: dict[Any, States] = {}
        self._scratch: dict[Any, tuple[Array, Array]] = {}

    def figures(
        self,
        style: Style,
        cells: Cells,
        trainings: Sequence[Training],
        optimizers: Sequence[Option],
        peaks: Sequence[Peaks],
    ) -> Iterator[tuple[int, int, Callable[[Array], Array], Figures]]:
        """(training, option, how to find the cells of a place, figures) for every training and option. Infinite where model state alone
        needs more than the limit."""
        tables = Tables(self.job, self.machine, self.grid, style, self.pipelines)
        first = tables.planner(trainings[0])
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
        sends = tables.sends(trainings[0])
        traced: dict[int, tuple[Array, Times, tuple[Array, Array]]] = {}
        for at, training in enumerate(trainings):
            planner = first if at == 0 else tables.planner(training)
            running = tables.running(planner, peaks[at])
            traced[at] = running, tables.times(planner), self._scratches(tables, planner, style, training)
        for where, most in self._chunks(cells, np.nonzero(hopeful)[0]):
            view = _View(self, cells.at(where), most, low, high, sends, states)
            for at, training in enumerate(trainings):
                running, times, scratch = traced[at]
                for number, found in view.figures(training, optimizers, running, peaks[at], times, scratch):
                    yield at, number, where.__getitem__, found

    def _hopeful(self, cells: Cells, states: Sequence[States], low: Array) -> Array:
        """Cells that model state does not fill, with the optimizer's settings that need least."""
        if self.limit is None:
            return np.ones(len(cells), dtype=bool)
        worlds, points, micro = self.grid.shape
        least = reduce(np.minimum, [state.state for state in states])
        fullest = reduce(np.maximum, [least[self.stage_of[:, place]] for place in range(self.most)])
        cell = (cells.shape * worlds + cells.world) * points + cells.point
        found: Array = fullest.reshape(-1).take(cell) + low.reshape(-1).take(cell * micro + cells.micro) <= self.limit
        return found

    def _chunks(self, cells: Cells, chosen: Array) -> Iterator[tuple[Array, int]]:
        """Places of cells whose shapes have as many different stages, and how many, so that no stage is evaluated twice."""
        count = self.different[cells.shape[chosen]]
        if len(chosen) < FEW:
            count = np.full(len(chosen), self.most)
        for most in np.unique(count).tolist():
            places = chosen[count == most]
            for start in range(0, len(places), CHUNK):
                yield places[start : start + CHUNK], most

    def _state(self, tables: Tables, planner: Planner, style: Style, training: Training, option: Option) -> States:
        recipe = training.low_precision if training.low_precision_weights else ""
        masters = training.fp8_recipe if option.precision_aware else ""  # an fp8 recipe decides who keeps the masters
        key = (recipe, masters, style.sequence_parallel, option)
        if key not in self._states:
            self._states[key] = tables.states(planner, training)
        return self._states[key]

    def _scratches(self, tables: Tables, planner: Planner, style: Style, training: Training) -> tuple[Array, Array]:
        again = self.job.model.experimental_attention_variant == "dsa" and training.recompute_granularity == "full"
        # only shared indexers keep something else under full recomputation
        key = (style.precision, style.sequence_parallel, again)
        if key not in self._scratch:
            self._scratch[key] = tables.scratch(planner)
        return self._scratch[key]


def training_with(training: Training, option: Option) -> Training:
    """A training with the optimizer's settings of an option."""
    return dataclasses.replace(training, **option.settings())


class _View:
    """The cells of one chunk: flat indices into the tables, and what does not depend on recomputation."""

    def __init__(
        self,
        structure: Structure,
        cells: Cells,
        most: int,
        low: Array,
        high: Array,
        sends: Array,
        states: Sequence[States],
    ) -> None:
        self.structure, self.cells, self.most = structure, cells, most
        worlds, points, micro = structure.grid.shape
        cell = ((cells.shape * worlds + cells.world) * points + cells.point) * micro + cells.micro
        self.flat = cells.point * micro + cells.micro
        self.low, self.high, self.sends = (table.reshape(-1).take(cell) for table in (low, high, sends))
        self.pp, self.vp = structure.pp[cells.shape], structure.vp[cells.shape]
        self.stages = [structure.stage_of[:, place][cells.shape] for place in range(most)]
        self.size = points * micro
        self.pairs, self.which = cells.counts()
        self.flats = [stage * self.size + self.flat for stage in self.stages]
        places = [(stage * worlds + cells.world) * points + cells.point for stage in self.stages]
        self.states = [
            [
                States(*(getattr(state, f.name).reshape(-1).take(place) for f in dataclasses.fields(States)))
                for place in places
            ]
            for state in states
        ]
        self.fixed = [
            (
                reduce(np.maximum, [at.optimizer for at in option]), reduce(np.maximum, [at.built for at in option]),
                reduce(np.maximum, [np.asarray(built_high(structure.job, at.apart)) for at in option]),
            )
            for option in self.states
        ]  # fmt: skip
        self.taken: dict[int, list[tuple[Array, Array]]] = {}

    def figures(
        self, training: Training, optimizers: Sequence[Option], running: Array, peaks: Peaks, times: Times,
        scratch: tuple[Array, Array],
    ) -> Iterator[tuple[int, Figures]]:  # fmt: skip
        """The figures of every option with one training."""
        job, cells = self.structure.job, self.cells
        context = dataclasses.replace(context_of(job), training=training)
        run = [running.reshape(-1).take(row * self.size + self.flat) for row in self._rows(peaks)]
        if id(scratch) not in self.taken:
            self.taken[id(scratch)] = [(scratch[0].take(at), scratch[1].take(at)) for at in self.flats]
        overlapped = training.overlap_grad_reduce or training.overlap_param_gather
        forward, backward = (
            [table.take(at) for at in self.flats] if overlapped else [0.0] * self.most
            for table in (times.forward, times.backward)
        )
        mean = (self.structure.weights @ times.total).take(cells.shape * self.size + self.flat) + self.sends
        pipeline = cells.count * (self._slowest(times.total) + self.sends) + (self.pp - 1) / self.vp * mean + OVERHEAD
        for number, option in enumerate(optimizers):
            changed = dataclasses.replace(context, training=training_with(training, option))
            peak, reserved, reduced, gathered = [], [], [], []
            for place, state in enumerate(self.states[number]):
                kept, resting = self.taken[id(scratch)][place]
                moving = kept + np.maximum(run[place], resting + state.step)
                one = moving + state.state
                peak.append(one)
                reserved.append(one + unused_bytes(job, one, moving + state.own))
                shown = exposed(changed, state.reduce, state.gather, forward[place], backward[place])
                reduced.append(shown[0])
                gathered.append(shown[1])
            top = reduce(np.maximum, peak)
            optimizer, built, built_most = self.fixed[number]
            enough = np.maximum(reduce(np.maximum, reserved), built_most) + self.high
            step = pipeline + reduce(np.maximum, reduced) + reduce(np.maximum, gathered) + optimizer
            yield number, Figures(step, top, np.maximum(top, built) + self.low, enough)

    def _slowest(self, total: Array) -> Array:
        by_shape = reduce(
            np.maximum, [total[self.structure.stage_of[:, place]] for place in range(self.structure.most)]
        )
        found: Array = by_shape.reshape(-1).take(self.cells.shape * self.size + self.flat)
        return found

    def _rows(self, peaks: Peaks) -> list[Array]:
        """Where the peaks of each stage with the microbatches of each cell stand."""
        structure = self.structure
        found = []
        for shape, count in self.pairs:
            effective = structure.shapes[shape].effective(count)
            found.append([peaks.at[int(stage), effective] for stage in structure.stage_of[shape]])
        table = np.array(found)
        return [table[:, place][self.which] for place in range(self.most)]


def alone(
    job: TrainingJob,
    machine: Machine,
    grid: Grid,
    style: Style,
    shapes: Sequence[Shape],
    cell: Cells,
    training: Training,
) -> Figures:
    """The figures of one cell, from the explained estimate."""
    point = grid.points[int(cell.point[0])]
    layout = dataclasses.replace(
        at_point(shapes[int(cell.shape[0])].layout, point, style, moe=bool(job.model.num_moe_experts)),
        world_size=grid.worlds[int(cell.world[0])],
    )
    changed = dataclasses.replace(training, micro_batch_size=grid.micro[int(cell.micro[0])])
    one = dataclasses.replace(job, layout=layout, training=changed, num_microbatches=int(cell.count[0]))
    found = estimate(one)
    step = sum(
        step_parts(machine, found.planner, [stage.rank for stage in found.stages], one.num_microbatches).values()
    )
    values = (
        step, found.peak_stage.peak_allocated_bytes, max(stage.needed_bytes for stage in found.stages),
        max(stage.enough_bytes for stage in found.stages),
    )  # fmt: skip
    return Figures(*(np.array([float(value)]) for value in values))


def whole(
    job: TrainingJob,
    machine: Machine,
    grid: Grid,
    style: Style,
    shapes: Sequence[Shape],
    cells: Cells,
    training: Training,
) -> Figures:
    """The same from whole ranks on arrays, one batch for each shape and number of microbatches."""
    size = len(cells)
    found = Figures(*(np.zeros(size) for _ in dataclasses.fields(Figures)))
    pairs, which = cells.counts()
    by_microbatch = training.defer_embedding_wgrad_compute or training.mcore < REUSED_GRAPH_BUFFERS
    groups: dict[tuple[int, int], list[int]] = {}
    for at, (shape, count) in enumerate(pairs):
        groups.setdefault((shape, count if by_microbatch else shapes[shape].effective(count)), []).append(at)
    for (shape, _), members in groups.items():
        places = np.nonzero(np.isin(which, members))[0]
        tp, cp, ep, etp = np.array(grid.points)[cells.point[places]].T
        micro: Any = np.array(grid.micro)[cells.micro[places]]
        counts: Any = cells.count[places]
        one = dataclasses.replace(
            shapes[shape].layout, sequence_parallel=style.sequence_parallel, cp_comm_type=(style.cp_comm_type,)
        )
        columns: dict[str, Any] = {
            "world_size": np.array(grid.worlds)[cells.world[places]], "tensor_model_parallel_size": tp, "context_parallel_size": cp,
            "expert_model_parallel_size": ep, "expert_tensor_parallel_size": etp,
        }  # fmt: skip
        layout = dataclasses.replace(one, **columns)
        first = dataclasses.replace(job, layout=one, training=training, num_microbatches=int(counts[0]))
        batch = Batch(first, tuple(range(len(places))), layout, micro)
        planner, stages = fullest(batch)
        array_job = dataclasses.replace(first, layout=layout, training=planner.context.training)
        rows = []
        for rank, _ in stages:
            peak = find_peak(rank)
            rows.append((peak.nbytes, needed_bytes(array_job, rank, peak), enough_bytes(array_job, rank, peak)))
        step = sum(step_parts(machine, planner, [rank for rank, _ in stages], counts, [n for _, n in stages]).values())
        found.step[places] = step
        for table, column in zip((found.peak, found.needed, found.enough), zip(*rows, strict=True), strict=True):
            table[places] = reduce(np.maximum, column)
    return found
