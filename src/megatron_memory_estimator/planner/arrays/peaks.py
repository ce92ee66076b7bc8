"""The peak of each stage of every pipeline as forms: what does not depend on any other degree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import cached_property, partial, reduce
from math import prod
from typing import Any, cast

import numpy as np

from ...dataclass import dataclass
from ...job.pipeline import Chunk
from ...job.training_job import TrainingJob
from ...modules.context import Context
from ...modules.layers import Declaration
from ...rank.chunks import ChunkPlan, Run, TracedUnit
from ...rank.declare import Declarer
from ...rank.keys import PartKey, UnitKey
from ...rank.peak import scheduled
from ...rank.rank import Rank
from ...rank.schedule import occupancy
from ...tape.events import Event, Trace
from ...tape.ops import Unit
from ...tape.tensor import Tensor
from ..space.points import Shape
from ..space.stages import different_stages
from .forms import Array, Basis, Form, largest_sum, needed

Key = UnitKey | PartKey
MOST_GROUPS = 1000
"""Different groups of layers whose hyper-connections are recomputed together, of all pipelines of a space."""
"""A unit of a chunk."""


@dataclass(frozen=True)
class StageUnits:
    """One pipeline stage with the units of its chunks, and the ranks of the pipeline that it stands for."""

    shape: int
    pp_rank: int
    plans: tuple[ChunkPlan, ...]
    keys: tuple[tuple[Key, ...], ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Unknown(Context):
    """A context whose boundary tensors are unknowns."""

    basis: Basis = field(default_factory=Basis)

    def residual(self, name: str) -> Tensor:
        return Tensor(name, (), self.residual_dtype, cast(int, self.basis.unknown("residual")), name)


class _Symbols(Declarer):
    """Chunk plans whose units keep and peak at unknown bytes."""

    def __init__(self, context: Context, basis: Basis) -> None:
        super().__init__(context)
        self.basis = basis
        self.keys: dict[int, Key] = {}
        self.runs: dict[Key, Run] = {}

    def _symbol(self, key: Key, name: str) -> Run:
        if key not in self.runs:
            unit = Unit(name, (), None, None)
            saved, ahead, behind = (cast(int, self.basis.unknown((key, what))) for what in ("saved", "F", "B"))
            found = Trace((Event("forward", name, ahead),), (Event("backward", name, behind),), saved, ())
            self.runs[key] = Run(unit, found, 1, -1, ())
            self.keys[id(unit)] = key
        return self.runs[key]

    def unit(self, key: UnitKey) -> TracedUnit:
        run = self._symbol(key, key[0][0][0])
        return TracedUnit(run.unit, run.trace)

    def part(self, key: PartKey) -> Run:
        return self._symbol(key, key[0])

    def _declare(self, kind: Any) -> Declaration:
        return cast(Declaration, _Empty)

    def inputs(self, chunk: Chunk) -> tuple[Tensor, ...]:
        return (self._input("batch"),) if chunk.reads_inputs else ()

    @cached_property
    def unmasked(self) -> None:
        return None

    def uncut(self) -> tuple[Tensor, ...]:
        return (self._input("uncut"),) if self.context.training.create_attention_mask_in_dataloader else ()

    def kept(self, *, given: bool) -> tuple[Tensor, ...]:
        if not self.context.training.create_attention_mask_in_dataloader:
            return ()
        return (self._input("held given" if given else "held"),)

    def table_gradient(self, *, summed: bool) -> Tensor:
        return self._input("table summed" if summed else "table")

    def _input(self, name: str) -> Tensor:
        """Inputs of a microbatch, of unknown bytes."""
        return Tensor(name, (), "int64", cast(int, self.basis.unknown(name)), name)


class _Empty:
    params: tuple[()] = ()


@dataclasses.dataclass
class Peaks:
    """Rows of the peaks of stages: those of stage `i` with `m` microbatches are `rows[starts[at[i, m]] : ...]`."""

    basis: Basis
    rows: Array
    starts: Array
    at: dict[tuple[int, int], int]

    def checkpointed(self) -> Peaks:
        """The same with every decoder layer a checkpointed unit of its own."""
        basis = Basis(self.basis.width)
        for name, column in self.basis.columns.items():
            key = name[0] if isinstance(name, tuple) else None
            layers = isinstance(key, tuple) and isinstance(key[0], tuple)
            form = "checkpoint" if not layers or key[1] != "held" else "held checkpoint"  # type: ignore[index]
            basis.columns[((key[0], form), name[1]) if layers else name] = column  # type: ignore[index]
        return dataclasses.replace(self, basis=basis)

    def values(self, known: Array) -> Array:
        """[stage and microbatches, point]: the largest row of each, of known [unknown, point]."""
        found: Array = np.maximum.reduceat(self.rows @ known, self.starts, axis=0)
        return found


def symbols(context: Context) -> _Symbols:
    """A declarer of unknown units for the model and the training of a context."""
    kinds = len(context.model.every_kind)
    training = context.training
    joined = MOST_GROUPS if training.recomputes("mhc") else training.recompute_num_layers or 1
    width = 13 + 3 * (5 + 4 * kinds) + 3 * joined
    names = {f.name: getattr(context, f.name) for f in dataclasses.fields(Context)}
    basis = Basis(width)
    return _Symbols(_Unknown(**names, basis=basis), basis)


def stages(job: TrainingJob, shapes: Sequence[Shape], declarer: _Symbols) -> list[StageUnits]:
    """The different stages of all shapes."""
    different: list[StageUnits] = []
    for number, shape in enumerate(shapes):
        for chunks, ranks in different_stages(declarer, job.model, shape.layout):
            plans = tuple(declarer.plan(chunk) for chunk in chunks)
            keys = tuple(tuple(declarer.keys[id(run.unit)] for run in plan.runs) for plan in plans)
            different.append(StageUnits(number, chunks[0].pp_rank, plans, keys, ranks))
    return different


def peaks(
    declarer: _Symbols, shapes: Sequence[Shape], different: Sequence[StageUnits], counts: Iterable[tuple[int, int]]
) -> Peaks:
    """The peaks of all stages for the given (shape, effective microbatches)."""
    forms: list[Array] = []
    at: dict[tuple[int, int], int] = {}
    starts: list[int] = []
    total = 0
    stages_of: dict[int, list[int]] = {}
    for index, stage in enumerate(different):
        stages_of.setdefault(stage.shape, []).append(index)
    for shape, count in sorted(set(counts)):
        for index in stages_of[shape]:
            form = _form(declarer, shapes[shape], different[index], count)
            at[index, count] = len(starts)
            starts.append(total)
            forms.append(form)
            total += len(form)
    used = len(declarer.basis.columns) + 1
    return Peaks(declarer.basis, np.concatenate(forms)[:, :used], np.array(starts), at)


def _form(declarer: _Symbols, shape: Shape, stage: StageUnits, count: int) -> Array:
    c = dataclasses.replace(declarer.context, layout=shape.layout)
    schedule = occupancy(shape.pp, shape.vp, stage.pp_rank, count, shape.group)
    rank = Rank(c, stage.pp_rank, stage.plans, schedule, (), (), (), count)
    forms = [cast(Form, candidate.nbytes) for candidate in scheduled(rank, largest_sum)]
    return needed(np.concatenate([form.rows for form in forms]))


def unknowns(
    basis: Basis, declarer: Declarer, shape: tuple[int, ...], shared: Callable[[Any, Callable[[], Any]], Any]
) -> Array:
    """[unknown, point]: the bytes of every unknown, for arrays of a shape. `shared` makes each, or knows it."""
    known = np.zeros((len(basis.columns) + 1, prod(shape)))
    known[0] = 1
    for name, column in basis.columns.items():
        known[column] = shared(("bytes", name), partial(_spread, declarer, name, shape))
    return known


def _spread(declarer: Declarer, name: object, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(_bytes(declarer, name), shape).ravel()


def _bytes(declarer: Declarer, name: object) -> Any:
    if name == "residual":
        return declarer.context.residual("residual").nbytes
    if name == "batch":
        whole = Chunk(0, 0, (), embedding=True, final_norm=False, mtp=False, output=True)
        return sum(t.nbytes for t in declarer.inputs(whole))
    if name in ("table", "table summed"):
        return declarer.table_gradient(summed=name == "table summed").nbytes
    if name == "uncut":
        return sum(t.nbytes for t in declarer.uncut())
    if name in ("held", "held given"):
        return sum(t.nbytes for t in declarer.kept(given=name == "held given"))
    key, what = cast("tuple[Key, str]", name)
    run = real_run(declarer, key)
    if what == "saved":
        return run.trace.saved_bytes
    events = run.trace.forward if what == "F" else run.trace.backward
    return reduce(np.maximum, [event.nbytes for event in events])


def real_run(declarer: Declarer, key: Key) -> Run:
    """One copy of a unit as a declarer traces it."""
    first, second = key
    if isinstance(first, str):
        assert isinstance(second, bool)
        return declarer.part((first, second))
    assert not isinstance(second, bool)
    unit, traced, graphed, scratch = declarer.unit((first, second))
    params = tuple(param for kind in first for param in declarer.params(kind))
    return Run(unit, traced, 1, 0, params, graphed, scratch)
