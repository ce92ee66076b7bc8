"""Gemma 4's layer without experts: norms around both halves op by op, and an input of its own from an embedding for all layers.

    hidden -> input_layernorm   -> self_attention -> post_self_attn_layernorm -> + hidden
           -> pre_mlp_layernorm -> mlp            -> post_mlp_layernorm       -> + hidden
           -> gate [h -> e] -> GELU -> * the layer's input [e] -> projection [e -> h] -> norm -> + hidden -> * scalar

The inputs of all layers [s, b, layers, e] are one tensor, which the first that reads it keeps: here the embedding's. Keys and values
that later layers take stay until the next forward makes others. Source: NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/gemma/modeling_gemma4.py` (Gemma4DenseTransformerLayer, Gemma4DenseSelfAttention, _compute_per_layer_inputs).

Gemma 4's experts beside a dense MLP: router, experts and MLP each read the residual stream through a norm of their own.

    hidden -> pre_mlp_layernorm           -> experts    -> post_moe_layernorm           -+
       +----> pre_shared_expert_layernorm -> dense MLP  -> post_shared_expert_layernorm -+-> post_ffn_layernorm -> + hidden -> * scalar
       +----> norm, scale -> router: probabilities of the experts

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/modeling_gemma4.py` (Gemma4TransformerLayer, Gemma4MoELayer,
Gemma4TopKRouter): Megatron-Core's modules between norms that PyTorch runs op by op.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import UnsupportedError
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..rules import PP, Violation, broken, broken_if
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, smallest
from .attention import self_attention
from .combine import combine
from .context import Context
from .dispatcher import dispatch
from .embedding import lookup
from .kind import RULED, Kind
from .linear import column_linear, gemm, linear_params, rows_of, weight_grad
from .mlp import mlp
from .module import Module, in_part, recomputed
from .moe import expert_params, filled, routed_experts, router_params
from .moe import kept as moe_kept
from .norm import bias_dropout_add, eager_norm, norm_params
from .router import router
from .sends import over_tp
from .shared_experts import shared_experts, shared_experts_params

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
    grads = (c.new(f"{table.name}.wgrad", *table.shape),) if not c.training.base_frozen else ()
    yield Op(name, (), (out,), backward=grads)
    return out


def gemma4_moe(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """The residual stream behind both."""
    t = c.training
    assert c.model.num_moe_experts is not None
    experts = Dim("num_moe_experts", c.model.num_moe_experts)
    yield from norm_params(c, "pre_mlp_layernorm.", c.hidden)
    yield from router_params(c, experts)
    yield Param("mlp.router.per_expert_scale", (experts,), matrix=False)
    yield Param("mlp.router.scale", (c.hidden,), matrix=False)
    weights = yield from expert_params(c, c.hidden)
    shared = yield from shared_experts_params(c)
    for name in ("mlp.post_moe_layernorm", "mlp.post_shared_expert_layernorm", "pre_shared_expert_layernorm"):
        yield from norm_params(c, f"{name}.", c.hidden)
    yield from norm_params(c, "post_ffn_layernorm.", c.hidden)

    tokens = yield from in_part("router_norm", eager_norm(c, "pre_mlp_layernorm", hidden))
    beside = yield from in_part("router_norm", eager_norm(c, "pre_shared_expert_layernorm", hidden))

    def body() -> Module[Tensor]:
        dense = recomputed(
            t.recomputes("shared_experts"), "mlp.shared_experts.checkpoint", shared_experts(c, beside, shared)
        )
        extra = yield from in_part("shared_experts", dense)
        probs = yield from in_part("router", _router(c, hidden, experts))
        routed = yield from in_part("dispatch", filled(c.filled, dispatch(c, tokens, probs, c.hidden)))
        done = yield from in_part("experts", filled(c.filled, routed_experts(c, routed, *weights)))
        out, _ = yield from in_part("combine", filled(c.filled, combine(c, routed, done, c.hidden)))
        out = yield from in_part("combine", eager_norm(c, "mlp.post_moe_layernorm", out))
        extra = yield from in_part("shared_experts", eager_norm(c, "mlp.post_shared_expert_layernorm", extra))
        total = c.stream("mlp.output with shared experts", c.hidden)
        yield Op("mlp.shared_experts.add", (out, extra), (total,), passes=(out, extra), part="shared_experts_add")
        return total

    out = yield from recomputed(t.recomputes("moe"), "mlp.checkpoint", body())
    normed = yield from in_part("moe_residual", eager_norm(c, "post_ffn_layernorm", out))
    return (yield from in_part("moe_residual", _added(c, normed, hidden)))


def _router(c: Context, hidden: Tensor, experts: Dim) -> Module[Tensor]:
    """Probabilities of the experts, normalized and each times the scale of its expert."""
    name = "mlp.router"
    normed = yield from eager_norm(c, f"{name}.norm", hidden, weighted=False)
    scaled, x = normed.like(f"{name}.scaled"), normed.like(f"{name}.input")
    yield Op(f"{name}.scale", (normed,), (scaled,), (normed,))
    yield Op(f"{name}.root_scale", (scaled,), (x,))
    probs = yield from router(c, x, experts)
    sums = tuple(c.new(f"{name}.{word} of probs", c.tokens, dtype="fp32") for word in ("sum", "clamped sum"))
    one, out = probs.like(f"{name}.probs of one"), probs.like(f"{name}.probs scaled")
    yield Op(f"{name}.normalize", (probs,), (one,), (probs, *sums), calls=3)
    yield Op(f"{name}.per_expert_scale", (one,), (out,), (one,))
    return out


def _added(c: Context, normed: Tensor, hidden: Tensor) -> Module[Tensor]:
    """The residual stream plus the normed output, times a number that is no parameter (layer_scalar)."""
    total, out = hidden.like("mlp.output plus hidden_states"), c.residual("layer_scalar.output")
    yield Op("post_ffn.add", (normed, hidden), (total,), passes=(normed, hidden))
    yield Op("layer_scalar", (total,), (out,), (c.new("layer_scalar", Dim("one", 1)),))
    return out


def dense_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What Gemma 4 without experts does not have (`src/megatron/bridge/models/gemma/gemma4_provider.py`, Gemma4DenseProvider)."""
    if training.te_spec:
        yield broken("gemma4-dense-is-local")
    if layout.pp > 1:
        yield broken("gemma4-dense-with-pp", {PP: layout.pp})
    if training.recomputes_whole_layers():
        yield broken("gemma4-dense-fully-recomputed")


def moe_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What the forward of Gemma 4's experts goes around (`src/megatron/bridge/models/gemma/gemma4_provider.py`,
    _validate_gemma4_moe_orchestration; `modeling_gemma4.py`)."""
    t = training
    yield from broken_if(
        (
            (t.moe_shared_expert_overlap, "gemma4-moe-with-shared-expert-overlap"),
            (t.overlap_moe_expert_parallel_comm, "gemma4-moe-with-a2a-overlap"),
            (t.recomputes("layernorm"), "gemma4-moe-layernorm-recomputed"),
        )
    )


GEMMA4 = (
    Kind(
        name="gemma4_dense",
        role="layer",
        declare=gemma4_dense,
        part="attn",
        residual="mlp_residual",
        owners=frozenset(("gemma4",)),
        rotary="chunk",
        heads=True,
        groups=True,
        dense=True,
        recomputes=frozenset(("core_attn",)),
        kept=kept,
        rules=(dense_rules,),
        ruled=RULED - {"weight shards"},
        own_norms=True,
        own_tables=True,
        setting="gemma4_dense",
    ),
    Kind(
        name="gemma4_moe",
        role="layer",
        declare=gemma4_moe,
        part="moe",
        residual="moe_residual",
        owners=frozenset(("moe",)),
        routed=True,
        recomputes=frozenset(("moe", "moe_act", "shared_experts")),
        kept=moe_kept,
        rules=(moe_rules,),
        ruled=RULED - {"local modules", "weight shards"},
        own_tables=True,
        setting="gemma4_moe",
    ),
)
