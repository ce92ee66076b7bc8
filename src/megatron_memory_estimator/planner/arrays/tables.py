"""Bytes and seconds of every pipeline stage of every shape, as arrays over degrees, GPUs and micro batch sizes.

Axes, in this order: stage (or shape), GPUs of the run, degrees (tp, cp, ep, etp together), micro batch size. All arrays come from the
engine: model state from its buffers with arrays as layer counts, activations from forms and traced units, times from `throughput`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property, reduce
from typing import Any

import numpy as np

from ...dataclass import dataclass
from ...device.outside import outside_terms
from ...device.phases import build, built_apart, load_range, own_storage, save_range
from ...job.layout import Layout
from ...job.training import Training
from ...job.training_job import TrainingJob
from ...modules.context import Context
from ...rank.boundary import resting_tensors
from ...rank.build import context_of
from ...rank.chunks import ChunkPlan
from ...rank.declare import Declarer
from ...rank.peak import flattened_gradients
from ...rank.rank import Rank, state_bytes
from ...rank.schedule import Occupancy, Order
from ...rank.workspaces import Workspace, dummy_wgrads, workspaces
from ...states.buffers import ddp_buffers
from ...states.state import model_state
from ...throughput.machine import Machine
from ...throughput.stages import TimeKey, p2p, timed_units, unit_time
from ...throughput.step import collectives, optimizer
from ..space.choices import Style
from ..space.points import Array, Grid, Shape
from .passes import PassTables, Timed
from .peaks import Peaks, StageUnits, unknowns
from .several import several_plans
from .sharing import AskedTraining, Known, SharingDeclarer


@dataclass(frozen=True)
class States:
    """What the optimizer's settings decide, [stage, GPUs, degrees]: bytes of model state, of gradients flattened or of the optimizer
    step, of building the model at its peak and in all, of loading a checkpoint, beside the steady state of saving one, of the
    parameters' own storage; seconds of reduction, gather and optimizer step."""

    state: Array
    step: Array
    built: Array
    apart: Array
    load_low: Array
    load_high: Array
    save_low: Array
    save_high: Array
    own: Array
    reduce: Array
    gather: Array
    optimizer: Array


@dataclass(frozen=True)
class Times:
    """Seconds of one microbatch by [stage, point]: its forward, its backward; of a whole step and of what repeats itself in it by
    [pipeline and microbatches, GPUs, point]."""

    forward: Array
    backward: Array
    step: Array
    repeats: Array


def idle(plans: Sequence[ChunkPlan]) -> Occupancy:
    """No microbatch in flight: for what does not depend on the schedule."""
    return Occupancy(0, 0, (0,) * len(plans), (), Order(len(plans), 0, 1))


@dataclass(frozen=True)
class Pipelines:
    """All pipeline shapes with their stages."""

    shapes: Sequence[Shape]
    stages: Sequence[StageUnits]
    passes: PassTables
    timed: dict[Any, Timed] = field(default_factory=dict)
    """Units as far as time goes, by kind of recomputation."""

    @cached_property
    def similar(self) -> dict[Any, list[int]]:
        """Stages with the same kinds of units, and the same parts on each chunk: only layer counts differ."""
        groups: dict[Any, list[int]] = {}
        for index, stage in enumerate(self.stages):
            chunks = [plan.chunk for plan in stage.plans]
            parts = tuple((k.embedding, k.final_norm, k.mtp, k.output, k.after_mtp) for k in chunks)
            kinds = frozenset(key for keys in stage.keys for key in keys)
            groups.setdefault((parts, kinds, self.shapes[stage.shape].pp > 1), []).append(index)
        return groups

    def alike(self, *, ordered: bool) -> dict[Any, list[int]]:
        """Stages by number of chunks; where gradient buckets end depends on the order of the layers of the first chunk."""
        groups: dict[Any, list[int]] = {}
        for index, stage in enumerate(self.stages):
            order = stage.keys[0] if ordered and stage.pp_rank == 0 else None
            groups.setdefault((len(stage.plans), order), []).append(index)
        return groups


class Tables:
    """The figures of one structure and style; what several of them share is computed once."""

    def __init__(self, job: TrainingJob, machine: Machine, grid: Grid, style: Style, pipelines: Pipelines) -> None:
        self.job, self.machine, self.grid, self.style, self.pipelines = job, machine, grid, style, pipelines
        self.shapes, self.stages = pipelines.shapes, pipelines.stages
        self.base = grid.layout(self.shapes[0].layout, 1, style)
        self.micro: Any = np.array(grid.micro)
        self._wgrads: dict[Any, list[Workspace]] = {}
        self.known: dict[str, Known] = {}

    # -- one set of recomputation ---------------------------------------------------------------------------------------
    def declarer(self, training: Training) -> SharingDeclarer:
        """Units of a training, traced when they are asked for."""
        changed = dataclasses.replace(training, micro_batch_size=self.micro)
        context = dataclasses.replace(context_of(self.job), layout=self.base, training=changed)
        known = self.known.setdefault(training.low_precision, Known())
        return SharingDeclarer(context, known)

    def running(self, declarer: SharingDeclarer, peaks: Peaks) -> Array:
        """[stage and microbatches, point x micro batch]: activations, transients and boundary tensors at the peak."""
        return peaks.values(unknowns(peaks.basis, declarer, self.grid.shape[1:], declarer.shared))

    def times(self, declarer: SharingDeclarer, sends: Array) -> Times:
        """Seconds of one microbatch on every stage, without sends between stages, and of the passes of a step, with `sends`."""
        timed = self._timed(declarer)
        shape = self.grid.shape[1:]
        units = np.zeros((2, len(timed.keys), shape[0] * shape[1]))
        for place, key in enumerate(timed.keys):
            units[:, place] = declarer.shared(("time", key), lambda key=key: self._unit_time(declarer, key, shape))  # type: ignore[misc]
        forward, backward = units
        step, repeats = (rows.seconds(forward, backward, sends) for rows in (timed.step, timed.repeats))
        return Times(timed.stages @ forward, timed.stages @ backward, step, repeats)

    def _unit_time(self, declarer: SharingDeclarer, key: TimeKey, shape: tuple[int, ...]) -> Array:
        """[forward, backward; point x micro batch] of one unit."""
        one = unit_time(self.machine, declarer, key, declarer.shared)
        return np.stack([np.broadcast_to(value, shape).ravel() for value in (one.forward, one.backward)])

    def _timed(self, declarer: Declarer) -> Timed:
        """The units as far as time goes, and how many of each every stage and every chain has."""
        t = declarer.context.training
        full = t.recompute_granularity == "full"
        known = (full and (t.recompute_method, t.recompute_num_layers), t.low_precision, self.style.cp_comm_type)
        if known not in self.pipelines.timed:
            keys: dict[TimeKey, int] = {}
            entries = []
            passes = self.pipelines.passes
            for at, (number, chunk) in enumerate(passes.chunks):
                plans = (self.stages[number].plans[chunk],)
                rank = Rank(declarer.context, self.stages[number].pp_rank, plans, idle(plans), (), (), ())
                entries += [(at, keys.setdefault(key, len(keys)), count) for key, count in timed_units(declarer, rank)]
            matrix = np.zeros((len(passes.chunks), len(keys)))
            rows, columns, counts = zip(*entries, strict=True)
            np.add.at(matrix, (rows, columns), counts)
            first = [at for at, (_, chunk) in enumerate(passes.chunks) if chunk == 0]
            of_stages = np.add.reduceat(matrix, first, axis=0)
            self.pipelines.timed[known] = Timed(
                list(keys), of_stages, passes.step.of(matrix), passes.repeats.of(matrix)
            )
        return self.pipelines.timed[known]

    # -- the optimizer's settings ---------------------------------------------------------------------------------------
    def states(self, declarer: Declarer, training: Training) -> States:
        """Model state and what follows from it, for all stages."""
        shape = (len(self.stages), *self.grid.shape[:2])
        states = States(*(np.zeros(shape) for _ in dataclasses.fields(States)))
        for members in self.pipelines.alike(ordered=training.overlap_grad_reduce).values():
            rank = self._rank(declarer, training, [self.stages[i] for i in members])
            c = rank.context
            flat = sum(row.nbytes for row in flattened_gradients(rank))
            reduced, gathered = collectives(self.machine, c, rank)
            loading, saving = load_range(rank), save_range(rank)
            values = {
                "state": state_bytes(rank, "setup", "first step"),
                "step": np.maximum(flat, state_bytes(rank, "step", "optimizer")),
                "built": build(rank),
                "load_low": loading.low,
                "load_high": loading.high,
                "save_low": saving.low,
                "save_high": saving.high,
                "apart": built_apart(rank),
                "own": own_storage(rank),
                "reduce": reduced,
                "gather": gathered,
                "optimizer": optimizer(self.machine, c, rank),
            }
            for name, value in values.items():
                getattr(states, name)[members] = np.broadcast_to(value, (len(members), *shape[1:], 1))[..., 0]
        return states

    def _rank(self, declarer: Declarer, training: Training, members: Sequence[StageUnits]) -> Rank:
        """One rank that stands for several stages: its layer counts are arrays."""
        pp = np.array([self.shapes[stage.shape].pp for stage in members]).reshape(-1, 1, 1, 1)
        layout = self.grid.layout(self.shapes[0].layout, pp, self.style)
        c = dataclasses.replace(declarer.context, layout=layout, training=training)
        plans, buffers = several_plans(declarer, members, (-1, 1, 1, 1)), []
        for place, plan in enumerate(plans):
            first = training.overlap_grad_reduce and place == 0 and members[0].pp_rank == 0
            buffers += ddp_buffers(c, place, plan.registered_params, first_chunk=first)
        return Rank(c, 0, plans, idle(plans), tuple(buffers), tuple(model_state(c, buffers)), ())

    # -- the rest ---------------------------------------------------------------------------------------------------------
    def scratch(self, declarer: Declarer, training: AskedTraining) -> tuple[Array, Array]:
        """[stage, point x micro batch] of persistent scratch, and of boundary tensors alive between two steps. Units are asked for
        their parameters and counts, which no recomputation changes; what else is asked goes to `training`."""
        shape = (len(self.stages), *self.grid.shape[1:])
        kept, resting = np.zeros(shape), np.zeros(shape)
        for members in self.pipelines.similar.values():
            first = self.stages[members[0]]
            layout = dataclasses.replace(self.base, pipeline_model_parallel_size=self.shapes[first.shape].pp)
            c = dataclasses.replace(declarer.context, layout=layout, training=training)
            plans = several_plans(declarer, [self.stages[i] for i in members], (-1, 1, 1))
            rank = Rank(c, first.pp_rank, plans, idle(plans), (), (), ())
            scratch = workspaces(c, plans, self.job.gpu, self.job.env, self._dummies(c, first, plans))
            kept[members] = sum(workspace.nbytes for workspace in scratch)
            resting[members] = sum(tensor.nbytes for tensor in resting_tensors(rank))
        return kept.reshape(len(self.stages), -1), resting.reshape(len(self.stages), -1)

    def _dummies(self, c: Context, stage: StageUnits, plans: tuple[ChunkPlan, ...]) -> list[Workspace]:
        head = any(plan.chunk.output for plan in plans)
        key = (frozenset(key for keys in stage.keys for key in keys), head)
        if key not in self._wgrads:
            self._wgrads[key] = dummy_wgrads(c, [param for plan in plans for param, _ in plan.params], head=head)
        return self._wgrads[key]

    def outside(self, training: Training) -> tuple[Array, Array]:
        """[shape, GPUs, degrees, micro batch] of what a process takes outside torch, low and high."""
        c, layout = self._piped(training)
        job = dataclasses.replace(self.job, layout=layout, training=c.training)
        terms = outside_terms(job, c)
        shape = (len(self.shapes), *self.grid.shape)
        low, high = (reduce(np.add, [np.asarray(term[at], dtype=float) for term in terms]) for at in (1, 2))
        return np.broadcast_to(low, shape), np.broadcast_to(high, shape)

    def sends(self, training: Training) -> Array:
        """[shape, GPUs, degrees x micro batch] of exposed sends and receives of one microbatch."""
        c, _ = self._piped(training)
        chunks = np.array([shape.vp for shape in self.shapes]).reshape(-1, 1, 1, 1)
        shape = (len(self.shapes), *self.grid.shape)
        return np.broadcast_to(p2p(self.machine, c, chunks), shape).reshape(*shape[:2], -1)

    def _piped(self, training: Training) -> tuple[Context, Layout]:
        pp = np.array([shape.pp for shape in self.shapes]).reshape(-1, 1, 1, 1)
        layout = self.grid.layout(self.shapes[0].layout, pp, self.style)
        changed = dataclasses.replace(training, micro_batch_size=self.micro)
        return dataclasses.replace(context_of(self.job), layout=layout, training=changed), layout
