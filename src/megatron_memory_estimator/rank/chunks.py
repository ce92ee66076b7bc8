"""The activations of a model chunk: its units, what they keep, and every moment of one forward and one backward.

A chunk is a list of runs, each a unit repeated for consecutive equal layers. Copies of a unit keep the same bytes, so the
moment of a run with most memory is always in its last copy: the others are already saved when it runs forward, and
still saved when it runs backward.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..features.offload import Absence
from ..job.model import Model
from ..job.pipeline import Chunk
from ..modules.context import Context
from ..tape.events import Live, Trace
from ..tape.ops import EVERYTHING, Part, Unit
from ..tape.simulate import alive_at
from ..tape.tensor import Dim, Param, Tensor
from .schedule import Direction


class TracedUnit(NamedTuple):
    """A unit of layers, its events, what its CUDA graphs keep per microbatch in flight, and the most that it has alive beside that while
    it is captured."""

    unit: Unit
    trace: Trace
    graphed: tuple[Tensor, ...] = ()
    capture_scratch: int = 0


class Run(NamedTuple):
    """A unit, how many consecutive copies of it, the first global layer (-1 outside the decoder), and its parameters."""

    unit: Unit
    trace: Trace
    copies: int
    first_layer: int
    params: tuple[Param, ...]
    graphed: tuple[Tensor, ...] = ()
    """What the CUDA graphs of one copy keep per microbatch in flight."""
    capture_scratch: int = 0
    """The most that one copy has alive beside that while it is captured."""
    beside: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = ((), ())
    """Tensors alive while one copy runs forward, and backward, that belong to no microbatch."""
    offloaded: tuple[Tensor, ...] = ()
    """What one copy keeps in host memory, per microbatch in flight."""
    stashed: tuple[Tensor, ...] = ()
    """What one copy keeps in the paged stash, per microbatch in flight, in rows of balanced routing."""
    away: tuple[tuple[str, tuple[Tensor, ...]], ...] = ()
    """What one copy offloads, by module."""
    moving: tuple[Tensor, ...] = ()
    """What is on its way to or from host memory while one copy runs."""
    absence: Absence | None = None
    """Which of its tensors are in host memory, by event."""
    leaves: bool = False
    """Whether a copy is, or has, a checkpoint around a router, whose input and the gradient of that stay behind its backward."""

    @property
    def span(self) -> int:
        """How many layers one copy has: several under one checkpoint."""
        return len(self.unit.name.split(" ")) if self.first_layer >= 0 else 1

    def first_of(self, copy: int) -> int:
        """The first layer of a copy."""
        return self.first_layer + copy * self.span

    def layers(self, copy: int | None = None) -> str:
        """The layers of a copy, or of all: `3`, `0-4`."""
        first, copies = (self.first_layer, self.copies) if copy is None else (self.first_of(copy), 1)
        last = first + copies * self.span - 1
        return str(first) if first == last else f"{first}-{last}"

    def place(self, op: str, copy: int) -> str:
        """An op and the layer that it is in. Those of several layers under one checkpoint have the number of theirs in front."""
        if self.first_layer < 0:
            return op
        at, _, name = op.partition(".")
        if self.span > 1 and at.isdigit():
            return f"{name} of layer {self.first_of(copy) + int(at)}"
        return f"{op} of layer{'s' if self.span > 1 else ''} {self.layers(copy)}"

    def alive(self, event: int) -> tuple[Live, ...]:
        """The tensors of one copy on the GPU at an event."""
        found = alive_at(self.unit, event)
        return self.absence.present(found, event) if self.absence else found

    def beside_bytes(self, direction: Direction) -> int:
        """Bytes of the tensors beside a forward ("F") or a backward ("B")."""
        return sum(t.nbytes for t in (*self.beside[0 if direction == "F" else 1], *self.moving))


CUTTING = -1
"""The run of a moment before the first one."""


class Moment(NamedTuple):
    """One event of a chunk: its direction ("F" or "B"), the run and event it is in, the bytes of the chunk alive.

    `copy` is the copy of the run's unit that it is in, from 0; -1 for the last. Before the first run (`CUTTING`) the inputs of the
    microbatch are cut along cp.
    """

    direction: Direction
    run: int
    event: int
    nbytes: int
    copy: int = -1


def higher(a: Moment, b: Moment) -> Moment:
    """The moment with more bytes."""
    return a if a.nbytes >= b.nbytes else b


@dataclass(frozen=True)
class ChunkPlan:
    """A chunk with its runs: parameters in registration order, bytes kept per microbatch, all moments."""

    chunk: Chunk
    runs: tuple[Run, ...]
    batch: tuple[Tensor, ...]
    """Input tensors of a microbatch, alive during its forward."""
    leaf: Tensor | None = None
    """A checkpoint's input, or the gradient of that: what `leaves` of its runs are as large as."""
    handed: bool = False
    """Whether a checkpoint hands the layer before it the gradient that stays: it has the whole layer in it."""
    uncut: tuple[Tensor, ...] = ()
    """What of a microbatch's inputs is alive beside them until they are cut along cp, before the forward."""
    held: tuple[Tensor, ...] = ()
    """Inputs of a microbatch that its layers keep until the backward of the first of them is over."""
    extremes: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was found so far, by what was asked; chunks of the same units share it."""

    def elsewhere(self, chunk: Chunk, runs: tuple[Run, ...]) -> ChunkPlan:
        """The same units as another chunk, which shares what is found of them."""
        plan = replace(self, chunk=chunk, runs=runs)
        object.__setattr__(plan, "extremes", self.extremes)
        return plan

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes kept for backward after one microbatch's forward."""
        kept = sum(run.trace.saved_bytes * run.copies for run in self.runs)
        return kept + self.held_bytes if self.held else kept

    def decoder_layers(self, model: Model) -> dict[str, int]:
        """How many decoder layers of each kind."""
        return dict(Counter(model.kinds[i] for i in self.chunk.layers))

    def layers(self, model: Model) -> dict[str, int]:
        """How many layers of each kind, those of MTP too."""
        found = self.decoder_layers(model)
        for kind in dict.fromkeys((*model.mtp_kinds, *model.mtp_kinds_behind)) if model.mtp else ():
            if count := _layers_of_mtp(kind, model, self.chunk):
                found[kind] = found.get(kind, 0) + count
        return found

    @property
    def batch_bytes(self) -> int:
        """Bytes of the input tensors of a microbatch."""
        return sum(t.nbytes for t in self.batch)

    @property
    def held_bytes(self) -> int:
        """Bytes of the inputs that its layers keep for backward."""
        return sum(t.nbytes for t in self.held)

    @property
    def cutting(self) -> Moment:
        """Before a forward, while the inputs of its microbatch are cut along cp."""
        return Moment("F", CUTTING, 0, self.batch_bytes + sum(t.nbytes for t in self.uncut))

    @cached_property
    def holder(self) -> int:
        """The first run of layers, behind whose backward the chunk keeps no input; the first of all, where it keeps all inputs."""
        if {t.name for t in self.batch} == {t.name for t in self.held}:
            return 0
        return next((i for i, run in enumerate(self.runs) if run.first_layer >= 0 or run.unit.name == "mtp"), 0)

    def inputs_at(self, direction: Direction, index: int) -> tuple[Tensor, ...]:
        """Inputs of a microbatch that are alive while a run runs forward, or backward with nothing beside it."""
        if direction == "F":
            return self.batch
        return self.held if index >= self.holder else ()

    @property
    def registered(self) -> list[Run]:
        """Its runs in registration order, each with its parameters: the embedding comes first, that of a stage with MTP too, which has one
        for MTP's lookup (Megatron-LM `gpt_model.py`, GPTModel.__init__)."""
        first, rest = [], []
        for run in self.runs:
            tables = tuple(param for param in run.params if param.name.startswith("embedding."))
            first += [run._replace(params=tables)] if tables else []
            rest.append(
                run._replace(params=tuple(param for param in run.params if param not in tables)) if tables else run
            )
        return [*first, *rest]

    @property
    def registered_params(self) -> list[tuple[list[Param], int]]:
        """Parameters of each run in registration order, with the number of layers that have them."""
        return [(list(run.params), run.copies) for run in self.registered]

    @property
    def params(self) -> list[tuple[Param, int]]:
        """Parameters with the number of layers that have them."""
        return [(param, run.copies) for run in self.registered for param in run.params]

    def prefix(self, index: int, copy: int = -1) -> int:
        """Bytes kept by everything before a copy of a run, by default the last one."""
        before, run = self._before[index], self.runs[index]
        return before + run.trace.saved_bytes * (run.copies - 1 if copy < 0 else copy)

    def behind(self, index: int, copy: int = -1) -> int:
        """Leaves while a copy of a run, by default the last one, runs backward: of every checkpoint around a router whose backward is done
        its input and the gradient of that; a whole layer hands the running copy the gradient that this has anyway."""
        run = self.runs[index]
        last = copy < 0 or copy == run.copies - 1
        next_one = self.runs[index + 1 : index + 2] if last else (run,)
        more = 0 if last else run.copies - 1 - copy
        done = self._leaves[index + 1] + (more if run.leaves else 0)
        return 2 * done - (sum(one.leaves for one in next_one) if self.handed else 0)

    def received(self, index: int, copy: int = -1) -> int:
        """1 while the gradient that the stage received is held behind the units that read it, which the last one has anyway."""
        last = index == len(self.runs) - 1 and (copy < 0 or copy == self.runs[index].copies - 1)
        return int(not (self.chunk.output or last))

    @cached_property
    def _leaves(self) -> list[int]:
        """Checkpoints around routers in each run and those behind it."""
        counts = [run.copies if run.leaves else 0 for run in self.runs]
        return [sum(counts[index:]) for index in range(len(counts) + 1)]

    def left_bytes(self, direction: Direction, index: int, copy: int = -1) -> int:
        """Bytes of the leaves, and of the gradient that the stage received, while a copy of a run runs."""
        if self.leaf is None or direction == "F":
            return 0
        count = self.behind(index, copy) + self.received(index, copy)
        return self.leaf.nbytes * count if count else 0

    @cached_property
    def _before(self) -> list[int]:
        """Bytes kept by everything before each run."""
        return list(accumulate((run.trace.saved_bytes * run.copies for run in self.runs), initial=0))

    def moments_of(
        self, direction: Direction, index: int, copy: int, parts: frozenset[Part] = EVERYTHING
    ) -> tuple[Moment, Moment, Moment] | None:
        """The first, the largest and the last moment of some parts of one copy of a run, forward ("F") or backward ("B")."""
        known = self._extremes(direction, index, parts)
        if known is None:
            return None
        fixed = self.prefix(index, copy) + self.batch_bytes + self.runs[index].beside_bytes(direction)
        fixed = fixed + self.left_bytes(direction, index, copy)
        first, top, last = (Moment(direction, index, event, fixed + nbytes, copy) for event, nbytes in known)
        return first, top, last

    def _extremes(self, direction: Direction, index: int, parts: frozenset[Part]) -> tuple[tuple[int, int], ...] | None:
        """(event, bytes of the unit alone) of the first, the largest and the last event of some parts of a run."""
        key = direction, index, parts
        if key not in self.extremes:
            run = self.runs[index]
            shift, events = (0, run.trace.forward) if direction == "F" else (len(run.trace.forward), run.trace.backward)
            chosen = [(shift + i, event.nbytes) for i, event in enumerate(events) if event.part in parts]
            if not chosen:
                self.extremes[key] = None
            else:
                top = max(chosen, key=lambda one: one[1])
                self.extremes[key] = chosen[0], top, chosen[-1]
        found: tuple[tuple[int, int], ...] | None = self.extremes[key]
        return found

    def largest(self, direction: Direction, index: int, copy: int) -> Moment:
        """The event of one copy of a run with most memory."""
        found = self.moments_of(direction, index, copy)
        assert found is not None
        return found[1]

    @property
    def tops(self) -> dict[Direction, Moment]:
        """The largest moment of the forward ("F") and of the backward ("B")."""
        if "tops" not in self.extremes:
            self.extremes["tops"] = self._tops()
        found: dict[Direction, Moment] = self.extremes["tops"]
        return found

    def _tops(self) -> dict[Direction, Moment]:
        tops: dict[Direction, Moment] = {"F": self.cutting} if self.uncut else {}
        known: dict[int, list[tuple[Direction, int, int]]] = {}
        for index, run in enumerate(self.runs):
            if id(run.trace) not in known:
                known[id(run.trace)] = _highest_events(run.trace)
            for direction, event, nbytes in known[id(run.trace)]:
                extra = run.beside_bytes(direction) + sum(t.nbytes for t in self.inputs_at(direction, index))
                for copy in (-1, 0) if direction == "B" and run.leaves and run.copies > 1 else (-1,):
                    left = self.left_bytes(direction, index, copy)
                    moment = Moment(direction, index, event, self.prefix(index, copy) + extra + left + nbytes, copy)
                    tops[direction] = higher(tops[direction], moment) if direction in tops else moment
        return tops


def _layers_of_mtp(kind: str, model: Model, chunk: Chunk) -> int:
    """How many layers of a kind the MTP depths of a chunk have; one depth that is repeated is built once."""
    depths = min(model.mtp, 1) if model.mtp_use_repeated_layer else model.mtp
    return depths * chunk.mtp_kinds(model).count(kind)


def _highest_events(found: Trace) -> list[tuple[Direction, int, int]]:
    """(direction, event, bytes) of the event with most bytes, forward and backward, as far as there are any."""
    highest: list[tuple[Direction, int, int]] = []
    directions: tuple[Direction, Direction] = ("F", "B")
    for direction, events in zip(directions, (found.forward, found.backward), strict=True):
        shift = 0 if direction == "F" else len(found.forward)
        moments = [Moment(direction, 0, shift + at, event.nbytes) for at, event in enumerate(events)]
        if moments:
            top = reduce(higher, moments)
            highest.append((direction, top.event, top.nbytes))
    return highest


def boundary(c: Context, name: str, *, with_mtp: bool = False, layer: int = 0) -> Tensor:
    """A hidden-states tensor that crosses pipeline stages; with attention residuals the bank in front of a layer too."""
    one = c.residual(name)
    if rows := c.model.rows_before(layer):
        return one._replace(shape=(Dim("1+bank rows", 1 + rows), *one.shape), nbytes=one.nbytes * (1 + rows))
    if with_mtp:
        depths = 1 + c.model.mtp
        return one._replace(shape=(Dim("1+mtp_num_layers", depths), *one.shape), nbytes=one.nbytes * depths)
    return one
