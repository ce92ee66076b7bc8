"""The activations of a model chunk: its units, what they keep, and every moment of one forward and one backward.

A chunk is a list of runs, each a unit repeated for consecutive equal layers. Copies of a unit keep the same bytes, so the
moment of a run with most memory is always in its last copy: the others are already saved when it runs forward, and
still saved when it runs backward.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import accumulate, groupby
from typing import Any, NamedTuple

from ..features.cuda_graphs import captured, captures, replayed
from ..features.offload import offloaded, offloaded_layers, offloads
from ..features.paged_stash import stashed
from ..job.model import Model
from ..job.pipeline import Chunk
from ..modules.adapters import MARK
from ..modules.context import Context
from ..modules.kinds import kinds_of
from ..modules.layers import (
    Declaration,
    checkpointed,
    embedding_unit,
    final_norm_unit,
    layer_unit,
    mtp_unit,
    output_unit,
)
from ..states.fsdp import gathered
from ..tape.ops import EVERYTHING, Part, Unit
from ..tape.simulate import Trace, trace
from ..tape.tensor import Dim, Param, Tensor, largest
from .schedule import Direction

Kind = tuple[str, int, bool]
"""What tells layers apart: the kind, the index in the pattern of cp_comm_type, and whether it stays in 16 bits."""
UnitKey = tuple[tuple[Kind, ...], bool]
"""The kinds of the layers of a unit, and whether a full-recompute checkpoint wraps them."""
OUTSIDE = ("embedding", "final_norm", "mtp", "output")
PartKey = tuple[str, bool]
"""A unit outside the decoder layers: embedding (True: no other stage has a copy), final_norm, mtp (True: with an embedding of its
own) or output (True: it uses the embedding's weight)."""


class Run(NamedTuple):
    """A unit, how many consecutive copies of it, the first global layer (-1 outside the decoder), and its parameters."""

    unit: Unit
    trace: Trace
    copies: int
    first_layer: int
    params: tuple[Param, ...]
    graphed: tuple[Tensor, ...] = ()
    """What the CUDA graphs of one copy keep per microbatch in flight."""
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

    def beside_bytes(self, direction: Direction) -> int:
        """Bytes of the tensors beside a forward ("F") or a backward ("B")."""
        return sum(t.nbytes for t in (*self.beside[0 if direction == "F" else 1], *self.moving))


class Moment(NamedTuple):
    """One event of a chunk: its direction ("F" or "B"), the run and event it is in, the bytes of the chunk alive.

    `copy` is the copy of the run's unit that it is in, from 0; -1 for the last.
    """

    direction: Direction
    run: int
    event: int
    nbytes: int
    copy: int = -1


def higher(a: Moment, b: Moment) -> Moment:
    """The moment with more bytes; of arrays of layouts the larger bytes of each, at the event of the first."""
    if isinstance(a.nbytes, int) and isinstance(b.nbytes, int):
        return a if a.nbytes >= b.nbytes else b
    return a._replace(nbytes=largest(a.nbytes, b.nbytes))


@dataclass(frozen=True)
class ChunkPlan:
    """A chunk with its runs: parameters in registration order, bytes kept per microbatch, all moments."""

    chunk: Chunk
    runs: tuple[Run, ...]
    batch: tuple[Tensor, ...]
    """Input tensors of a microbatch, alive during its forward."""
    extremes: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was found so far, by what was asked; chunks of the same units share it."""

    def elsewhere(self, chunk: Chunk, runs: tuple[Run, ...]) -> ChunkPlan:
        """The same units as another chunk, which shares what is found of them."""
        plan = ChunkPlan(chunk, runs, self.batch)
        object.__setattr__(plan, "extremes", self.extremes)
        return plan

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes kept for backward after one microbatch's forward."""
        return sum(run.trace.saved_bytes * run.copies for run in self.runs)

    def decoder_layers(self, model: Model) -> dict[str, int]:
        """How many decoder layers of each kind."""
        return dict(Counter(model.kinds[i] for i in self.chunk.layers))

    def layers(self, model: Model) -> dict[str, int]:
        """How many layers of each kind, those of MTP too."""
        found = self.decoder_layers(model)
        if self.chunk.mtp:
            for kind in model.mtp_kinds:
                found[kind] = found.get(kind, 0) + model.mtp
        return found

    @property
    def batch_bytes(self) -> int:
        """Bytes of the input tensors of a microbatch."""
        return sum(t.nbytes for t in self.batch)

    @property
    def params(self) -> list[tuple[Param, int]]:
        """Parameters with the number of layers that have them."""
        return [(param, run.copies) for run in self.runs for param in run.params]

    def prefix(self, index: int, copy: int = -1) -> int:
        """Bytes kept by everything before a copy of a run, by default the last one."""
        before, run = self._before[index], self.runs[index]
        return before + run.trace.saved_bytes * (run.copies - 1 if copy < 0 else copy)

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
                top = reduce(lambda a, b: (a[0], largest(a[1], b[1])), chosen)
                if isinstance(top[1], int):
                    top = next(one for one in chosen if one[1] == top[1])
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
        tops: dict[Direction, Moment] = {}
        known: dict[int, list[tuple[Direction, int, int]]] = {}
        for index, run in enumerate(self.runs):
            if id(run.trace) not in known:
                known[id(run.trace)] = _highest_events(run.trace)
            for direction, event, nbytes in known[id(run.trace)]:
                extra = run.beside_bytes(direction) + (self.batch_bytes if direction == "F" else 0)
                moment = Moment(direction, index, event, self.prefix(index) + extra + nbytes)
                tops[direction] = higher(tops[direction], moment) if direction in tops else moment
        return tops


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


def _routed(key: object) -> bool:
    """Whether a declaration or a unit has routed experts: a layer's kind, the kinds of a unit's layers, or a part outside them."""
    assert isinstance(key, tuple)
    if isinstance(key[0], tuple):  # the kinds of several layers
        return any(_routed(kind) for kind in key[0])
    if key[0] in OUTSIDE:
        return bool(key[0] == "mtp")
    return any(kind.routed for kind in kinds_of(key[0]))


class Planner:
    """Builds chunk plans of one context; equal units are declared and traced once."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._declared: dict[object, Declaration] = {}
        self._units: dict[object, tuple[Unit, Trace, tuple[Tensor, ...]]] = {}
        self._plans: dict[object, ChunkPlan] = {}

    def with_routing(self, context: Context) -> Planner:
        """A planner of a context that differs in the routing of experts only: units without experts are shared."""
        other = Planner(context)
        for name in ("_declared", "_units"):
            mine = getattr(self, name)
            getattr(other, name).update({key: value for key, value in mine.items() if not _routed(key)})
        return other

    def plan(self, chunk: Chunk) -> ChunkPlan:
        """The plan of a chunk."""
        key = (
            tuple(self.kinds[i] for i in chunk.layers), chunk.embedding, chunk.final_norm, chunk.mtp, chunk.output,
            chunk.pp_rank == 0, chunk.last,
        )  # fmt: skip
        if key not in self._plans:
            self._plans[key] = self._build(chunk)
        known = self._plans[key]
        shift = (chunk.layers[0] if chunk.layers else 0) - (known.chunk.layers[0] if known.chunk.layers else 0)
        runs = known.runs
        if shift:
            runs = tuple(r._replace(first_layer=r.first_layer + shift) if r.first_layer >= 0 else r for r in known.runs)
        return known.elsewhere(chunk, runs)

    def kind(self, layer: int) -> Kind:
        """What a decoder layer is."""
        return self.kinds[layer]

    def layer(self, kind: Kind) -> Unit:
        """A layer of a kind as it is declared, neither checkpointed nor replayed."""
        return self._declare(kind).unit

    def params(self, kind: Kind) -> list[Param]:
        """Parameters that a layer of a kind declares."""
        return self._declare(kind).params

    def context_of(self, kind: Kind) -> Context:
        """The context that a layer of a kind is declared in."""
        return replace(self.context, high_precision=True) if kind[2] else self.context

    def _params(self, declared: Declaration) -> tuple[Param, ...]:
        """The parameters of a unit; with PEFT all but the adapters' are frozen."""
        if self.context.training.peft == "none":
            return tuple(declared.params)
        return tuple(p if MARK in p.name else p._replace(frozen=True, gemm="") for p in declared.params)

    def _build(self, chunk: Chunk) -> ChunkPlan:
        c = self.context
        runs: list[Run] = []
        if chunk.embedding:
            runs.append(self.part(("embedding", chunk.output)))
        runs.extend(self._layers(chunk))
        if chunk.final_norm:
            runs.append(self.part(("final_norm", True)))
        if chunk.mtp:
            runs.append(self.part(("mtp", not chunk.embedding)))
        if chunk.output:
            alone = c.model.share_embeddings_and_output_weights and chunk.pp_rank == 0
            output = self.part(("output", alone))
            if alone and runs:  # the embedding's weights, whole again
                output = output._replace(beside=runs[0].beside)
            runs.append(output)
        return ChunkPlan(chunk, tuple(runs), self.inputs(chunk))

    def inputs(self, chunk: Chunk) -> tuple[Tensor, ...]:
        """Tokens, positions, labels and loss mask of a microbatch, on chunks that read them, and the attention mask."""
        c = self.context
        if not (chunk.embedding or chunk.output or chunk.mtp):
            return ()
        shape = (c.batch, c.seq)
        found = [c.new(f"batch.{name}", *shape, dtype="int64") for name in ("tokens", "position_ids", "labels")]
        found.append(c.new("batch.loss_mask", *shape, dtype="fp32"))
        if c.training.create_attention_mask_in_dataloader:
            found.append(
                c.new("batch.attention_mask", c.batch, c.full_seq, c.full_seq._replace(name="seq"), dtype="bool")
            )
        return tuple(found)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What every decoder layer is."""
        ways = len(self.context.layout.cp_comm_type)
        kinds = enumerate(self.context.model.kinds)
        return tuple((kind, layer % ways, self._stays_in_bf16(layer)) for layer, kind in kinds)

    def _stays_in_bf16(self, layer: int) -> bool:
        """The first and last layers with first_last_layers_bf16 (Megatron-LM `fp8_utils.py`, is_first_last_bf16_layer)."""
        t = self.context.training
        if not (t.low_precision and t.first_last_layers_bf16):
            return False
        return (
            layer < t.num_layers_at_start_in_bf16
            or layer >= self.context.model.num_layers - t.num_layers_at_end_in_bf16
        )

    def _declare(self, kind: Kind) -> Declaration:
        if kind not in self._declared:
            self._declared[kind] = layer_unit(self.context_of(kind), kind[0], kind[1])
        return self._declared[kind]

    def _layers(self, chunk: Chunk) -> list[Run]:
        runs: list[Run] = []
        t = self.context.training
        leaving: tuple[bool, ...] = (False,) * len(chunk.layers)
        if offloads(t):
            leaving = offloaded_layers(t, len(chunk.layers))
        groups = [(*group, leaving[group[0] - chunk.layers[0]]) for group in self._groups(chunk)]
        for key, members in groupby(groups, key=lambda group: group[1:]):
            firsts = [group[0] for group in members]
            kinds, full, leaves = key
            params = tuple(param for kind in kinds for param in self._params(self._declare(kind)))
            unit, traced, graphed = self.unit((kinds, full))
            beside = gathered(self.context, "", params, len(chunk.layers))
            traced, paged = self._paged(traced)
            gone: tuple[Tensor, ...] = ()
            away: tuple[tuple[str, tuple[Tensor, ...]], ...] = ()
            moving: tuple[Tensor, ...] = ()
            if leaves:
                leave = offloaded(t, traced)
                traced, gone, away = leave.trace, leave.tensors, leave.groups
                ways = 2 if t.cpu_offloading_double_buffering else 1
                moving = tuple(
                    x._replace(name=f"{x.name} on its way ({i})") for i in range(ways) for x in leave.on_their_way
                )
            runs.append(Run(unit, traced, len(firsts), firsts[0], params, graphed, beside, gone, paged, away, moving))
        return runs

    def _groups(self, chunk: Chunk) -> list[tuple[int, tuple[Kind, ...], bool]]:
        """(first layer, kinds of the layers of one unit, whether a full-recompute checkpoint wraps them)."""
        t = self.context.training
        layers = chunk.layers
        if t.recompute_granularity != "full":
            return [(i, (self.kinds[i],), False) for i in layers]
        n = 1 if t.recompute_num_layers is None else t.recompute_num_layers
        if t.recompute_method == "block":
            return [(i, (self.kinds[i],), index < n) for index, i in enumerate(layers)]
        n = max(n, 1)
        return [
            (layers[start], tuple(self.kinds[i] for i in layers[start : start + n]), True)
            for start in range(0, len(layers), n)
        ]

    def unit(self, key: UnitKey) -> tuple[Unit, Trace, tuple[Tensor, ...]]:
        """Layers that form one unit: as declared, traced, and what their CUDA graphs keep."""
        if key not in self._units:
            kinds, full = key
            declared = tuple(self._declare(kind) for kind in kinds)
            self._units[key] = self._traced(checkpointed(self.context, declared) if full else declared[0].unit)
        return self._units[key]

    def part(self, key: PartKey) -> Run:
        """A unit outside the decoder layers."""
        declared = self._declare_part(key)
        if key not in self._units:
            self._units[key] = declared.unit, trace(declared.unit), ()
        unit, traced, _ = self._units[key]
        params = self._params(declared)
        traced, paged = self._paged(traced)
        return Run(unit, traced, 1, -1, params, (), gathered(self.context, f"{unit.name}.", params, 0), (), paged)

    def _declare_part(self, key: PartKey) -> Declaration:
        if key not in self._declared:
            c, (name, variant) = self.context, key
            if name == "embedding":
                self._declared[key] = embedding_unit(c, alone=variant)
            elif name == "final_norm":
                self._declared[key] = final_norm_unit(c)
            elif name == "mtp":
                self._declared[key] = mtp_unit(c, owns_embedding=variant)
            else:
                tied = c.model.share_embeddings_and_output_weights
                self._declared[key] = output_unit(c, owns_weight=not variant, shared=tied and not variant)
        return self._declared[key]

    def _paged(self, found: Trace) -> tuple[Trace, tuple[Tensor, ...]]:
        return stashed(self.context, found) if self.context.training.moe_paged_stash else (found, ())

    def _traced(self, unit: Unit) -> tuple[Unit, Trace, tuple[Tensor, ...]]:
        graphed: tuple[Tensor, ...] = ()
        if captures(self.context.training):
            graphed = captured(self.context.training, unit)
            if self.context.training.cuda_graph_warmup_steps == 0:
                unit = replayed(unit, graphed)
        return unit, trace(unit), graphed


def boundary(c: Context, name: str, *, with_mtp: bool = False) -> Tensor:
    """A hidden-states tensor that crosses pipeline stages."""
    one = c.residual(name)
    if with_mtp:
        depths = 1 + c.model.mtp
        return one._replace(shape=(Dim("1+mtp_num_layers", depths), *one.shape), nbytes=one.nbytes * depths)
    return one
