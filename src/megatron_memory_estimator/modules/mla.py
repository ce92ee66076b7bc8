"""Multi-latent attention (DeepSeek-V2, V3). Source: Megatron-LM `megatron/core/transformer/multi_latent_attention.py`.

    hidden [s, b, h] -> input norm -> q_down [qr], kv_down [kr + dr]     on the residual stream, weights on every rank
    norm -> q_up [n, dn + dr], kv_up [n, dn + dv]                        inside the tensor-parallel region
    RoPE -> q, k [n, dn + dr], v [n, dv] -> core attention -> linear_proj

TransformerEngine fuses the norms of the compressed query and key-value into the up projections. The local spec shards
the down projections over tp and has separate norms.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from ..tape.work import Streamed
from .attention import cos_sin, sink_params
from .context import Context
from .context_parallel import NAME as CORE
from .core_attention import core_attention
from .linear import column_linear, duplicated_linear, keeps_original, linear_params, row_linear
from .module import Module, holding, in_part, recomputed
from .norm import norm, norm_params
from .sends import over_tp

NAME = "self_attention"


def down_linear(c: Context, name: str, x: Tensor, weight: Param, width: Dim) -> Module[Tensor]:
    """A down projection on the residual stream's tokens; the local spec gathers its tp shards.

    In low precision each keeps a copy of its own, unless the norm before them shall be recomputed.
    """
    if c.te:
        original = c.training.recomputes("layernorm")
        return (yield from in_part("qkv_linear", duplicated_linear(c, name, x, weight, original=original)))
    shard = yield from in_part("qkv_linear", column_linear(c, name, x, weight))
    out = c.stream(f"{name}.output gathered", width)
    whole = c.region(f"{name}.output of all ranks", width)
    yield Op(
        f"{name}.gather", (shard,), (out,), forward=(whole,), part="qkv_linear", sends=over_tp(c, "all_gather", whole),
        returns=over_tp(c, "reduce_scatter", whole),
    )  # fmt: skip
    return out


def mla_attention(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """Output on the residual stream; includes the separate input norm."""
    m = c.model
    heads = c.dim("num_attention_heads", m.num_attention_heads, "tp")
    qk = Dim("qk_head_dim+qk_pos_emb_head_dim", m.qk_head_dim + m.qk_pos_emb_head_dim)
    dv = Dim("v_head_dim", m.v_head_dim)
    kr = Dim("kv_lora_rank", m.kv_lora_rank)
    kv_dim = Dim("kv_lora_rank+qk_pos_emb_head_dim", m.kv_lora_rank + m.qk_pos_emb_head_dim)
    rot = Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim)
    up_q = c.dim("heads*qk", m.num_attention_heads * qk.size, "tp")
    up_kv = c.dim("heads*(qk_head_dim+v_head_dim)", m.num_attention_heads * (m.qk_head_dim + m.v_head_dim), "tp")
    width = c.dim("heads*v_head_dim", m.num_attention_heads * m.v_head_dim, "tp")
    fused = c.te and m.qk_layernorm

    yield from norm_params(c, "input_layernorm.", c.hidden)
    yield from sink_params(c, heads)
    proj = yield from linear_params(c, f"{NAME}.linear_proj", c.hidden, width, "tp", m.add_bias_linear)

    def down(name: str, dim: Dim) -> Module[Param]:
        out, split = (dim, "replicated") if c.te else (c.dim(dim.name, dim.size, "tp"), "tp")
        return (yield from linear_params(c, name, out, c.hidden, split, False))

    # A query projection without compression gets the norm too: mla_qk_norm_config.py, Megatron-Core 0.17 and later.
    q_norm = m.qk_layernorm and (m.q_lora_rank is not None or (c.te and c.training.mcore >= (0, 17)))
    q_down: Param | None = None
    if m.q_lora_rank is None:
        q_width, q_name = c.hidden, f"{NAME}.linear_q_proj"
    else:
        q_width, q_name = Dim("q_lora_rank", m.q_lora_rank), f"{NAME}.linear_q_up_proj"
        q_down = yield from down(f"{NAME}.linear_q_down_proj", q_width)
    if q_norm and fused:
        yield from norm_params(c, f"{q_name}.layer_norm_", q_width)
    q_up = yield from linear_params(c, q_name, up_q, q_width, "tp", False)
    kv_down = yield from down(f"{NAME}.linear_kv_down_proj", kv_dim)
    if fused:
        yield from norm_params(c, f"{NAME}.linear_kv_up_proj.layer_norm_", kr)
    kv_up = yield from linear_params(c, f"{NAME}.linear_kv_up_proj", up_kv, kr, "tp", False)
    if m.qk_layernorm and not fused:
        if q_norm:
            yield from norm_params(c, f"{NAME}.q_layernorm.", q_width)
        yield from norm_params(c, f"{NAME}.kv_layernorm.", kr)

    layernorm = c.training.recomputes("layernorm")
    before = norm(c, "input_layernorm", hidden)
    before = recomputed(layernorm, "input_layernorm.checkpoint", before, hook=f"{NAME}.linear_proj")
    normed = yield from in_part("attn_norm", before)
    q_in = normed
    if q_down is not None:
        q_in = yield from down_linear(c, f"{NAME}.linear_q_down_proj", normed, q_down, q_width)
    kv = yield from down_linear(c, f"{NAME}.linear_kv_down_proj", normed, kv_down, kv_dim)

    latent = kv.view(f"{NAME}.kv_compressed", (*kv.shape[:-1], kr))
    k_pos = kv.view(f"{NAME}.k_pos_emb", (*kv.shape[:-1], rot))
    yield Op(f"{NAME}.split_kv", (kv,), (latent, k_pos))
    if c.te and c.sp_many:
        part, k_pos = k_pos, c.region(f"{NAME}.k_pos_emb gathered", rot)
        yield Op(
            f"{NAME}.gather_k_pos_emb", (part,), (k_pos,), sends=over_tp(c, "all_gather", k_pos),
            returns=over_tp(c, "reduce_scatter", k_pos),
        )  # fmt: skip

    def up(compressed: Tensor = latent) -> Module[tuple[Tensor, Tensor, Tensor]]:
        query, latent = q_in, compressed
        if q_norm:
            query = yield from norm(c, f"{NAME}.q_layernorm", query)
        # a query projection without compression reads the normed input, like linear_qkv
        q_raw = yield from in_part(
            "qkv_linear" if q_down is None else "attn", column_linear(c, q_name, query, q_up, normed=q_norm and fused)
        )
        if c.te:  # a strided slice; TransformerEngine makes its input contiguous
            copied = latent.like(f"{NAME}.kv_compressed contiguous")
            yield Op(f"{NAME}.contiguous_kv", (latent,), (copied,), passes=(latent,))
            latent = copied
        if m.qk_layernorm:
            latent = yield from norm(c, f"{NAME}.kv_layernorm", latent)
        kv_raw = yield from column_linear(c, f"{NAME}.linear_kv_up_proj", latent, kv_up, normed=fused)
        in_place = c.training.apply_rope_fusion
        # rotated where it is (`fusions/fused_mla_yarn_rope_apply.py`), else the rotated part is joined with the other
        q = c.region(f"{NAME}.q", heads, qk)
        k = c.region(f"{NAME}.k", heads, qk)
        v = c.region(f"{NAME}.v", heads, dv)
        kept: tuple[Tensor, ...] = ()
        turned: tuple[Tensor, ...] = ()
        if not in_place:
            kept = cos_sin(c, NAME, rot)
            turned = (c.region(f"{NAME}.q_pos_emb rotated", heads, rot), c.region(f"{NAME}.k_pos_emb rotated", rot))
        yield Op(
            f"{NAME}.rotary",
            (q_raw, kv_raw, k_pos),
            (q, k, v),
            kept,
            turned,
            passes=(q_raw,) if in_place else (),
            work=(Streamed(),),
        )
        return q, k, v

    q, k, v = yield from recomputed(c.training.recomputes("mla_up_proj"), f"{NAME}.up_proj.checkpoint", up(), hook=CORE)
    core = core_attention(c, q, k, v, heads, layer)
    context = yield from in_part(
        "core_attn", recomputed(c.training.recomputes("core_attn"), CORE + ".checkpoint", core)
    )
    out = row_linear(c, f"{NAME}.linear_proj", context, proj, original=keeps_original(c))
    kept = () if c.training.recomputes("mla_up_proj") else (q, k, v)  # dropped before
    # variables of the forward to its end: the compressed query and key-value, and the layer's normed input
    return (yield from in_part("attn_proj", holding(out, normed, q_in, kv, *kept)))
