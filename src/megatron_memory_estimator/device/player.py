"""Plays training steps of a pipeline rank on an allocator, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from ..rank.boundary import pipeline_tensors
from ..rank.chunks import ChunkPlan, Run
from ..rank.rank import Rank
from ..rank.schedule import enough_microbatches, every_step
from ..rank.workspaces import Workspace, dummy_wgrads
from .allocator import Allocator, Block
from .lifetimes import Change, Lifetimes, lifetimes, with_slopes


class Uneven(NamedTuple):
    """Routing that differs from layer to layer and microbatch to microbatch: the rows of a rank are normally distributed about those of
    balanced routing, with this spread. `plans`: the rank's chunks with `excess` times more rows."""

    plans: tuple[ChunkPlan, ...]
    excess: float
    spread: float
    seed: int = 0


class _Part(NamedTuple):
    """A unit of a chunk: its lifetimes, and the cached weight gradients that its backward uses."""

    lifetimes: Lifetimes
    wgrads: tuple[tuple[tuple[int, ...], int], ...]


class _Held(NamedTuple):
    """What a unit keeps of a microbatch, and how many more rows than balanced routing its experts got."""

    blocks: dict[str, Block]
    excess: float


class Player:
    """Plays the forwards and backwards of a rank. Persistent scratch is allocated at once, the cached weight gradients by the first
    backward that uses them."""

    def __init__(self, memory: Allocator, rank: Rank, *, results_first: bool, uneven: Uneven | None = None) -> None:
        self.memory, self.rank, self.results_first, self.uneven = memory, rank, results_first, uneven
        self.draw = Random(uneven.seed if uneven else 0)
        self.known: dict[int, _Part] = {}
        others = uneven.plans if uneven else rank.plans
        self.chunks = [
            [
                self._part(run, other, head=plan.chunk.output and run is plan.runs[-1])
                for run, other in zip(plan.runs, beside.runs, strict=True)
                for _ in range(run.copies)
            ]
            for plan, beside in zip(rank.plans, others, strict=True)
        ]
        self.kept: dict[tuple[int, int], list[_Held]] = {}
        self.inputs: dict[tuple[int, int], list[Block]] = {}
        self.missing = {shape: nbytes for chunk in self.chunks for part in chunk for shape, nbytes in part.wgrads}
        for workspace in rank.workspaces:
            if _shape(workspace) not in self.missing:
                memory.allocate(workspace.nbytes)
        for t in pipeline_tensors(rank, "F"):
            memory.allocate(t.nbytes)

    def _part(self, run: Run, other: Run, *, head: bool) -> _Part:
        key = id(run.unit)
        if key not in self.known:
            wgrads = reversed(dummy_wgrads(self.rank.context, list(run.params), head=head))
            played = lifetimes(run.unit, results_first=self.results_first)
            if self.uneven:
                played = with_slopes(
                    played, lifetimes(other.unit, results_first=self.results_first), self.uneven.excess
                )
            self.known[key] = _Part(played, tuple((_shape(w), w.nbytes) for w in wgrads))
        return self.known[key]

    def step(self) -> None:
        """The forwards and backwards of one training step."""
        for kind, chunk, microbatch in self._order():
            (self._forward if kind == "F" else self._backward)(chunk, microbatch)

    def _order(self) -> Iterator[tuple[str, int, int]]:
        """The steps of the schedule, with as few microbatches as pass through every one, and one more."""
        layout, vp = self.rank.context.layout, len(self.rank.plans)
        group = layout.microbatch_group_size_per_vp_stage or layout.pp
        count = enough_microbatches(layout.pp, vp, self.rank.num_microbatches, group) + (vp == 1)
        return every_step(layout.pp, vp, self.rank.pp_rank, min(count, self.rank.num_microbatches), group)

    def _forward(self, chunk: int, microbatch: int) -> None:
        plan = self.rank.plans[chunk]
        whole = [self.memory.allocate(t.nbytes) for t in plan.uncut]
        batch = {t.name: self.memory.allocate(t.nbytes) for t in plan.batch}
        for block in whole:
            self.memory.free(block)
        self.inputs[chunk, microbatch] = [batch.pop(t.name) for t in plan.held]
        held = self.kept[chunk, microbatch] = []
        handed: Block | None = None
        for unit, _ in self.chunks[chunk]:
            blocks: dict[str, Block] = {}
            if handed is not None and unit.entry:
                blocks[unit.entry] = handed
            excess = max(self.draw.gauss(0, self.uneven.spread), -1.0) if self.uneven else 0.0
            handed = self._change(unit.forward, blocks, unit.entry, unit.exit, excess)
            held.append(_Held(blocks, excess))
        for block in (*batch.values(), *([handed] if handed else ())):
            self.memory.free(block)

    def _backward(self, chunk: int, microbatch: int) -> None:
        handed: Block | None = None
        held, inputs = self.kept.pop((chunk, microbatch)), self.inputs.pop((chunk, microbatch))
        plan = self.rank.plans[chunk]
        units_before = sum(run.copies for run in plan.runs[: plan.holder])
        for unit, wgrads in reversed(self.chunks[chunk]):
            for shape, nbytes in wgrads if self.missing else ():
                if self.missing.pop(shape, None) is not None:
                    self.memory.allocate(nbytes)
            blocks, excess = held.pop()
            if handed is not None and unit.exit_grad:
                blocks[unit.exit_grad] = handed
            self._change(unit.backward, blocks, unit.exit_grad, "", excess)
            handed = blocks.pop(unit.entry_grad, None)
            if len(held) == units_before:
                while inputs:
                    self.memory.free(inputs.pop())
        if handed is not None:
            self.memory.free(handed)

    def _change(
        self, changes: tuple[Change, ...], blocks: dict[str, Block], given: str, handed: str, excess: float
    ) -> Block | None:
        """Allocate and free as a unit does; `given` may be there already. What is freed of `handed` is returned, not freed."""
        memory, kept = self.memory, None
        for change in changes:
            storage = change.storage
            if change.nbytes >= 0:
                if storage != given or storage not in blocks:
                    nbytes = change.bytes_at(excess) if change.slope else change.nbytes
                    blocks[storage] = memory.allocate(nbytes, change.stream)
            elif storage == handed:
                kept = blocks.pop(storage)
            else:
                memory.free(blocks.pop(storage))
        return kept


def _shape(workspace: Workspace) -> tuple[int, ...]:
    return tuple(dim.local for dim in workspace.shape)
