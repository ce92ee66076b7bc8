"""Softmax attention with separate query groups: MHA, GQA and MQA.

Source: Megatron-LM `megatron/core/transformer/attention.py` (SelfAttention); TransformerEngine `attention/rope.py`.

    hidden [s, b, h] -> linear_qkv -> q [s, b, n, d], k, v [s, b, m, d] -> norm -> RoPE -> core attention -> linear_proj

Where tp exceeds the query groups, the weights are still sharded like any column-parallel matrix and the activations
are gathered, so that each rank works on one group.

Norms on query and key: per head, over the whole projection, over a rank's part of it with sums over all ranks, or over the whole that
is gathered from all ranks.

Sources: Megatron-LM `megatron/core/transformer/attention.py`; NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/olmoe/olmoe_provider.py`, `minimax_m2/minimax_m2_provider.py`; THUDM/slime
`slime_plugins/models/minimax_m2.py`.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, chosen, smallest
from .context import Context
from .context_parallel import NAME as CORE
from .core_attention import core_attention
from .linear import column_linear, keeps_original, linear_params, row_linear
from .module import Module, holding, in_part, recomputed
from .norm import (
    before,
    behind,
    dropped_norm,
    eager_norm,
    norm,
    norm_params,
    of_torch,
    separate_norm,
    statistics,
    value_norm,
)
from .sends import over_tp


def self_attention(
    c: Context, hidden: Tensor, layer: int = 0, *, normed: Tensor | None = None, scaled_key: bool = False
) -> Module[Tensor]:
    """Output on the residual stream; includes the input norm, which TransformerEngine fuses into linear_qkv, unless the input is
    `normed` already. `scaled_key`: keys are multiplied by a number (Falcon-H1)."""
    m = c.model
    name = "self_attention"
    heads = c.dim("num_attention_heads", m.num_attention_heads, "tp")
    groups = Dim("num_query_groups", m.groups, ("tp",), smallest(c.layout.tp, m.groups))
    d = Dim("kv_channels", m.head_dim)
    dv = Dim("value_channels", m.value_dim) if m.value_channels else d
    width = c.dim(f"heads*{dv.name}", m.num_attention_heads * m.value_dim, "tp")
    qkv_dim = c.dim("qkv", m.qkv_rows, "tp")

    own_norm = normed is None and before(c)
    if own_norm and not c.te:
        yield from norm_params(c, "input_layernorm.", c.hidden)
    yield from sink_params(c, heads)
    proj = yield from linear_params(c, f"{name}.linear_proj", c.hidden, width, "tp", m.add_bias_linear)
    if behind(c):
        yield from norm_params(c, f"{name}.linear_proj.post_layernorm.", c.hidden)
    if own_norm and c.te:
        yield from norm_params(c, f"{name}.linear_qkv.layer_norm_", c.hidden)
    bias = m.add_bias_linear or m.add_qkv_bias
    weight = yield from linear_params(c, f"{name}.linear_qkv", qkv_dim, c.hidden, "tp", bias)
    if m.qk_layernorm:
        yield from query_norm_params(c, name, heads, groups, d)

    if normed is None and not own_norm:
        normed = hidden
    elif normed is None:  # TransformerEngine fuses the norm into linear_qkv
        if c.te:
            normed = yield from in_part("qkv_linear", norm(c, "input_layernorm", hidden))
        else:
            own = separate_norm(c, "input_layernorm", hidden, f"{name}.linear_proj")
            normed = yield from in_part("attn_norm", own)
    qkv = yield from in_part("qkv_linear", column_linear(c, f"{name}.linear_qkv", normed, weight, normed=own_norm))
    if c.group_is_shared:
        whole = c.region(f"{name}.qkv gathered", Dim(qkv_dim.name, qkv_dim.size))
        ranks = (whole.like(f"{name}.qkv rank by rank"),)  # joined along the last dim, and split along it
        yield Op(
            f"{name}.all_gather_qkv", (qkv,), (whole,), forward=ranks, backward=ranks,
            sends=over_tp(c, "all_gather", whole), returns=over_tp(c, "reduce_scatter", whole),
        )  # fmt: skip
        qkv = whole
    # `hybrid_model.py` makes no rotary embedding with multi_latent_attention, whose layers have their own
    rope = m.position_embedding_type not in ("none", "learned_absolute") and not (m.hybrid and m.multi_latent_attention)
    normed_heads = m.qk_layernorm or m.qk_l2_norm
    # untouched MHA stays one packed tensor, which the kernels recognise; nothing is copied
    packed = (
        m.value_dim == m.head_dim
        and not rope
        and not normed_heads
        and not m.value_norm
        and m.groups == m.num_attention_heads
        and not m.attention_output_gate
    )
    te_core = c.te and m.core_attention == "transformer_engine"
    q = qkv.view(f"{name}.q", (c.seq, c.batch, heads, d))
    k = qkv.view(f"{name}.k", (c.seq, c.batch, groups, d))
    source = qkv.view(f"{name}.v", (c.seq, c.batch, groups, dv))
    views: tuple[Tensor, ...] = (q, k, source)
    gate: Tensor | None = None
    if m.attention_output_gate:
        gate = qkv.view(f"{name}.gate", (c.seq, c.batch, heads, d))
        views = (*views, gate)
    yield Op(f"{name}.split_qkv", (qkv,), views)
    if scaled_key:
        view, k = k, k.like(f"{name}.k scaled")
        yield Op(f"{name}.scale_key", (view,), (k,))
    if normed_heads:
        q = yield from query_norm(c, f"{name}.q_layernorm", q)
        k = yield from query_norm(c, f"{name}.k_layernorm", k)
    joined = (
        m.groups < m.num_attention_heads
        and not normed_heads
        and (rope or c.several_groups or (not te_core and c.several_sequences))
    )
    # one group's heads are a view, until the batched GEMM takes several sequences
    late = not (rope or c.several_groups)
    if joined and not late:
        q, copied = yield from _joined(c, q, rope=rope)
    # linear_qkv's output in parts is a variable since Megatron-Core 0.15 (qkv_output); the value shows it whole in any
    parts = (copied if joined and not late else q, k) if c.training.mcore >= (0, 15) else ()
    held: tuple[Tensor, ...] = (qkv, *parts)
    if rope:
        q, k = yield from rotary(c, name, q, k)
    held = (*held, q, k)

    if m.value_norm:
        source = yield from (dropped_norm if m.kv_shared else value_norm)(c, f"{name}.v_norm", source)

    def core() -> Module[Tensor]:
        query, key, value = q, k, source
        if joined and late:
            query, _ = yield from _joined(c, query, rope=False)
        if te_core and not (rope or packed or normed_heads):
            query, key = yield from _contiguous(q, k)
        # Megatron-Core's own hands the strided view to the batched GEMM, except where key and value are repeated anyway.
        if te_core and not packed and not m.value_norm:
            value = value.like(f"{name}.v contiguous")
            yield Op(f"{CORE}.contiguous_v", (source,), (value,), passes=(source,))
        return (yield from core_attention(c, query, key, value, heads, layer))

    kept = recomputed(c.training.recomputes("core_attn"), CORE + ".checkpoint", core())
    context = yield from in_part("core_attn", kept)
    if gate is not None:
        context = yield from _output_gate(c, name, context, gate)
    shares = keeps_original(c) and gate is None
    last = row_linear(c, f"{name}.linear_proj", context, proj, original=shares, normed=behind(c))
    # what linear_qkv made is a variable of the forward to its end, and the normed input one of the layer's
    return (yield from in_part("attn_proj", holding(last, *held, normed if own_norm and not c.te else None)))


def _joined(c: Context, q: Tensor, *, rope: bool) -> Module[tuple[Tensor, Tensor]]:
    """The heads of several query groups in a row, which are no view of the packed tensor: what is read on, and the copy, a variable
    of the forward to its end. One group's heads are a view: RoPE reads that, and the copy takes no bytes; elsewhere they are copied
    for the kernel anyway."""
    copied = q.like(f"{q.name} of all groups")
    if not rope:
        yield Op(f"{q.name}.join_groups", (q,), (copied,), passes=(q,))
        return copied, copied
    copied = copied._replace(nbytes=copied.nbytes * chosen(c.model.groups > c.layout.tp, 1, 0))
    yield Op(f"{q.name}.join_groups", (q,), (copied,), stops=(q,))
    return q, copied


def rotary(c: Context, name: str, q: Tensor, k: Tensor) -> Module[tuple[Tensor, Tensor]]:
    """Rotated query and key. Fused RoPE keeps only its (persistent) table; unfused RoPE keeps bf16 cos and sin of each, and has the
    products with both and the turned halves at once (Megatron-LM `rope_utils.py`, _apply_rotary_pos_emb_bshd)."""
    rotated = (q.like(f"{name}.q rotated"), k.like(f"{name}.k rotated"))
    if c.training.apply_rope_fusion:
        yield Op(f"{name}.rotary", (q, k), rotated)
        return rotated
    rot = Dim("rotary", int(c.model.head_dim * c.model.rotary_percent))
    tables = cos_sin(c, name, rot)
    for which, x, turned, kept in zip("qk", (q, k), rotated, (tables[:2], tables[2:]), strict=True):
        parts = tuple(
            c.new(f"{name}.{which} {part}", *x.shape[:-1], rot, dtype=x.dtype) for part in ("times cos", "turned")
        )
        yield Op(f"{name}.rotary_{which}", (x,), (turned,), kept, parts, parts)
    return rotated


def cos_sin(c: Context, name: str, rot: Dim) -> tuple[Tensor, ...]:
    """Tensors kept by unfused RoPE: cos and sin in the compute dtype, once for query and once for key."""
    return tuple(
        c.new(f"{name}.rotary.{part} ({which})", c.seq, rot) for which in ("q", "k") for part in ("cos", "sin")
    )


def _contiguous(q: Tensor, k: Tensor) -> Module[tuple[Tensor, Tensor]]:
    """Query and key of their own storage: views of the packed tensor are copied."""
    copies = tuple(t if t.storage == t.name else t.like(f"{t.name} contiguous") for t in (q, k))
    views = tuple(t for t in (q, k) if t.storage != t.name)
    yield Op(f"{CORE}.contiguous_qk", views, tuple(t for t in copies if t not in (q, k)))
    return copies[0], copies[1]


def _output_gate(c: Context, name: str, context: Tensor, gate: Tensor) -> Module[Tensor]:
    """context * sigmoid(gate): compiled, the gate is kept; eager, its fp32 sigmoid is kept.

    The heads of several groups in a row are a copy of the gate; those of one group, or of groups with one head each, are a view, which
    keeps what linear_qkv made (`attention.py`, get_query_key_value_tensors: gate.reshape).
    """
    out = context.like(f"{name}.output_gate.output")
    if c.training.compiled_gates:
        copied = c.several_groups and c.model.groups < c.model.num_attention_heads
        kept = gate.like(f"{name}.output_gate.gate") if copied else gate
    else:
        kept = gate.like(f"{name}.output_gate.sigmoid", "fp32")
    yield Op(f"{name}.output_gate", (context, gate), (out,), (context, kept))
    return out


def sink_params(c: Context, heads: Dim) -> Module[None]:
    """The number of each head that its softmax has beside the keys, where they are learned (TransformerEngine DotProductAttention)."""
    if c.model.softmax_type == "learnable":
        yield Param(f"{CORE}.softmax_offset", (heads,), split="tp", matrix=False)


def query_norm_params(c: Context, name: str, heads: Dim, groups: Dim, d: Dim) -> Module[None]:
    """Weights of the norms on query and key."""
    scope = c.model.qk_layernorm_scope
    for part, of in (("q", heads), ("k", groups)):
        weight = f"{name}.{part}_layernorm."
        if scope == "head":
            yield from norm_params(c, weight, d)
        elif scope == "projection":  # of the query's width for the key too
            yield from norm_params(c, weight, Dim("heads*kv_channels", heads.size * d.size))
        elif scope == "gathered_projection":
            yield from norm_params(c, weight, Dim(f"{of.name}*kv_channels", of.size * d.size))
        else:
            width = of._replace(size=of.size * d.size, name=f"{of.name}*kv_channels")
            yield Param(f"{weight}weight", (width,), split="tp", matrix=False)


def query_norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """The normalized query or key [s, b, heads, d]. The norm's input must be contiguous, so a strided view is copied; PyTorch's
    copies it for its kernel only and keeps the view."""
    if c.model.eager_norms:
        borrowed = c.model.kv_shared and name.endswith("k_layernorm")
        return (yield from (dropped_norm if borrowed else eager_norm)(c, name, x))
    if c.model.qk_layernorm_scope == "sharded_projection":
        return (yield from _summed(c, name, x))
    if c.model.qk_layernorm_scope == "gathered_projection" and c.tp_many:
        return (yield from _gathered(c, name, x))
    copied = x
    # `torch_norm.py`, L2Norm: compiled, and kept as it is given
    alone = c.model.qk_l2_norm and not c.model.qk_layernorm
    if x.storage != x.name and not ((alone or of_torch(c)) and _is_view(c, name)):
        copied = x.like(f"{name}.input")
        yield Op(f"{name}.contiguous", (x,), (copied,), passes=(x,))
    out = copied.like(f"{name}.output")
    rows = copied.shape[:-1] if c.model.qk_layernorm_scope == "head" else copied.shape[:-2]
    yield Op(name, (copied,), (out,), (copied, *statistics(c, name, rows)[: 1 if alone else None]), compiled=alone)
    return out


def _is_view(c: Context, name: str) -> bool:
    """Whether it is a view of what linear_qkv made: keys are, and queries of one query group or of as many groups as heads."""
    return name.endswith("k_layernorm") or c.model.groups == c.model.num_attention_heads or not c.several_groups


def _summed(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """Eager, in fp32, with the sum of squares over all tensor-parallel ranks: the wide input and the normed copy are kept."""
    wide, row = x.like(f"{name}.input fp32", "fp32"), c.new(f"{name}.rsqrt", *x.shape[:-2], dtype="fp32")
    squares = wide.like(f"{name}.squares")
    yield Op(f"{name}.widen", (x,), (wide,), passes=(x,))
    yield Op(f"{name}.sum_of_squares", (wide,), (row,), (wide, row), (squares,), sends=over_tp(c, "all_reduce", row))
    normed = x.like(f"{name}.normed")
    yield Op(f"{name}.scale", (wide, row), (normed,), (wide, row), (wide.like(f"{name}.normed fp32"),))
    out = x.like(f"{name}.output")
    yield Op(name, (normed,), (out,), (normed,))
    return out


def _gathered(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """The heads of all tensor-parallel ranks, normed on each of them, of which a rank goes on with its own: the whole input is kept."""
    seq, batch, heads, d = x.shape
    whole = c.new(f"{name}.input of all ranks", seq, batch, Dim(heads.name, heads.size), d)
    ranks = (whole.like(f"{name}.input rank by rank"),)
    yield Op(f"{name}.all_gather", (x,), (whole,), forward=ranks, sends=over_tp(c, "all_gather", whole))
    normed = whole.like(f"{name}.output of all ranks")
    yield Op(name, (whole,), (normed,), (whole, *statistics(c, name, whole.shape[:-2])))
    out = x.like(f"{name}.output")
    yield Op(f"{name}.split", (normed,), (out,), backward=ranks, returns=over_tp(c, "all_gather", whole))
    return out
