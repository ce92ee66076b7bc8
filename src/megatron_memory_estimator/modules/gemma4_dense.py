"""Gemma 4's layer without experts: norms around both halves op by op, and an input of its own from an embedding for all layers.

    hidden -> input_layernorm   -> self_attention -> post_self_attn_layernorm -> + hidden
           -> pre_mlp_layernorm -> mlp            -> post_mlp_layernorm       -> + hidden
           -> gate [h -> e] -> GELU -> * the layer's input [e] -> projection [e -> h] -> norm -> + hidden -> * scalar

The inputs of all layers [s, b, layers, e] are one tensor, which the first that reads it keeps: here the embedding's. Keys and values
that later layers take stay until the next forward makes others. Source: NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/gemma/modeling_gemma4.py` (Gemma4DenseTransformerLayer, Gemma4DenseSelfAttention, _compute_per_layer_inputs).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, smallest
from .attention import self_attention
from .context import Context
from .embedding import lookup
from .linear import column_linear, gemm, linear_params, rows_of, weight_grad
from .mlp import mlp
from .module import Module, in_part
from .norm import bias_dropout_add, eager_norm, norm_params
from .sends import over_tp

NAME = "per_layer"


def kept(c: Context, layers: int) -> Iterator[tuple[Tensor, str]]:
    """Keys and values that layers hold for later ones, of the last microbatch; there is one stage."""
    for index, kind in enumerate(c.model.kinds):
        m = c.of(kind).model
        if m.kv_stored:
            groups = Dim("num_query_groups", m.groups, ("tp",), smallest(c.layout.tp, m.groups))
            for name in ("key", "value"):
                held = c.region(f"layer {index} {name} for later layers", groups, Dim("kv_channels", m.head_dim))
                yield held, "gemma/modeling_gemma4.py: _stored_kv"


def gemma4_dense(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The residual stream behind the layer."""
    if c.training.recomputes("layernorm") or c.training.recomputes("mlp"):
        raise UnsupportedError("recompute_modules layernorm and mlp are not modelled for Gemma 4 without experts")
    yield from norm_params(c, "input_layernorm.", c.hidden)
    normed = yield from in_part("attn_norm", eager_norm(c, "input_layernorm", hidden))
    out = yield from in_part("attn", self_attention(c, hidden, layer, normed=normed))
    out = yield from in_part("attn_residual", eager_norm(c, "post_self_attn_layernorm", out))
    hidden = yield from in_part("attn_residual", bias_dropout_add(c, "self_attn_bda", out, hidden))
    yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    normed = yield from in_part("mlp_norm", eager_norm(c, "pre_mlp_layernorm", hidden))
    out = yield from in_part("mlp", mlp(c, hidden, layer, normed=normed))
    yield from norm_params(c, "post_self_attn_layernorm.", c.hidden)
    yield from norm_params(c, "post_mlp_layernorm.", c.hidden)
    out = yield from in_part("mlp_residual", eager_norm(c, "post_mlp_layernorm", out))
    hidden = yield from in_part("mlp_residual", bias_dropout_add(c, "mlp_bda", out, hidden))
    if c.model.per_layer_embed_dim:
        hidden = yield from in_part("mlp_residual", _own_input(c, hidden, c.model.per_layer_embed_dim))
    scaled = c.residual("layer_scalar.output")
    yield Op("layer_scalar", (hidden,), (scaled,), (c.new("layer_scalar", Dim("one", 1)),), part="mlp_residual")
    return scaled


def _own_input(c: Context, hidden: Tensor, size: int) -> Module[Tensor]:
    """The residual stream with the layer's own input, whose gradient belongs to the tensor of all layers."""
    width = Dim("per_layer_embed_dim", size)
    gate = Param(f"{NAME}_input_gate.weight", (width, c.hidden))
    back = Param(f"{NAME}_projection.weight", (c.hidden, width))
    yield gate
    yield back
    yield from norm_params(c, f"post_{NAME}_input_norm.", c.hidden)
    low = yield from _linear(c, f"{NAME}_input_gate", hidden, gate)
    active, mixed = low.like(f"{NAME}_input_gate.activated"), low.like(f"{NAME}_input_gate.product")
    yield Op(f"{NAME}_input_gate.gelu", (low,), (active,), (low,))
    inputs = low.like(f"{NAME}_inputs.grad of a layer")
    yield Op(f"{NAME}_input_gate.times_input", (active,), (mixed,), (active,), backward=(inputs,))
    out = yield from _linear(c, f"{NAME}_projection", mixed, back)
    out = yield from eager_norm(c, f"post_{NAME}_input_norm", out)
    return (yield from bias_dropout_add(c, f"{NAME}_add", out, hidden))


def _linear(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """A linear of PyTorch: every rank has all of it."""
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(name, (x,), (out,), (x,), backward=weight_grad(c, weight), work=(gemm(c, weight, rows_of(out)),))
    return out


def per_layer_inputs(c: Context, hidden: Tensor) -> Module[None]:
    """Every layer's own input: a row of a table, plus a normed projection of the embedding."""
    m = c.model
    assert m.per_layer_embed_dim is not None and m.per_layer_embed_vocab_size is not None
    layers, size = Dim("num_layers", m.num_layers), Dim("per_layer_embed_dim", m.per_layer_embed_dim)
    both = Dim("num_layers*per_layer_embed_dim", layers.size * size.size)
    rows = c.dim("per_layer_embed_vocab_size", m.per_layer_embed_vocab_size, "tp")
    table = Param(f"{NAME}_embedding.weight", (rows, both), "tp")
    yield table
    sharded = c.dim(both.name, both.size, "tp")
    weight = yield from linear_params(c, f"{NAME}_model_proj", sharded, c.hidden, "tp", False)
    yield from norm_params(c, f"{NAME}_proj_norm.", size)
    tokens = yield from _looked_up(c, table, both)
    part = yield from column_linear(c, f"{NAME}_model_proj", hidden, weight)
    whole = c.stream(f"{NAME}_model_proj.output gathered", layers, size)
    gathered = (c.region(f"{NAME}_model_proj.output of all ranks", both),) if c.tp_many else ()
    yield Op(
        f"{NAME}_model_proj.gather", (part,), (whole,), forward=gathered, sends=over_tp(c, "all_gather", *gathered),
        returns=over_tp(c, "reduce_scatter", *gathered),
    )  # fmt: skip
    normed = yield from eager_norm(c, f"{NAME}_proj_norm", whole)
    found = whole.like(f"{NAME}_inputs")
    yield Op(f"{NAME}_inputs", (normed, tokens), (found,), (found,), calls=2)


def _looked_up(c: Context, table: Param, width: Dim) -> Module[Tensor]:
    """Rows of the layers' table; a rank without others reads the ids that the embedding keeps."""
    name = f"{NAME}_embedding"
    out = c.stream(f"{name}.output", width)
    if c.tp_many:
        return (yield from lookup(c, name, table, out))
    grads = (c.new(f"{table.name}.wgrad", *table.shape),) if c.training.peft == "none" else ()
    yield Op(name, (), (out,), backward=grads)
    return out
