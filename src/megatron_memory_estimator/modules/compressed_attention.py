"""DeepSeek-V4's attention: one shared key-value head, a sliding window, and compressed keys behind it.

    hidden [s, b, h] -> q_down -> norm -> q_up -> norm of every head without weight -> RoPE     q [s, b, n, d]
                     -> kv_proj -> norm -> RoPE -> + compressed keys                            kv [s + s/r, b, d]
    attention over the window and compressed keys -> RoPE undone -> o_groups products -> linear_proj

A window layer has no compressed keys, CSA (r = 4) those that an indexer picks, HCA (r = 128) all of them. No parameter is sharded.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/deepseek_v4_hybrid_attention.py`,
`csa.py`, `csa_utils/fused_sparse_attention.py`.
"""

from __future__ import annotations

from functools import partial

from ..errors import ConfigError, UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, divisors
from ..tape.work import Gemm
from .compressed_core import Keys, core
from .compressed_keys import Compressed, boundary_rows, compressed, compressor_params, rope_copies
from .context import Context
from .context_parallel import NAME as CORE
from .csa_indexer import Index, index, indexer_params
from .linear import duplicated_linear, linear_params
from .mla import NAME
from .module import Module, in_part, recomputed
from .norm import norm, norm_params, separate_norm

CSA, HCA = 4, 128
"""Tokens of a compressed key."""


def window_attention(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """A layer with a sliding window alone."""
    return (yield from _attention(c, hidden, 0))


def csa_attention(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """A layer with compressed keys that an indexer picks; all of them in dense mode."""
    return (yield from _attention(c, hidden, CSA))


def hca_attention(c: Context, hidden: Tensor, layer: int = 0) -> Module[Tensor]:
    """A layer with heavily compressed keys."""
    return (yield from _attention(c, hidden, HCA))


def _attention(c: Context, hidden: Tensor, ratio: int) -> Module[Tensor]:
    m = c.model
    q_rank, per_group = _checked(c)
    heads, d = Dim("num_attention_heads", m.num_attention_heads), Dim("v_head_dim", m.v_head_dim)
    rank, latent = Dim("q_lora_rank", q_rank), Dim("o_groups*o_lora_rank", m.o_groups * m.o_lora_rank)
    every = Dim("heads*v_head_dim", m.num_attention_heads * m.v_head_dim)
    indexed = ratio == CSA and not m.csa_dense_mode

    yield from norm_params(c, "input_layernorm.", c.hidden)
    groups = Param(f"{NAME}.linear_o_group_proj", (latent, Dim("heads*v_head_dim/o_groups", per_group)))
    yield groups
    yield Param(f"{CORE}.attn_sink", (heads,), matrix=False, dtype="fp32")
    keys = yield from compressor_params(c, f"{CORE}.compressor", d, ratio)
    picks = (yield from indexer_params(c, rank)) if indexed else None
    proj = yield from linear_params(c, f"{NAME}.linear_proj", c.hidden, latent, "replicated", False)
    q_down = yield from linear_params(c, f"{NAME}.linear_q_down_proj", rank, c.hidden, "replicated", False)
    q_up = yield from linear_params(c, f"{NAME}.linear_q_up_proj", every, rank, "replicated", False)
    kv_proj = yield from linear_params(c, f"{NAME}.linear_kv_proj", d, c.hidden, "replicated", False)
    yield from norm_params(c, f"{NAME}.kv_layernorm.", d)
    yield from norm_params(c, f"{NAME}.q_layernorm.", rank)

    normed = yield from in_part("attn_norm", separate_norm(c, "input_layernorm", hidden, f"{NAME}.linear_proj"))
    down = duplicated_linear(c, f"{NAME}.linear_q_down_proj", normed, q_down)
    q_latent = yield from norm(c, f"{NAME}.q_layernorm", (yield from in_part("qkv_linear", down)))
    up = partial(_up, c, normed, q_latent, q_up, kv_proj, heads, d)
    again = c.training.recomputes("mla_up_proj")
    query, kv = yield from recomputed(again, f"{NAME}.up_proj.checkpoint", up(), hook=CORE)
    more: Compressed | None = None
    picked: Index | None = None
    if keys is not None:
        more = yield from in_part("core_attn", compressed(c, f"{CORE}.compressor", normed, keys))
    if picks is not None:
        picked = yield from in_part("core_attn", index(c, normed, q_latent, picks))
    attended = core(c, Keys(ratio, query, kv, more, picked), heads, d)
    out = yield from in_part("core_attn", attended)
    turned = out.like(f"{NAME}.output without RoPE")
    kept = rope_copies(c, f"{CORE}.inverse", (c.seq,))
    yield Op(f"{NAME}.inverse_rotary", (out,), (turned,), kept)
    grouped = c.region(f"{NAME}.linear_o_group_proj.output", latent)
    rows = c.seq.local * c.batch.size
    work = (Gemm(rows, latent.size, per_group),)
    by_group = grouped.like(f"{NAME}.linear_o_group_proj.output by group")  # a batched product, copied
    yield Op(f"{NAME}.linear_o_group_proj", (turned,), (grouped,), (turned,), (by_group,), work=work,
             backward=(by_group.like(f"{by_group.name} grad"), c.new(f"{groups.name}.wgrad", *groups.shape)))  # fmt: skip
    return (yield from in_part("attn_proj", duplicated_linear(c, f"{NAME}.linear_proj", grouped, proj)))


def _checked(c: Context) -> tuple[int, int]:
    """q_lora_rank, and the width of a group of the attention output.

    Raises ConfigError where groups do not divide it, UnsupportedError for a query without compression.
    """
    m = c.model
    if m.q_lora_rank is None:
        raise UnsupportedError("experimental_attention_variant=dsv4_hybrid needs q_lora_rank")
    width = m.num_attention_heads * m.v_head_dim
    if width % m.o_groups:
        fix = divisors(width)
        raise ConfigError(
            f"num_attention_heads*v_head_dim={width} is not divisible by o_groups={m.o_groups}; use {fix}"
        )
    return m.q_lora_rank, width // m.o_groups


def _up(
    c: Context, normed: Tensor, q_latent: Tensor, q_up: Param, kv_proj: Param, heads: Dim, d: Dim
) -> Module[tuple[Tensor, Tensor]]:
    """Query and key-value, rotated: fused RoPE works in place."""
    flat = yield from duplicated_linear(c, f"{NAME}.linear_q_up_proj", q_latent, q_up)
    query = c.region(f"{NAME}.query", heads, d)
    rms = c.region(f"{NAME}.q_rms_norm.rsqrt", heads)
    yield Op(f"{NAME}.q_rms_norm", (flat,), (query,), (flat, rms))
    source = normed
    if c.cp_many:  # the window of the first tokens lies on the rank before
        source = c.new(f"{NAME}.hidden with boundary", boundary_rows(c), c.batch, c.hidden)
        yield Op(f"{NAME}.receive_boundary", (normed,), (source,))
    raw = yield from duplicated_linear(c, f"{NAME}.linear_kv_proj", source, kv_proj)
    kv = yield from norm(c, f"{NAME}.kv_layernorm", raw)
    kept = (*rope_copies(c, f"{NAME}.q", (c.seq,)), *rope_copies(c, f"{NAME}.kv", (c.seq,)))
    if not c.training.apply_rope_fusion:
        rotated = query.like(f"{NAME}.query rotated"), kv.like(f"{NAME}.kv rotated")
        yield Op(f"{NAME}.rotary", (query, kv), rotated, kept)
        return rotated
    if c.cp_many:
        places = tuple(
            c.new(f"{NAME}.{what} positions", rows, dtype="int32")
            for what, rows in (("q", c.seq), ("kv", boundary_rows(c)))
        )
        shown = query.view(f"{NAME}.query rotated", query.shape), kv.view(f"{NAME}.kv rotated", kv.shape)
        yield Op(f"{NAME}.rotary", (query, kv), shown, places, passes=(query, kv))
        return shown
    return query, kv
