"""What the pieces of a model keep and take, at least: its kinds of layers, and what stands around them.

A piece is a kind of layer or a part outside the layers (embedding, final norm, MTP, output). The engine's own declarations say every
figure; nothing about memory or time is written here. Figures are bounds from below: what a rank pads, keeps once, or has alive beside them
comes on top. Degrees and micro batch sizes are those of a grid, as arrays where NumPy is, else of its only point.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple, cast

from ..dataclass import dataclass
from ..device.checkpoint import load_terms, save_terms
from ..device.outside import outside_terms
from ..device.phases import built_apart, loaded_state, own_storage
from ..features.offload import offloads
from ..job.layout import Layout
from ..job.pipeline import Chunk
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..rank.build import context_of
from ..rank.chunks import ChunkPlan, Run
from ..rank.keys import Form, LayerKey
from ..rank.rank import Rank, state_bytes
from ..rank.schedule import Occupancy, Order
from ..rank.workspaces import workspaces
from ..states.buffers import ddp_buffers
from ..states.optimizers import OPTIMIZERS
from ..states.state import frozen_weights, model_state
from ..tape.events import Trace
from ..tape.tensor import largest, total
from ..throughput.links import highest
from ..throughput.machine import Machine
from ..throughput.stages import TimeKey, p2p, unit_time
from ..throughput.step import collectives, optimizer
from .sharing import Grids, Piece, SharingDeclarer, is_part
from .space.choices import Option, Style, training_with
from .space.points import Grid

Table = Sequence[Any]
"""A row for each piece: an array over points and micro batch sizes, or one number."""
MANY = 64
"""Copies of a piece whose state is found together: what a buffer pads is shared by them."""
SHARED = 1e-3
"""A share of a figure that a rank has once, whatever it is made of."""
NOWHERE = Chunk(1, 0, (), embedding=False, final_norm=False, mtp=False, output=False)
"""A chunk of a rank between the first and the last that holds nothing."""
UNTRACED = Trace((), (), 0, ())
IDLE = Occupancy(0, 0, (0,), (), Order(1, 0, 1))


class State(NamedTuple):
    """What a piece has whatever runs: bytes of state, and of what of it is there when a checkpoint is loaded; of building in all; of the
    parameters' own storage; of what only the optimizer step has; seconds of reduction, gather and optimizer step."""

    state: Any
    loaded: Any
    apart: Any
    own: Any
    stepping: Any
    reduce: Any
    gather: Any
    optimizer: Any


class Moments(NamedTuple):
    """Bytes beside the state in each moment of a load, and of a save, that can be its largest, or the most of them: at the low and at the
    high end."""

    load_low: Any
    load: Any
    save_low: Any
    save: Any


class States(NamedTuple):
    """Tables of state by piece, and tables of every moment.

    A moment of all parameters adds up where that of a piece is the sum of its dense and its expert parameters'; else they follow one
    another, and either alone is a bound.
    """

    state: State
    moments: Moments


class Pieces:
    """The figures of the pieces of one structure and style. `replicas` are (pipeline stages, GPUs); `known` are units that were traced for
    the same grid before, `states` what was found with features and styles of the same state."""

    def __init__(
        self,
        job: TrainingJob,
        machine: Machine,
        grid: Grid,
        style: Style,
        replicas: Sequence[tuple[int, int]],
        known: Grids,
        states: Grids,
        *,
        arrays: bool,
    ) -> None:
        self.job, self.machine, self.grid, self.style = job, machine, grid, style
        self.replicas, self.known, self.of_states, self.arrays = replicas, known, states, arrays

    def layout(self, pp: Any, gpus: Any) -> Layout:
        """The degrees of the grid on so many stages and GPUs."""
        return self.grid.layout(self.job.layout, pp, gpus, self.style, arrays=self.arrays)

    @cached_property
    def layouts(self) -> list[Layout]:
        """The layouts of all replicas, one of arrays along the first axis, or one by one."""
        if not self.arrays:
            return [self.layout(pp, gpus) for pp, gpus in self.replicas]
        import numpy as np

        pp, gpus = (np.array(column).reshape(-1, 1, 1) for column in zip(*self.replicas, strict=True))
        return [self.layout(pp, gpus)]

    @cached_property
    def micro(self) -> Any:
        """Micro batch sizes."""
        if not self.arrays:
            return self.grid.micro[0]
        import numpy as np

        return np.array(self.grid.micro)

    def context(self, training: Training, layout: Layout | None = None) -> Context:
        """What declarations see of one stage, or of a layout."""
        changed = dataclasses.replace(training, micro_batch_size=self.micro, global_batch_size=None)
        base = self.layout(1, 1) if layout is None else layout
        return dataclasses.replace(context_of(self.job), layout=base, training=changed)

    def declarer(self, training: Training) -> SharingDeclarer:
        """Units of a training, traced when they are asked for."""

        def made() -> SharingDeclarer:
            return SharingDeclarer(self.context(training), self.known.units)

        return self.known.find(("declarer", training), made)

    # -- seconds ----------------------------------------------------------------------------------------------------------
    def times(self, declarer: SharingDeclarer, keys: Sequence[TimeKey]) -> tuple[Table, Table]:
        """Of each unit: seconds of a forward and of a backward."""

        def made(key: TimeKey) -> tuple[Any, Any]:
            one = unit_time(self.machine, declarer, key, declarer.shared)
            return self._flat(one.forward), self._flat(one.backward)

        found = [declarer.shared(("time", key), lambda key=key: made(key)) for key in keys]  # type: ignore[misc]
        return [one[0] for one in found], [one[1] for one in found]

    def sends(self, training: Training, chunks: int) -> list[Any]:
        """[replicas] of exposed sends and receives of one microbatch, for stages of so many chunks."""

        def made() -> list[Any]:
            return self._of_replicas([p2p(self.machine, self.context(training, one), chunks) for one in self.layouts])

        return self.known.find(("sends", *self.replicas, chunks), made)

    # -- bytes ------------------------------------------------------------------------------------------------------------
    def held(self, declarer: SharingDeclarer, keys: Sequence[tuple[Piece, Form]]) -> tuple[Table, Table]:
        """Of each unit: bytes kept for backward, and what its backward has alive beyond that."""
        found = [declarer.shared(("held", key), lambda key=key: self._held(declarer, *key)) for key in keys]  # type: ignore[misc]
        return [one[0] for one in found], [one[1] for one in found]

    def _held(self, declarer: SharingDeclarer, piece: Piece, form: Form) -> tuple[Any, Any]:
        if offloads(declarer.context.training):  # what leaves, and when, is the whole rank's affair
            return self._flat(0), self._flat(0)
        if form == "group":  # one more layer of a group, of which the first keeps what all share
            one, two = (declarer.unit(((cast(LayerKey, piece),) * count, form)).trace for count in (1, 2))
            return self._flat(largest(two.saved_bytes - one.saved_bytes, 0)), self._flat(0)
        trace, stash = declarer.kept_of(piece, form)
        most = reduce(largest, [event.nbytes for event in trace.backward], 0)
        factor = declarer.context.training.moe_paged_stash_buffer_size_factor_cuda
        paged = sum(one.nbytes for one in stash) * factor if stash else 0
        return self._flat(trace.saved_bytes + paged), self._flat(largest(most - trace.saved_bytes, 0))

    def scratch(self, declarer: SharingDeclarer, pieces: Sequence[Piece]) -> tuple[Table, Table]:
        """Of each piece: persistent scratch of a rank that has it, and of each copy."""

        def made(piece: Piece) -> tuple[Any, Any]:
            c, job = dataclasses.replace(declarer.context, training=declarer.training), self.job
            one, two = (
                sum(w.nbytes for w in workspaces(c, (self._plan(declarer, piece, n),), job.gpu, job.env))
                for n in (1, 2)
            )
            return self._flat(2 * one - two), self._flat(two - one)

        found = [declarer.shared(("scratch", piece), lambda piece=piece: made(piece)) for piece in pieces]  # type: ignore[misc]
        return [one[0] for one in found], [one[1] for one in found]

    def _plan(self, declarer: SharingDeclarer, piece: Piece, copies: int) -> ChunkPlan:
        """A chunk of so many copies of a piece."""
        declared = declarer.declared(piece)
        run = Run(declared.unit, UNTRACED, copies, -1 if is_part(piece) else 0, declarer.trained(declared))
        chunk = dataclasses.replace(NOWHERE, output=piece[0] in ("output", "output_behind_mtp"))
        return _Copies(chunk, (run,), (), kinds=() if is_part(piece) else ((str(piece[0]), copies),))

    def states(self, declarer: SharingDeclarer, pieces: Sequence[Piece], option: Option) -> States:
        """By piece, of every figure: [replicas] arrays over degrees, or numbers."""
        key = "states", *self.replicas, *pieces, option
        return self.of_states.find(key, lambda: self._states(declarer, pieces, option))

    def _states(self, declarer: SharingDeclarer, pieces: Sequence[Piece], option: Option) -> States:
        c = self._optimized(declarer, option)
        plans = [self._plan(declarer, piece, MANY) for piece in pieces]
        whole = [[self._rank(c, plan, layout) for layout in self.layouts] for plan in plans]
        tables = [[self._of_replicas(one) for one in zip(*map(self._state, ranks), strict=True)] for ranks in whole]
        every = [list(map(_moments, ranks)) for ranks in whole]
        parts = [
            [[_moments(self._rank(c, plan, layout, expert=expert)) for layout in self.layouts] for plan in plans]
            for expert in ((False, True) if self.job.model.has_moe else ())
        ]
        return States(
            State(*zip(*tables, strict=True)),
            Moments(*(tuple(self._forms(name, every, parts)) for name in Moments._fields)),
        )

    def _forms(
        self, name: str, every: list[list[Moments]], parts: list[list[list[Moments]]]
    ) -> Iterator[list[list[Any]]]:
        """The tables of the moments of one end."""

        def figures(found: list[Moments], moment: int) -> list[Any]:
            return [getattr(one, name)[moment] for one in found]

        for moment in range(len(getattr(every[0][0], name))):
            groups = [[figures(found, moment) for found in of_group] for of_group in (parts or [every])]
            whole = [figures(found, moment) for found in every]
            sums = [[total(values) for values in zip(*of_piece, strict=True)] for of_piece in zip(*groups, strict=True)]
            if len(groups) > 1 and _same(whole, sums):
                groups = [whole]
            yield from ([self._of_replicas(values) for values in group] for group in groups)

    def _optimized(self, declarer: SharingDeclarer, option: Option) -> Context:
        training = training_with(dataclasses.replace(declarer.training, overlap_grad_reduce=False), option)
        return dataclasses.replace(declarer.context, training=training)

    def _rank(self, c: Context, plan: ChunkPlan, layout: Layout, *, expert: bool | None = None) -> Rank:
        """A rank of many copies of a piece; of its dense or its expert parameters alone."""
        c = dataclasses.replace(c, layout=layout)
        if expert is not None:
            (run,) = plan.runs
            params = tuple(p for p in run.params if p.expert_buffer is expert)
            plan = dataclasses.replace(plan, runs=(run._replace(params=params),))
        by_matrix = OPTIMIZERS[c.training.optimizer].by_matrix  # which rank owns what is the whole rank's affair
        buffers = [] if by_matrix else ddp_buffers(c, 0, plan.registered_params, first_chunk=False)
        states = (*model_state(c, buffers), *frozen_weights(c, 0, plan.params))
        return Rank(c, 1, (plan,), IDLE, tuple(buffers), states, ())

    def _state(self, rank: Rank) -> tuple[Any, ...]:
        c = rank.context
        figures = (
            state_bytes(rank, "setup", "first step"), loaded_state(rank), built_apart(rank), own_storage(rank),
            state_bytes(rank, "step", "optimizer"),
            *collectives(self.machine, c, rank), optimizer(self.machine, c, rank),
        )  # fmt: skip
        return tuple(one * _each(rank) for one in figures)

    def outside(self, training: Training) -> tuple[list[Any], list[Any]]:
        """[replicas] of what a process takes outside torch, low and high."""
        return self.known.find(("outside", *self.replicas), lambda: self._outside(training))

    def _outside(self, training: Training) -> tuple[list[Any], list[Any]]:
        found: list[tuple[Any, Any]] = []
        for layout in self.layouts:
            c = self.context(training, layout)
            terms = outside_terms(dataclasses.replace(self.job, layout=c.layout, training=c.training), c)
            found.append((total(term.low for term in terms), total(term.high for term in terms)))
        low, high = zip(*found, strict=True)
        return self._of_replicas(low), self._of_replicas(high)

    def _flat(self, value: Any) -> Any:
        """Over points and micro batch sizes."""
        if not self.arrays:
            return float(value)
        import numpy as np

        return np.broadcast_to(np.asarray(value, dtype=float), self.grid.shape[1:]).ravel()

    def _of_replicas(self, values: Sequence[Any]) -> list[Any]:
        """By replicas, over points and micro batch sizes."""
        if not self.arrays:
            return list(map(float, values))
        import numpy as np

        (value,), shape = values, (len(self.replicas), *self.grid.shape[1:])
        return list(np.broadcast_to(np.asarray(value, dtype=float), shape).reshape(len(self.replicas), -1))


def _each(rank: Rank) -> Any:
    """The share of one copy, without what the buffer is padded by."""
    return 1 / (MANY * reduce(highest, [one.numel / largest(one.numel_unpadded, 1) for one in rank.buffers], 1.0))


def _moments(rank: Rank) -> Moments:
    share = _each(rank)
    loads, saves = load_terms(rank, short=True), save_terms(rank)
    return Moments(
        *(
            tuple(total(getattr(term, end) for term in terms) * share for terms in moments)
            for moments in (loads, saves)
            for end in ("low", "high")
        )
    )


def _same(whole: Sequence[Sequence[Any]], sums: Sequence[Sequence[Any]]) -> bool:
    """Whether the figures of pieces are sums, but for little beside the largest piece."""
    for at in range(len(sums[0])):
        most = reduce(highest, (of_piece[at] for of_piece in sums))
        for one, other in zip(whole, sums, strict=True):
            equal = abs(one[at] - other[at]) <= SHARED * most
            if not (equal if isinstance(equal, bool) else equal.all()):
                return False
    return True


@dataclass(frozen=True)
class _Copies(ChunkPlan):
    """A chunk of copies of one layer, which stand nowhere in the model."""

    kinds: tuple[tuple[str, int], ...] = ()

    def decoder_layers(self, model: Any) -> dict[str, int]:
        return dict(self.kinds)
