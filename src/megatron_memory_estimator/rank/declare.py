"""Units of a context: declared and traced once for all layers that are equal, and put together to chunks.

The inputs of a microbatch, on chunks that read them, and who keeps them.

Sources: Megatron-LM `pretrain_gpt.py` (get_batch), `megatron/core/models/common/model_chunk_schedule_plan.py` (ModelChunkState).

What a chunk receives from the stage before stays with the pipeline's schedule until its backward is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby

from ..features.cuda_graphs import capture_scratch, captured, captures, replayed
from ..features.offload import Absence, offloaded, offloaded_layers, offloads, stashed
from ..job.pipeline import Chunk
from ..job.tower import counted
from ..modules.attention_mask import attention_mask, given_masks, kept_mask, uncut_mask
from ..modules.context import Context
from ..modules.head import output_parameter
from ..modules.hf_tower import attention_biases
from ..modules.kimi_k3 import beside_layer, keeping_bank
from ..modules.layers import (
    Declaration,
    checkpointed,
    embedding_unit,
    final_norm_unit,
    grouped,
    joined,
    layer_unit,
    mtp_unit,
    output_unit,
    towers_unit,
    with_frozen,
)
from ..modules.linear import cached_wgrad, in_flight
from ..modules.norm import before
from ..modules.vision_tower import inputs as pixels
from ..states.fsdp import gathered
from ..tape.events import Trace
from ..tape.ops import Op, Unit
from ..tape.simulate import trace
from ..tape.tensor import DTYPE_BYTES, Dim, Param, Tensor, largest
from .chunks import ChunkPlan, Run, TracedUnit
from .keys import Form, Group, LayerKey, PartKey, UnitKey, routed, stays_in_bf16
from .weight_shards import chain_of, sharded

TABLE = "gradient of the embedding table"
Beside = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


class Declarer:
    """Builds chunk plans of one context; equal units are declared and traced once."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._declared: dict[object, Declaration] = {}
        self._units: dict[object, TracedUnit] = {}
        self._plans: dict[object, ChunkPlan] = {}

    def with_routing(self, context: Context) -> Declarer:
        """A declarer of a context that differs in the routing of experts only: units without experts are shared."""
        other = Declarer(context)
        for name in ("_declared", "_units"):
            mine = getattr(self, name)
            getattr(other, name).update({key: value for key, value in mine.items() if not routed(key)})
        return other

    def share(self, declared: dict[object, Declaration], units: dict[object, TracedUnit]) -> None:
        """Take units, and keep new ones, where other declarers of the same degrees and training do: on other stages and GPUs."""
        self._declared, self._units = declared, units

    def plan(self, chunk: Chunk) -> ChunkPlan:
        """The plan of a chunk."""
        if self.unmasked is not None and not chunk.reads_inputs:
            return self.unmasked.plan(chunk)
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

    @cached_property
    def unmasked(self) -> Declarer | None:
        """The declarer of chunks that are given no attention mask, where that makes a difference."""
        context = without_mask(self.context)
        return None if context is None else Declarer(context)

    def kind(self, layer: int) -> LayerKey:
        """What a decoder layer is."""
        return self.kinds[layer]

    def layer(self, kind: LayerKey) -> Unit:
        """A layer of a kind as it is declared, neither checkpointed nor replayed."""
        return self._declare(kind).unit

    def part_unit(self, key: PartKey) -> Unit:
        """A unit outside the decoder layers as it is declared."""
        return self._declare_part(key).unit

    def params(self, kind: LayerKey) -> list[Param]:
        """Parameters that a layer of a kind declares."""
        return self._declare(kind).params

    def params_of(self, chunk: Chunk) -> Iterator[Param]:
        """Parameters of the units of a chunk, of equal layers once."""
        for kind in dict.fromkeys(self.kinds[i] for i in chunk.layers):
            yield from self._params(self._declare(kind))
        for key in (key for keys in self.parts(chunk) for key in keys):
            yield from self._params(self._declare_part(key))

    def context_of(self, kind: LayerKey) -> Context:
        """The context that a layer of a kind is declared in."""
        return replace(self.context, high_precision=True) if kind[2] else self.context

    def _params(self, declared: Declaration) -> tuple[Param, ...]:
        """The parameters of a unit, trained or frozen, as a rank has them."""
        c = self.context
        found = with_frozen(c, declared.params)
        return tuple(sharded(c, param) for param in found) if c.layout.shards_weights else found

    def _build(self, chunk: Chunk) -> ChunkPlan:
        before, behind = self.parts(chunk)
        runs = [*map(self.part, before), *self._layers(chunk)]
        for key in behind:
            run = self.part(key)
            if key == ("output", True) and runs:  # the embedding's weights, whole again
                run = run._replace(beside=runs[before.index(("embedding", True))].beside)
            runs.append(run)
        runs = self._summing(chunk, self._waiting(chunk, self._embedded(chunk, runs)))
        uncut = self.uncut() if chunk.reads_inputs else ()
        leaf = self._leaf() if any(run.leaves for run in runs) else None
        handed = self.context.training.recomputes_whole_layers()
        return ChunkPlan(chunk, tuple(runs), self.inputs(chunk), leaf, handed, uncut, self.held(chunk))

    def _leaf(self) -> Tensor:
        """The input of a checkpoint around a router, or the gradient of that: of a layer, or of its experts."""
        c, name = self.context, "input or gradient"
        return c.residual(name) if c.training.recomputes_whole_layers() else c.stream(name, c.hidden)

    def _embedded(self, chunk: Chunk, runs: list[Run]) -> list[Run]:
        """The runs with the embedding's wide output beside the forward of all behind the first layer: the model's forward refers to it to
        its end (`gpt_model.py`, decoder_input), and TransformerEngine's norms keep a cast of it alone."""
        c = self.context
        cast = c.te and not c.model.several_streams and c.residual_dtype != c.dtype
        if not (cast and chunk.embedding) or c.training.recomputes_whole_layers() or c.training.recomputes("layernorm"):
            return runs
        wide = c.residual("decoder_input")
        found = []
        for run in runs:
            if run.first_layer == 0:  # whose own input it is
                found.append(run._replace(copies=1))
                run = run._replace(copies=run.copies - 1, first_layer=run.span)
            if run.copies:
                found.append(run if run.unit.name == "embedding" else _beside_forward(run, (wide,)))
        return found

    def _waiting(self, chunk: Chunk, runs: list[Run]) -> list[Run]:
        """The runs with the table's gradient beside the backward of those between its uses: autograd adds up the gradients of one parameter
        before it hands them on, so that of a tied output layer, or of MTP's lookup, waits for the embedding's.

        A cached dummy of the output layer waits nowhere of its own; the sum with it is a tensor of its own (PyTorch
        `torch/csrc/autograd/input_buffer.cpp`: only a tensor that nothing else refers to is added to in place). With MTP the output layer
        itself is used several times, and its dummies are such a sum already.
        """
        c = self.context
        tied = c.model.share_embeddings_and_output_weights and (chunk.embedding or chunk.mtp)
        uses = [
            index
            for index, run in enumerate(runs)
            if run.unit.name in ("embedding", "mtp") or (tied and run.unit.name.startswith("output"))
        ]
        if len(uses) < 2 or c.training.base_frozen:
            return runs
        cached = tied and chunk.output and not chunk.mtp and cached_wgrad(c, output_parameter(c))
        end = uses[-2] + 1 if cached else uses[-1]
        found = list(runs)
        for index in range(uses[0], end):
            run = runs[index]
            waits = self.table_gradient(summed=cached and index == uses[-2])
            found[index] = run._replace(beside=(run.beside[0], (*run.beside[1], waits)))
        return found

    def _summing(self, chunk: Chunk, runs: list[Run]) -> list[Run]:
        """The runs with the whole gradient of a shared output layer beside the backward of what stands before it: it stays until that of
        the weight before, in the last decoder layer, is on its way too (`weight_shards.py`)."""
        c = self.context
        decoder = [index for index, run in enumerate(runs) if run.first_layer >= 0]
        if c.layout.gtp == 1 or not chunk.output or not decoder:
            return runs
        waits = in_flight(c, output_parameter(c))
        at = decoder[-1]
        last = runs[at]
        layers = len(chunk.layers) // sum(runs[index].copies for index in decoder)
        alone = last._replace(copies=1, first_layer=last.first_layer + layers * (last.copies - 1))
        parted = [last._replace(copies=last.copies - 1)] if last.copies > 1 else []
        behind = [run if run.unit.name.startswith("output") else _beside_backward(run, waits) for run in runs[at + 1 :]]
        return [*runs[:at], *parted, self._until_on_its_way(alone, waits), *behind]

    def _until_on_its_way(self, run: Run, waits: tuple[Tensor, ...]) -> Run:
        """A run of one layer with a gradient that stays until that of the layer's last weight is on its way: through its whole backward, an
        upper bound, where something is run again or copied away before."""
        weight = chain_of(self.context, [(run.params, 1)])[-1]
        unit = holding(run.unit, weight.name.removesuffix(".weight"), waits)
        if unit is None or run.absence or run.graphed or run.stashed or run.moving:
            return _beside_backward(run, waits)
        return run._replace(unit=unit, trace=trace(unit))

    def table_gradient(self, *, summed: bool) -> Tensor:
        """The gradient of the embedding table, or of the output layer's weight that is the same; `summed`: what its sum with a cached one
        takes beyond what is freed by then, the gradient of the embedding's output."""
        c = self.context
        table = c.new(f"{TABLE} that waits", *output_parameter(c).shape)
        if not summed:
            return table
        freed = c.stream("", c.hidden).nbytes + (c.region("", c.hidden).nbytes if c.sp_many else 0)
        rest = Dim("elements", largest(table.nbytes - freed, 0) // DTYPE_BYTES[c.dtype])
        return c.new(f"{TABLE}, summed, beyond what is freed", rest)

    def parts(self, chunk: Chunk) -> tuple[list[PartKey], list[PartKey]]:
        """The units of a chunk before its decoder layers, and behind them."""
        tied = self.context.model.share_embeddings_and_output_weights
        before: list[PartKey] = [("embedding", chunk.output)] if chunk.embedding else []
        if chunk.embedding and counted(self.context.model.towers):
            before.insert(0, ("towers", True))
        mhc = self.context.model.several_streams and chunk.mtp  # MTP reads the streams before that norm
        behind: list[PartKey] = [("final_norm", True)] if chunk.final_norm and not mhc else []
        if chunk.mtp:
            behind.append(("mtp", not chunk.embedding))
        if chunk.output:
            first = chunk.pp_rank == 0
            behind.append(("output_behind_mtp" if tied and chunk.mtp and not first else "output", tied and first))
        return before, behind

    def inputs(self, chunk: Chunk) -> tuple[Tensor, ...]:
        """The inputs of a microbatch, on chunks that read them."""
        return inputs_of(self.context, chunk)

    def held(self, chunk: Chunk) -> tuple[Tensor, ...]:
        """Inputs that a chunk keeps until its backward: with all-to-all overlap all of them (ModelChunkState), else masks and biases."""
        if self.context.training.overlap_moe_expert_parallel_comm:
            return self.inputs(chunk)
        layers = keeping_layers(self.context, chunk)
        kept = self.kept(given=given_masks(layers)) if layers else ()
        return (*kept, *attention_biases(self.context))

    def uncut(self) -> tuple[Tensor, ...]:
        """The attention mask before it is cut along cp."""
        return uncut_mask(self.context)

    def kept(self, *, given: bool) -> tuple[Tensor, ...]:
        """The attention mask that layers keep."""
        return kept_mask(self.context, given=given)

    @cached_property
    def kinds(self) -> tuple[LayerKey, ...]:
        """What every decoder layer is."""
        ways = len(self.context.layout.cp_comm_type)
        kinds = enumerate(self.context.model.kinds)
        return tuple((kind, layer % ways, stays_in_bf16(self.context, layer)) for layer, kind in kinds)

    def _declare(self, kind: LayerKey) -> Declaration:
        if kind not in self._declared:
            self._declared[kind] = layer_unit(self.context_of(kind), kind[0], kind[1])
        return self._declared[kind]

    def _layers(self, chunk: Chunk) -> list[Run]:
        runs: list[Run] = []
        t = self.context.training
        leaving: tuple[bool, ...] = (False,) * len(chunk.layers)
        if offloads(t):
            leaving = offloaded_layers(t, len(chunk.layers))
        found = self._groups(chunk)
        banked = self.context.model.stream == "bank"
        found = self._banked(chunk, found) if banked else first_held(self.context, chunk, found)
        groups = [(*group, leaving[group[0] - chunk.layers[0]]) for group in found]
        for key, members in groupby(groups, key=lambda group: group[1:]):
            firsts = [group[0] for group in members]
            kinds, form, leaves = key
            params = tuple(param for kind in kinds for param in self._params(self._declare(kind)))
            unit, traced, graphed, scratch = self.unit((kinds, form))
            beside = self._beside(kinds, gathered(self.context, "", params, len(chunk.layers)))
            traced, paged = self._paged(traced)
            gone: tuple[Tensor, ...] = ()
            absence: Absence | None = None
            away: tuple[tuple[str, tuple[Tensor, ...]], ...] = ()
            moving: tuple[Tensor, ...] = ()
            if leaves:
                leave = offloaded(t, unit, traced)
                traced, gone, away, absence = leave.trace, leave.tensors, leave.groups, leave.absence
                ways = 2 if t.cpu_offloading_double_buffering else 1
                moving = tuple(
                    x._replace(name=f"{x.name} on its way ({i})") for i in range(ways) for x in leave.on_their_way
                )
            one = Run(unit, traced, len(firsts), firsts[0], params, graphed, scratch, beside, gone, paged)
            leaving_behind = (form == "checkpoint" or t.recomputes("moe")) and any(map(routed, kinds))
            runs.append(one._replace(away=away, moving=moving, absence=absence, leaves=leaving_behind))
        return runs

    def _groups(self, chunk: Chunk) -> list[tuple[int, tuple[LayerKey, ...], Form]]:
        """(first layer, kinds of the layers of one unit, what it is)."""
        t = self.context.training
        layers = chunk.layers
        if t.recomputes("mhc"):
            return self._in_groups(layers, t.mhc_recompute_layer_num or max(len(layers), 1), "group")
        if t.recompute_granularity != "full":
            return [(i, (self.kinds[i],), "layer") for i in layers]
        n = 1 if t.recompute_num_layers is None else t.recompute_num_layers
        if t.recompute_method == "block":
            return [(i, (self.kinds[i],), "checkpoint" if index < n else "layer") for index, i in enumerate(layers)]
        return self._in_groups(layers, max(n, 1), "checkpoint")

    def _banked(self, chunk: Chunk, groups: list[Group]) -> list[Group]:
        """The same with attention residuals: a stage keeps the bank that it receives, a checkpoint one that is new to its stage."""
        model, found, new = self.context.model, [], not chunk.embedding
        for first, kinds, form in groups:
            if new and form == "layer" and first == chunk.layers[0]:
                form = "received"
            elif new and form == "checkpoint" and model.rows_before(first):
                form = "banked"
            found.append((first, kinds, form))
            new = any(self.context.of(kind[0]).model.bank_joined for kind in kinds)
        return found

    def _beside(self, kinds: tuple[LayerKey, ...], beside: Beside) -> Beside:
        """What stands beside a unit, with the bank of attention residuals at its fullest."""
        if self.context.model.stream != "bank":
            return beside
        there, back = beside_layer(self.context.of(kinds[-1][0]))
        return (*beside[0], *there), (*beside[1], *back)

    def _in_groups(self, layers: Sequence[int], n: int, form: Form) -> list[tuple[int, tuple[LayerKey, ...], Form]]:
        """Units of n consecutive layers."""
        return [
            (layers[start], tuple(self.kinds[i] for i in layers[start : start + n]), form)
            for start in range(0, len(layers), n)
        ]

    def unit(self, key: UnitKey) -> TracedUnit:
        """Layers that form one unit: as declared and traced."""
        if key not in self._units:
            kinds, form = key
            declared = tuple(self._declare(kind) for kind in kinds)
            unit = grouped(declared) if form == "group" else joined(declared)
            if form == "held":
                unit = held(unit)
            if form in ("checkpoint", "banked", "held checkpoint"):
                unit = checkpointed(self.context, declared)
            if form in ("received", "banked"):
                rows = self.context.of(kinds[0][0]).model.bank_rows
                unit = keeping_bank(self.context, unit, rows, received=form == "received")
            self._units[key] = self._traced(unit)
        return self._units[key]

    def part(self, key: PartKey) -> Run:
        """A unit outside the decoder layers."""
        declared = self._declare_part(key)
        if key not in self._units:
            self._units[key] = TracedUnit(declared.unit, trace(declared.unit))
        unit, traced, *_ = self._units[key]
        params = self._params(declared)
        traced, paged = self._paged(traced)
        return Run(unit, traced, 1, -1, params, (), 0, gathered(self.context, f"{unit.name}.", params, 0), (), paged)

    def _declare_part(self, key: PartKey) -> Declaration:
        if key not in self._declared:
            c, (name, variant) = self.context, key
            if name == "towers":
                self._declared[key] = towers_unit(c)
            elif name == "embedding":
                self._declared[key] = embedding_unit(c, alone=variant)
            elif name == "final_norm":
                self._declared[key] = final_norm_unit(c)
            elif name == "mtp":
                self._declared[key] = mtp_unit(c, owns_embedding=variant)
            else:
                shared = c.model.share_embeddings_and_output_weights and not variant and name == "output"
                self._declared[key] = output_unit(c, owns_weight=not variant, shared=shared)
        return self._declared[key]

    def _paged(self, found: Trace) -> tuple[Trace, tuple[Tensor, ...]]:
        return stashed(self.context, found) if self.context.training.moe_paged_stash else (found, ())

    def _traced(self, unit: Unit) -> TracedUnit:
        training, eager = self.context.training, TracedUnit(unit, trace(unit))
        if not captures(training):
            return eager
        graphed = captured(training, unit)
        found = TracedUnit(*eager[:2], graphed, capture_scratch(training, eager.trace, graphed))
        if training.cuda_graph_warmup_steps:
            return found
        again = replayed(unit, graphed)
        return found._replace(unit=again, trace=trace(again))


def _beside_forward(run: Run, tensors: tuple[Tensor, ...]) -> Run:
    """A run with tensors beside its forward."""
    return run._replace(beside=((*run.beside[0], *tensors), run.beside[1]))


def _beside_backward(run: Run, tensors: tuple[Tensor, ...]) -> Run:
    """A run with tensors beside its backward."""
    return run._replace(beside=(run.beside[0], (*run.beside[1], *tensors)))


def holding(unit: Unit, name: str, tensors: tuple[Tensor, ...]) -> Unit | None:
    """A unit whose backward begins beside tensors that stay until an op is through; None where ops are run again before that."""
    places = [at for at, item in enumerate(unit.items) if item.name == name]
    if not places or not all(isinstance(item, Op) for item in unit.items[places[-1] :]):
        return None
    first = places[-1]
    held = (item._replace(backward=(*item.backward, *tensors)) for item in unit.items[first:] if isinstance(item, Op))
    return unit._replace(items=(*unit.items[:first], *held))


def inputs_of(c: Context, chunk: Chunk) -> tuple[Tensor, ...]:
    """Tokens, positions, labels and loss mask, the attention mask, and pixels; on all chunks what is added to attention scores."""
    biases = attention_biases(c)
    if not chunk.reads_inputs:
        return biases
    shape = (c.batch, c.seq)
    found = [c.new(f"batch.{name}", *shape, dtype="int64") for name in ("tokens", "position_ids", "labels")]
    if chunk.embedding and c.model.several_streams:
        # no stream: referenced until the model's forward returns
        found.append(c.stream("embedding.output", c.hidden))
    found += [c.new("batch.loss_mask", *shape, dtype="fp32"), *attention_mask(c)]
    found += [x for tower in c.model.towers if tower.given(c.training) for x in pixels(c, tower)]
    return (*found, *biases)


def without_mask(c: Context) -> Context | None:
    """The context of chunks that read no inputs, where their attention makes the mask that others are given; None where none does."""
    if c.te or not c.training.create_attention_mask_in_dataloader:
        return None
    return replace(c, training=replace(c.training, create_attention_mask_in_dataloader=False))


def keeping_layers(c: Context, chunk: Chunk) -> tuple[str, ...]:
    """The kinds of the layers of a chunk, of MTP's too, where it reads inputs; none where block recomputation has no checkpoint in it."""
    t = c.training
    block = t.recomputes_whole_layers() and not t.recomputes_layers()  # which has none around MTP
    if not chunk.reads_inputs or (block and not chunk.layers):
        return ()
    return (*(c.model.kinds[i] for i in chunk.layers), *chunk.mtp_kinds(c.model))


def first_held(c: Context, chunk: Chunk, groups: list[Group]) -> list[Group]:
    """The units of a chunk, the first one marked where what the chunk received may be kept by nothing in it.

    Norms and checkpoints keep that tensor themselves; a norm that casts it first (fp32_residual_connection) does not, nor a linear
    without a norm that quantizes it, nor a captured layer, which copies it into its static input.
    """
    t = c.training
    kept = c.residual_dtype == c.dtype and before(c) and (not captures(t) or t.cuda_graph_warmup_steps)
    if kept or chunk.embedding or not groups or groups[0][2] != "layer":
        return groups
    first, kinds, _ = groups[0]
    return [(first, kinds, "held"), *groups[1:]]


def held(unit: Unit) -> Unit:
    """A unit whose input stays until its backward is over.

    Source: Megatron-LM `megatron/core/pipeline_parallel/schedules.py` (input_tensors).
    """
    assert unit.entry is not None
    op = Op("input_tensors of the schedule", saves=(unit.entry,), calls=0, compiled=True)
    return unit._replace(items=(op, *unit.items))
