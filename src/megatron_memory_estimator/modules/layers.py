"""The table from a layer's kind to its modules, and the units that a model chunk is made of.

Delayed weight gradients: with all-to-all overlap they may run after the whole backward of their part of a layer.

TransformerEngine keeps each linear's input (gathered) and output gradient until then. Two parts of a layer have a
`backward_dw`: the experts (or the dense MLP), and everything before them with the shared experts.

Source: Megatron-LM `megatron/core/models/gpt/fine_grained_callables.py` (backward_dw), `transformer_layer.py`;
TransformerEngine `pytorch/module/_common.py` (WeightGradStore).

Towers in front of the language model, on its first stage: parameters in the order of their classes.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/` (the VL models; the tower is made where `pre_process` is true).

Multi-token prediction. Source: Megatron-LM `megatron/core/transformer/multi_token_prediction.py`.

Each depth: norms of the shifted embedding and of the hidden states, their concatenation through eh_proj, one transformer
layer of the last decoder layer's kind, a final norm. All depths are concatenated behind the main hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ..job.tower import Tower, Weight, counted
from ..tape.ops import EVERYTHING, Item, Op, Part, Recompute, Unit, renaming
from ..tape.tensor import Dim, Param, Tensor, uneven
from ..wording import all_of
from .adapters import MARK, adapter_params, whole_adapter_params
from .context import Context
from .embedding import TABLE, embedding, embedding_params, lookup
from .flash_next import last_mixer, mtp_input
from .gemma4 import per_layer_inputs
from .head import final_layernorm, loss, output_weight
from .hf_tower import images as images_of_hf
from .hyper_connection import (
    connected,
    connection_params,
    contracted,
    contraction_params,
    expanded,
    keeping_streams,
)
from .kind import Kind, Role
from .kinds import kinds_of
from .linear import cached_wgrad, column_linear, duplicated_linear, linear_params, weight_grad
from .module import GROUP, Module, T, changed, collected, holding, in_part, recomputed
from .norm import bias_dropout_add, in_compute_dtype, norm, norm_params
from .sends import over_tp
from .vision_tower import How, how, images, seen

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

RESIDUALS: dict[Role, tuple[str, str]] = {
    "mixer": ("self_attn_bda", "self_attention_hyper_connection"),
    "mlp": ("mlp_bda", "mlp_hyper_connection"),
}
"""Names of the addition to the residual stream behind a sub-layer, and of its hyper-connection."""


class Declaration:
    """What a unit declares: its parameters in registration order, and its ops as a unit.

    Raises LayoutError for a parameter that does not divide over the ranks that share it.
    """

    def __init__(self, name: str, entry: Tensor | None, module: Module[Tensor] | Module[Tensor | None]) -> None:
        self.params: list[Param] = []
        items: list[Item] = []
        exit_: Tensor | None = None
        while True:
            try:
                declared = next(module)
            except StopIteration as stop:
                exit_ = stop.value
                break
            if isinstance(declared, Param):
                for dim in declared.shape:
                    if dim.axes and dim.uneven:
                        raise uneven(dim, f" in {declared.name}")
                self.params.append(declared)
            else:
                items.append(declared)
        if exit_ is not None and not exit_.shape[1:]:
            exit_ = None  # a loss: nothing is handed on
        self.unit = Unit(name, tuple(items), entry, exit_)


def transformer_layer(c: Context, hidden: Tensor, kind: str, layer: int = 0) -> Module[Tensor]:
    """A layer `mixer+mlp`, or one sub-layer of a hybrid model."""
    c = c.of(kind)
    for row in kinds_of(kind):
        if row.role in ("layer", "nothing"):
            hidden = yield from _sublayer(row, layer, c, hidden)
            continue
        added, connection = RESIDUALS[row.role]
        if c.model.stream == "several":
            hidden = yield from connected(c, connection, hidden, partial(_sublayer, row, layer))
        else:
            out = yield from _sublayer(row, layer, c, hidden)
            hidden = yield from in_part(
                row.residual, bias_dropout_add(c, added, out, hidden, biased=row.biased and c.model.add_bias_linear)
            )
    if c.model.stream == "several":
        for row in kinds_of(kind):
            if row.role in RESIDUALS:
                yield from connection_params(c, RESIDUALS[row.role][1])
    return hidden


def _sublayer(row: Kind, layer: int, c: Context, hidden: Tensor) -> Module[Tensor]:
    return (yield from in_part(row.part, row.declare(c, hidden, layer)))


def layer_unit(c: Context, kind: str, layer: int = 0) -> Declaration:
    """One decoder layer; `layer` is its index in the pattern of context-parallel communication."""
    hidden = c.residual("hidden_states")
    module = transformer_layer(c, hidden, kind, layer)
    if not c.model.several_streams:  # an argument of the layer's forward to its end
        module = holding(module, hidden)
    declared = Declaration(kind, hidden, module)
    if c.training.recomputes("moe"):
        declared.unit = with_leaves(c, declared.unit)
    if c.training.delay_wgrad_compute:
        declared.unit = with_delayed_wgrads(declared.unit)
    return declared


EXPERTS = "mlp.checkpoint"
"""The checkpoint around experts."""


def with_leaves(c: Context, unit: Unit) -> Unit:
    """A layer whose recomputed experts leave their normed input and the gradient of that behind while the rest of it runs backward: the
    dispatcher refers to the router's graph, which ends in them (Megatron-LM `moe/token_dispatcher.py`, seen in the real classes)."""
    at = next((at for at, item in enumerate(unit.items) if item.name == EXPERTS), 0)
    left = tuple(c.stream(f"{EXPERTS}.{what} left behind", c.hidden) for what in ("input", "input's gradient"))
    before = (_beside(left[:1] if item.part == "router_norm" else left, item) for item in unit.items[:at])
    return unit._replace(items=(*before, *unit.items[at:]))


def checkpointed(c: Context, layers: tuple[Declaration, ...]) -> Unit:
    """Consecutive layers under one full-recompute checkpoint: only the input of the first is kept."""
    whole = joined(layers)
    stored: tuple[Tensor, ...] = ()
    if c.training.distribute_saved_activations and c.tp_many:
        shard = c.dim("seq*b*hidden_size", c.seq.local * c.batch.size * c.hidden.size, "tp")
        stored = (c.new("checkpoint input shard", shard, dtype=c.residual_dtype),)
    return whole._replace(items=(Recompute("checkpoint", whole.items, stored=stored, part="layers"),))


def joined(layers: tuple[Declaration, ...]) -> Unit:
    """Consecutive layers as one unit."""
    first = layers[0].unit
    if len(layers) == 1:
        return first
    items: list[Item] = []
    before = first.entry
    for index, layer in enumerate(layers):
        assert layer.unit.entry is not None and layer.unit.exit is not None and before is not None
        prefix = f"{index}."
        items.extend(map(renaming(prefix, {layer.unit.entry.name: before.name}), layer.unit.items))
        before = layer.unit.exit._replace(name=prefix + layer.unit.exit.name, storage=prefix + layer.unit.exit.name)
    return Unit(" ".join(layer.unit.name for layer in layers), tuple(items), first.entry, before)


def grouped(layers: tuple[Declaration, ...]) -> Unit:
    """Consecutive layers whose checkpoints of hyper-connections run again together, before the backward of the last op.

    What that op makes is the next group's input and stays (Megatron-LM `dev` `transformer_block.py`, mhc_recompute_layer_num).
    """
    unit = joined(layers)
    return unit._replace(items=ending(unit.items))


def ending(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """A group's items: the last one without its checkpoint, and every checkpoint of the group hooked to it."""
    *before, last = items
    ends = last.ops if isinstance(last, Recompute) and last.hook.endswith(GROUP) else (last,)
    return *(_hooked(item, ends[-1].name) for item in before), *ends


def _hooked(item: Item, to: str) -> Item:
    if isinstance(item, Recompute) and item.hook.endswith(GROUP):
        return item._replace(hook=to)
    return item


def towers_unit(c: Context) -> Declaration:
    """The towers in front of the embedding."""
    names = [tower.name for tower in counted(c.model.towers)]
    return Declaration(all_of(names) if names else "towers", None, towers(c))


def embedding_unit(c: Context, *, alone: bool) -> Declaration:
    """The embedding, first unit of the model. `alone`: no other stage has a copy of its table."""

    def module() -> Module[Tensor]:
        out = yield from embedding(c, alone=alone)
        if c.model.per_layer_embed_dim:
            yield from per_layer_inputs(c, out)
        return (yield from expanded(c, out)) if c.model.several_streams else out

    return Declaration("embedding", None, in_part("embedding", module()))


def final_norm_unit(c: Context) -> Declaration:
    """The norm after the last decoder layer."""
    hidden = c.residual("hidden_states")

    def module() -> Module[Tensor]:
        return (yield from _final_norm(c, hidden))

    return Declaration("final_layernorm", hidden, in_part("final_norm", module()))


def _final_norm(c: Context, hidden: Tensor) -> Module[Tensor]:
    """The norm after the last decoder layer, of the contracted streams where there are several."""
    if c.model.stream == "fp32":
        hidden = yield from in_compute_dtype(c, "final_layernorm", hidden)
    if c.model.stream == "gated":
        return (yield from last_mixer(c, "decoder.hyper_connection_mixer", hidden))
    if c.model.stream != "several":
        return (yield from final_layernorm(c, hidden))
    yield from contraction_params(c, "decoder.")
    return (yield from final_layernorm(c, (yield from contracted(c, "", hidden))))


def mtp_unit(c: Context, *, owns_embedding: bool, kinds: tuple[str, ...] | None = None) -> Declaration:
    """All MTP depths of the stage that holds them; a copy of the embedding table where it is not the first stage.

    With hyper-connections it reads the streams, and the norm after the last decoder layer belongs to it. `kinds` are those of the
    layers of each depth, by default the model's.
    """
    if kinds is None:
        kinds = c.model.mtp_kinds_behind if owns_embedding else c.model.mtp_kinds
    mhc = c.model.several_streams
    hidden = c.residual("hidden_states") if mhc else c.stream("hidden_states", c.hidden)
    kept = keeping_streams(c)

    def module() -> Module[Tensor]:
        if owns_embedding:
            table = yield from embedding_params(c, alone=False)
        else:
            table = Param(TABLE, (c.dim("vocab", c.model.padded_vocab(c.layout.tp), "tp"), c.hidden))
        # the table's gradient of a later depth waits for that of this one; with a tied output layer that one waits anyway
        looked_up = (c.new("embedding table's gradient that waits", *table.shape),)
        parts = [(yield from in_part("final_norm", _final_norm(c, hidden)))] if mhc else [hidden]
        carried = hidden
        for depth in range(c.model.mtp):
            prefix = f"mtp.layers.{depth}"

            def layers(inner: Context, x: Tensor, prefix: str = prefix) -> Module[Tensor]:
                # those of a hybrid model are a stack, which obeys `block` itself (`models/hybrid/hybrid_block.py`)
                own = (
                    inner.model.hybrid
                    and inner.training.recomputes_whole_layers()
                    and not inner.training.recomputes_layers()
                )
                first = inner.training.recomputed_together() if own else 0
                for index, kind in enumerate(kinds):
                    name = f"{prefix}.layers.{index}"
                    one = _prefixed(transformer_layer(inner, x, kind), f"{name}.", x)
                    x = yield from recomputed(index < first, f"{name}.checkpoint", one)
                return x

            depth_module = MTP_OF.get(c.model.stream, mtp_depth)(kept, carried, table, layers, prefix)
            if c.model.mtp_use_repeated_layer and c.model.mtp > 1:
                depth_module = _used_again(depth_module, depth == 0, depth == c.model.mtp - 1)
            if c.model.mtp_use_repeated_layer and depth:
                depth_module = _without_params(depth_module)
            if depth < c.model.mtp - 1 and not (c.model.share_embeddings_and_output_weights or c.training.base_frozen):
                depth_module = changed(depth_module, partial(_beside, looked_up))
            out, carried = yield from depth_module
            parts.append(out)
        return (yield from concatenated(c, "mtp.output", tuple(parts)))

    declared = Declaration("mtp", hidden, in_part("mtp", module()))
    if c.training.delay_wgrad_compute:
        declared.unit = with_delayed_wgrads(declared.unit)
    return declared


def _prefixed(module: Module[Tensor], prefix: str, entry: Tensor) -> Module[Tensor]:
    rename = renaming(prefix, {entry.name: entry.name, entry.storage: entry.storage})
    out = yield from changed(module, rename, lambda param: param._replace(name=prefix + param.name))
    return out._replace(name=prefix + out.name, storage=prefix + out.storage)


def _used_again(module: Module[T], first: bool, last: bool) -> Module[T]:
    """A layer's module at one of its several uses. Autograd adds up all uses of a weight before it hands the sum on
    (`torch/csrc/autograd/input_buffer.cpp`): from its gradient at the last use on, whose backward is the first, to that at the first use
    it waits."""
    items, result = yield from collected(module)
    each = [tuple(_wgrads(item)) for item in items]
    for at, item in enumerate(items):
        done, to_come = each[at + 1 :], each[: at + 1]
        waits = [*([] if first else done), *([] if last else to_come)]
        yield _beside(tuple(t for one in waits for t in one), item)
    return result


def _wgrads(item: Item) -> Iterator[Tensor]:
    """The weight gradients that the backward of an item makes as tensors of their own, as what waits."""
    if isinstance(item, Recompute):
        yield from (t for one in item.ops for t in _wgrads(one))
        return
    for t in item.backward:
        # whose lookups wait whether it is one layer or not
        if t.name.endswith(".wgrad") and not t.name.startswith("embedding."):
            yield t.like(f"{t.name} that waits")


def _without_params(module: Module[T]) -> Module[T]:
    return changed(module, param=lambda _: None)


def _beside(waits: tuple[Tensor, ...], item: Item) -> Item:
    """The op with tensors beside its backward, and beside its recomputation."""
    if isinstance(item, Recompute):
        inside = tuple(_beside(waits, one) for one in item.ops)
        return item._replace(ops=inside, beside=(*item.beside, *waits))
    return item._replace(backward=(*item.backward, *waits)) if isinstance(item, Op) else item


def output_unit(c: Context, *, owns_weight: bool, shared: bool) -> Declaration:
    """Output layer and loss; with MTP one loss per depth first, then the main loss."""
    depths = c.model.mtp
    if depths:
        hidden = c.new("hidden_states", Dim("1+mtp_num_layers", 1 + depths), *c.stream("", c.hidden).shape)
    else:
        hidden = c.stream("hidden_states", c.hidden)

    def module() -> Module[Tensor]:
        weight = yield from output_weight(c, owned=owns_weight, shared=shared)
        if not depths:
            return (yield from loss(c, "output", hidden, weight))
        parts = tuple(hidden.view(f"hidden_states.{i}", c.stream("", c.hidden).shape) for i in range(1 + depths))
        yield Op("output.split", (hidden,), parts)
        losses = []
        # in the backward the main loss comes first: its weight gradient waits for those of the depths, which are added to it
        waits = tuple(t.like(f"{t.name} that waits") for t in weight_grad(c, weight))
        # cached dummies are referred to elsewhere: their sum, from the second use on, is a tensor of its own
        summed = (c.new(f"{weight.name}'s dummies, summed", *weight.shape),) if cached_wgrad(c, weight) else waits
        for i in range(1, 1 + depths):
            depth = loss(c, f"mtp.{i - 1}.output", parts[i], weight)
            losses.append((yield from changed(depth, partial(_beside, waits if i == depths else summed))))
        losses.append((yield from loss(c, "output", parts[0], weight)))
        total = c.new("output.total loss", Dim("one", 1), dtype="fp32")
        yield Op("output.add_losses", tuple(losses), (total,), passes=tuple(losses))
        return total

    return Declaration("output", hidden, in_part("loss", module()))


LATE: dict[Part, frozenset[Part]] = {
    "mlp_wgrads": frozenset(("mlp",)),
    "experts_wgrads": frozenset(("expert_fc1", "experts")),
}
"""Parts whose weight gradients wait together, beside those of the attention node: all others."""


def with_delayed_wgrads(unit: Unit) -> Unit:
    """The unit with one more event at the end of the backward of each part: its weight gradients."""
    items = list(unit.items)
    others = EVERYTHING.difference(*LATE.values())
    late: list[tuple[str, Part, frozenset[Part]]] = [("mlp.backward_dw", part, parts) for part, parts in LATE.items()]
    for name, part, parts in (*late, ("attn.backward_dw", "attn_wgrads", others)):
        needed = tuple(t for item in items for t in _needed(item, parts))
        if needed:
            first = next(i for i, item in enumerate(items) if any(_needed(item, parts)))
            items.insert(first, Op(name, wgrad=_distinct(needed), part=part))
    return unit._replace(items=tuple(items))


def _needed(item: Item, parts: frozenset[Part]) -> Iterator[Tensor]:
    if isinstance(item, Op):
        if item.part in parts:
            yield from item.wgrad
    else:
        for inner in item.ops:
            yield from _needed(inner, parts)


def _distinct(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple({t.name: t for t in tensors}.values())


PREFIX, HEARD = "vision_model", "audio_model"


MATRIX = 2
"""Dimensions of a matrix."""


def tower_params(c: Context, tower: Tower) -> Module[None]:
    """Every parameter of a tower, and of the adapters beside its linears."""
    sizes, h = tower.vit or tower.hf, how(c.training, tower)
    own = _cached(_own_params, tower, c.layout.tp, h.layers, h.projection)
    if not h.adapters:
        yield from own
        return
    v = seen(c, sizes, tower.given(c.training)) if sizes else c
    put = whole_adapter_params if tower.hf else adapter_params
    for param in own:
        yield param
        if param.name.endswith(".weight") and len(param.shape) == MATRIX:
            yield from put(v, param.name.removesuffix(".weight"), param)


@lru_cache(maxsize=128)
def _own_params(tower: Tower, tp: int, layers: bool, projection: bool) -> tuple[Param, ...]:
    """The parameters of a tower on one of so many ranks; `layers` and `projection`: whether they are frozen."""
    prefix = HEARD if tower.hears else PREFIX
    found: list[Param] = []
    for block in tower.blocks:
        for copy in range(block.copies):
            where = f"{prefix}.{block.name}" if block.copies == 1 else f"{prefix}.{block.name}.{copy}"
            frozen = projection if block.projection else layers
            found += [_param(tp, f"{where}.{weight.name}", weight, frozen=frozen) for weight in block.weights]
    return tuple(found)


def _param(tp: int, name: str, weight: Weight, *, frozen: bool) -> Param:
    dims = tuple(
        Dim(f"{weight.name} {'rows' if at == 0 else 'columns'}", size, ("tp",), tp)
        if at == weight.split
        else Dim(name, size)
        for at, size in enumerate(weight.shape)
    )
    return Param(name, dims, "replicated" if weight.split is None else "tp", frozen=frozen)


def _cached(made: _lru_cache_wrapper[T], *given: Any) -> T:
    """What a function makes of its arguments; made anew where they are arrays of layouts, which are no keys."""
    try:
        return made(*given)
    except TypeError:
        found: T = made.__wrapped__(*given)
        return found


def towers(c: Context) -> Module[Tensor | None]:
    """The towers of a model that are counted; without images or sound in a microbatch they compute nothing."""
    for tower in c.model.towers:
        yield from tower_params(c, tower)
    computed = [tower for tower in c.model.towers if tower.given(c.training)]
    for tower in computed:
        sizes = tower.vit or tower.hf
        assert sizes is not None
        yield from _cached(_computed, tower, seen(c, sizes, tower.given(c.training)), how(c.training, tower))
    if not computed:
        yield Op("without images", part="towers", calls=0)
    return None


@lru_cache(maxsize=128)
def _computed(tower: Tower, v: Context, h: How) -> tuple[Item | Param, ...]:
    """What a tower computes of images, or of sound, of all runs that train it alike."""
    if tower.vit:
        module = images(v, tower.vit, h)
    else:
        assert tower.hf is not None
        module = images_of_hf(v, tower.hf, h)
    rename = renaming(f"{HEARD if tower.hears else PREFIX}.", {})
    return tuple(changed(changed(module, rename), _of_towers))


def _of_towers(item: Item) -> Item:
    """Nothing inside a tower is a part of a decoder layer: what chooses by parts passes over it."""
    if isinstance(item, Recompute):
        return item._replace(ops=tuple(map(_of_towers, item.ops)), part="towers")
    return item._replace(part="towers")


def with_frozen(c: Context, params: Iterable[Param]) -> tuple[Param, ...]:
    """Parameters as they are trained: beside adapters these alone are, and of a frozen language model its towers."""
    if not c.training.base_frozen:
        return tuple(params)
    if c.training.peft != "none":
        return tuple(p if MARK in p.name else p._replace(frozen=True, gemm="") for p in params)
    of_towers = (f"{PREFIX}.", f"{HEARD}.")
    return tuple(p if p.name.startswith(of_towers) else p._replace(frozen=True, gemm="") for p in params)


Layer = Callable[[Context, Tensor], Module[Tensor]]


def mtp_depth(c: Context, hidden: Tensor, table: Param, layer: Layer, prefix: str) -> Module[tuple[Tensor, Tensor]]:
    """Hidden states of one depth, from those of the depth before; and what the next depth reads, which are the same."""
    m = c.model
    both = Dim("2*hidden_size", 2 * m.hidden_size)
    eh_out = c.dim("hidden_size", m.hidden_size, "tp")
    yield from norm_params(c, f"{prefix}.enorm.", c.hidden)
    yield from norm_params(c, f"{prefix}.hnorm.", c.hidden)
    eh_proj = yield from linear_params(c, f"{prefix}.eh_proj", eh_out, both, "tp", False)
    embedded = yield from lookup(c, f"{prefix}.embedding", table, c.stream(f"{prefix}.embedding.output", c.hidden))

    def body() -> Module[Tensor]:
        e = yield from norm(c, f"{prefix}.enorm", embedded)
        h = yield from norm(c, f"{prefix}.hnorm", hidden)
        joined = c.stream(f"{prefix}.joined", both)
        yield Op(f"{prefix}.concatenate", (e, h), (joined,))
        projected = yield from column_linear(c, f"{prefix}.eh_proj", joined, eh_proj)
        x = projected
        if c.tp_many:
            full = c.region(f"{prefix}.eh_proj gathered", c.hidden)
            yield Op(f"{prefix}.eh_proj.gather", (projected,), (full,), sends=over_tp(c, "all_gather", full))
            # scattered again over the sequence; the scatter is a view that pins the gathered tensor
            x = full.view(f"{prefix}.layer input", c.residual("").shape)
            back = over_tp(c, "all_gather", full) if c.sp_many else ()
            yield Op(f"{prefix}.eh_proj.scatter", (full,), (x,), returns=back)
        out = yield from layer(c, x)
        yield from norm_params(c, f"{prefix}.final_layernorm.", c.hidden)
        return (yield from norm(c, f"{prefix}.final_layernorm", out))

    normed = yield from recomputed(c.training.recomputes_layers(), f"{prefix}.checkpoint", body())
    return normed, normed


def mtp_depth_of_streams(
    c: Context, streams: Tensor, table: Param, layer: Layer, prefix: str
) -> Module[tuple[Tensor, Tensor]]:
    """The same with hyper-connections: the embedding is added to every stream; hidden states of the contracted streams, and the streams.

    Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/multi_token_prediction.py` (_postprocess).
    """
    yield from contraction_params(c, f"{prefix}.")
    yield from norm_params(c, f"{prefix}.enorm.", c.hidden)
    yield from norm_params(c, f"{prefix}.hnorm.", c.hidden)
    e_proj = yield from linear_params(c, f"{prefix}.e_proj", c.hidden, c.hidden, "replicated", False)
    h_proj = yield from linear_params(c, f"{prefix}.h_proj", c.hidden, c.hidden, "replicated", False)
    embedded = yield from lookup(c, f"{prefix}.embedding", table, c.stream(f"{prefix}.embedding.output", c.hidden))

    def body() -> Module[Tensor]:
        e = yield from norm(c, f"{prefix}.enorm", embedded)
        h = yield from norm(c, f"{prefix}.hnorm", streams)
        one = yield from duplicated_linear(c, f"{prefix}.e_proj", e, e_proj)
        every = yield from duplicated_linear(c, f"{prefix}.h_proj", h, h_proj)
        x = c.residual(f"{prefix}.layer input")
        yield Op(f"{prefix}.add_to_streams", (one, every), (x,), passes=(every,))
        return (yield from layer(c, x))

    out = yield from recomputed(c.training.recomputes_layers(), f"{prefix}.checkpoint", body())
    single = yield from contracted(c, f"{prefix}.", out)
    yield from norm_params(c, f"{prefix}.final_layernorm.", c.hidden)
    return (yield from norm(c, f"{prefix}.final_layernorm", single)), out


def mtp_depth_of_gates(
    c: Context, streams: Tensor, table: Param, layer: Layer, prefix: str
) -> Module[tuple[Tensor, Tensor]]:
    """The same with streams that gates mix."""
    embedded = yield from lookup(c, f"{prefix}.embedding", table, c.stream(f"{prefix}.embedding.output", c.hidden))

    def body() -> Module[Tensor]:
        return (yield from layer(c, (yield from mtp_input(c, prefix, embedded, streams))))

    out = yield from recomputed(c.training.recomputes_layers(), f"{prefix}.checkpoint", body())
    return (yield from last_mixer(c, f"{prefix}.hyper_connection_mixer", out)), out


MTP_OF = {"several": mtp_depth_of_streams, "gated": mtp_depth_of_gates}
"""A depth of MTP by the residual stream, where it is no single one."""


def concatenated(c: Context, name: str, parts: tuple[Tensor, ...]) -> Module[Tensor]:
    """All depths behind the main hidden states, along the sequence."""
    depths = Dim("1+mtp_num_layers", len(parts))
    out = c.new(name, depths, *parts[0].shape)
    yield Op(f"{name}.concatenate", parts, (out,), passes=parts)  # torch.cat's backward hands out views of one gradient
    return out
