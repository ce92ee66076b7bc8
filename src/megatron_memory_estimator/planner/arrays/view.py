"""The figures of one chunk of cells: tables taken at the place of each cell and added up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from ...dataclass import dataclass
from ...device.reserved import built_high, loaded_high, unused_bytes
from ...job.training import Training
from ...job.training_job import TrainingJob
from ...modules.context import Context
from ...rank.build import context_of
from ...throughput.step import OVERHEAD, exposed
from ..space.choices import Option
from ..space.points import Array, Cells, Grid
from .peaks import Peaks
from .tables import Pipelines, States, Times


@dataclass(frozen=True)
class Figures:
    """Of every cell: seconds of a step, allocated bytes of the fullest stage, and the low and high end of its device bytes."""

    step: Array
    peak: Array
    low: Array
    high: Array


Evaluated = tuple[int, int, Callable[[Array], Array], Figures]
"""A training and an option by number, how to find the cells of places, and the figures of those places."""


class StagesOfShapes:
    """The different stages of every shape, as arrays over shapes."""

    def __init__(self, pipelines: Pipelines) -> None:
        self.shapes, stages = pipelines.shapes, pipelines.stages
        members: dict[int, list[int]] = {}
        for index, stage in enumerate(stages):
            members.setdefault(stage.shape, []).append(index)
        numbers = [of_shape for _, of_shape in sorted(members.items())]
        self.different = np.array([len(of_shape) for of_shape in numbers])
        """How many there are."""
        self.most = int(self.different.max())
        self.at = np.array([(of_shape + of_shape[-1:] * self.most)[: self.most] for of_shape in numbers])
        """[shape, place]: their numbers; the last stands for those that a shape has fewer of."""
        self.passes = pipelines.passes


class Traced(NamedTuple):
    """The tables of one training: bytes at the peaks, seconds, and scratch kept and resting."""

    training: Training
    peaks: Peaks
    running: Array
    times: Times
    scratch: tuple[Array, Array]


class Outside(NamedTuple):
    """[shape, GPUs, degrees, micro batch] of what does not depend on the optimizer or recomputation: bytes outside torch, low and
    high."""

    low: Array
    high: Array


class View:
    """The cells of one chunk: flat indices into the tables, and what does not depend on recomputation."""

    def __init__(
        self,
        job: TrainingJob,
        grid: Grid,
        stages: StagesOfShapes,
        cells: Cells,
        most: int,
        outside: Outside,
        states: Sequence[States],
    ) -> None:
        self.job, self.stages, self.cells, self.most = job, stages, cells, most
        worlds, points, micro = grid.shape
        self.size = points * micro
        self.flat = cells.point * micro + cells.micro
        whole = ((cells.shape * worlds + cells.world) * points + cells.point) * micro + cells.micro
        self.outside = Outside(*(table.reshape(-1).take(whole) for table in outside))
        self.pairs, self.which = cells.counts()
        chains, beyond = zip(*(stages.passes.beyond(*pair) for pair in self.pairs), strict=True)
        self.chains = (np.array(chains)[self.which] * worlds + cells.world) * self.size + self.flat
        self.beyond = np.array(beyond)[self.which]
        numbers = [stages.at[:, place][cells.shape] for place in range(most)]
        self.flats = [number * self.size + self.flat for number in numbers]
        without_micro = [(number * worlds + cells.world) * points + cells.point for number in numbers]
        self.states = [[_taken(state, at) for at in without_micro] for state in states]
        self.fixed = [_fullest(job, of_stages) for of_stages in self.states]
        self.scratch: dict[int, list[tuple[Array, Array]]] = {}

    def figures(self, traced: Traced, optimizers: Sequence[Option]) -> Iterator[tuple[int, Figures]]:
        """The figures of every option with one training."""
        training, times = traced.training, traced.times
        running = [traced.running.reshape(-1).take(row * self.size + self.flat) for row in self._rows(traced.peaks)]
        overlapped = training.overlap_grad_reduce or training.overlap_param_gather
        forward, backward = (
            [table.take(at) for at in self.flats] if overlapped else [0.0] * self.most
            for table in (times.forward, times.backward)
        )
        job = dataclasses.replace(self.job, training=training)
        pipeline, scratch = self._pipeline(times), self._scratch(traced.scratch)
        c = context_of(job)  # what overlaps is the same for every option
        for number in range(len(optimizers)):
            states, fixed = self.states[number], self.fixed[number]
            peak, low, high = self._peaks(job, states, running, scratch)
            reduced, gathered = self._communication(c, states, forward, backward)
            low, high = np.maximum(low, fixed.low) + self.outside.low, np.maximum(high, fixed.high) + self.outside.high
            step = pipeline + reduced + gathered + fixed.optimizer
            yield number, Figures(step, peak, low, high)

    def _peaks(
        self,
        job: TrainingJob,
        states: Sequence[States],
        running: Sequence[Array],
        scratch: Sequence[tuple[Array, Array]],
    ) -> tuple[Array, Array, Array]:
        """Bytes of the fullest stage: allocated at the peak; what torch takes while it trains and saves, at least and surely enough."""
        peaks, lows, highs = [], [], []
        for state, run, (kept, resting) in zip(states, running, scratch, strict=True):
            moving = kept + np.maximum(run, resting + state.step)
            peak = moving + state.state
            peaks.append(peak)
            low, high = peak, peak + unused_bytes(job, peak, moving + state.own)
            if "save" in self.job.env.phases:
                steady = state.state + kept + resting
                low, high = np.maximum(low, steady + state.save_low), np.maximum(high, steady + state.save_high)
            lows.append(low)
            highs.append(high)
        return reduce(np.maximum, peaks), reduce(np.maximum, lows), reduce(np.maximum, highs)

    def _communication(
        self, c: Context, states: Sequence[States], forward: Sequence[Array | float], backward: Sequence[Array | float]
    ) -> tuple[Array, Array]:
        """Exposed seconds of reducing gradients and of gathering parameters on the slowest stage of each."""
        shown = [exposed(c, one.reduce, one.gather, *at) for one, *at in zip(states, forward, backward, strict=True)]
        reduced, gathered = zip(*shown, strict=True)
        return reduce(np.maximum, reduced), reduce(np.maximum, gathered)

    def _pipeline(self, times: Times) -> Array:
        """Seconds of all passes of a step, with what no layout is without."""
        step, repeats = (table.reshape(-1).take(self.chains) for table in (times.step, times.repeats))
        seconds: Array = step + self.beyond * repeats + OVERHEAD
        return seconds

    def _scratch(self, scratch: tuple[Array, Array]) -> list[tuple[Array, Array]]:
        if id(scratch) not in self.scratch:
            self.scratch[id(scratch)] = [(scratch[0].take(at), scratch[1].take(at)) for at in self.flats]
        return self.scratch[id(scratch)]

    def _rows(self, peaks: Peaks) -> list[Array]:
        """Where the peaks of each stage with the microbatches of each cell stand."""
        rows = []
        for shape, count in self.pairs:
            effective = self.stages.shapes[shape].effective(count)
            rows.append([peaks.at[int(stage), effective] for stage in self.stages.at[shape]])
        table = np.array(rows)
        return [table[:, place][self.which] for place in range(self.most)]


class _Fixed(NamedTuple):
    """Of the stages of every cell the most: seconds of the optimizer step; what torch takes while it builds and loads, at least and
    surely enough."""

    optimizer: Array
    low: Array
    high: Array


def _fullest(job: TrainingJob, states: Sequence[States]) -> _Fixed:
    """The most of the stages; of phases that are not held, nothing."""
    lows, highs = [], []
    if "build" in job.env.phases:
        lows += [one.built for one in states]
        highs += [np.asarray(built_high(job, one.apart)) for one in states]
    if "load" in job.env.phases:
        lows += [one.load_low for one in states]
        highs += [np.asarray(loaded_high(job, one.load_high)) for one in states]
    optimizer = reduce(np.maximum, [one.optimizer for one in states])
    low, high = (reduce(np.maximum, ends) if ends else np.zeros(1) for ends in (lows, highs))
    return _Fixed(optimizer, low, high)


def _taken(states: States, at: Array) -> States:
    return States(*(getattr(states, f.name).reshape(-1).take(at) for f in dataclasses.fields(States)))
