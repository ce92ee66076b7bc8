"""DeepSeek-V4's attention: one shared key-value head, a sliding window, and compressed keys behind it.

    hidden [s, b, h] -> q_down -> norm -> q_up -> norm of every head without weight -> RoPE     q [s, b, n, d]
                     -> kv_proj -> norm -> RoPE -> + compressed keys                            kv [s + s/r, b, d]
    attention over the window and compressed keys -> RoPE undone -> o_groups products -> linear_proj

A window layer has no compressed keys, CSA (r = 4) those that an indexer picks, HCA (r = 128) all of them. No parameter is sharded.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/deepseek_v4_hybrid_attention.py`,
`csa.py`, `csa_utils/fused_sparse_attention.py`.

Core attention of DeepSeek-V4 by back end (`dsa_kernel_backend`): each query over its window and the compressed keys it attends to.

cudnn   FlashMLA and cuDNN: the backward of the indexer runs in the forward, what stays of it are gradients
none    PyTorch: every query's keys gathered, in fp32

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/csa.py`
(unfused_compressed_sparse_attn), `csa_utils/fused_sparse_attention.py` (csa_sparse_attn, fused_csa_indexer_sparse_attn).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ..errors import ConfigError, UnsupportedError
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..rules import Violation, broken, broken_if
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, divisors, smallest
from ..tape.work import Attention, Gemm, Streamed, Work
from .compressed_keys import (
    Compressed,
    Index,
    boundary_rows,
    compressed,
    compressor_params,
    index,
    indexer_params,
    rope_copies,
)
from .context import Context
from .context_parallel import NAME as CORE
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


class Keys(NamedTuple):
    """What the core reads: the ratio of the layer, query, window keys, compressed keys and what picks among them."""

    ratio: int
    query: Tensor
    kv: Tensor
    compressed: Compressed | None
    picked: Index | None


def core(c: Context, keys: Keys, heads: Dim, d: Dim) -> Module[Tensor]:
    """Output [s, b, n, d]. Raises UnsupportedError for a back end that it does not have."""
    backend = c.training.dsa_kernel_backend
    if backend not in CORES:
        raise UnsupportedError(f"DeepSeek-V4's attention has no dsa_kernel_backend={backend}; use cudnn or none")
    full = keys.kv
    if keys.compressed is not None:
        window = boundary_rows(c).size if c.cp_many else c.seq.size if not c.seq.axes else c.seq.local
        rows = Dim("window and compressed keys", window + keys.compressed.rows.size)
        full = c.new(f"{CORE}.kv_full", rows, c.batch, d)
        yield Op(f"{CORE}.join_keys", (keys.kv, keys.compressed.keys), (full,), passes=(keys.kv,))
    return (yield from CORES[backend](c, keys, full, heads, d))


def attended(c: Context, keys: Keys, *, padded: bool) -> Dim:
    """Keys of a query: the window, and those of the compressed ones that its layer attends to; `padded` to index_topk."""
    m, window = c.model, c.model.csa_window_size
    if keys.compressed is None:
        return Dim("csa_window_size", window)
    every = c.training.seq_length // keys.ratio
    if keys.picked is None:
        return Dim(f"window+seq/{keys.ratio}", window + every)
    assert m.dsa_indexer_topk is not None
    picked = m.dsa_indexer_topk if padded else smallest(m.dsa_indexer_topk, every)
    return Dim("window+dsa_indexer_topk", window + picked)


def _work(c: Context, keys: Keys, heads: Dim, d: Dim) -> tuple[Work, ...]:
    """Products of queries with the keys that they attend to, and scores of the indexer over the keys before each query."""
    tokens = c.seq.local * c.batch.size
    count = attended(c, keys, padded=False).size
    work: tuple[Work, ...] = (Attention(tokens, heads.size, 2 * count, d.size, d.size),)
    if keys.picked is not None:
        query = keys.picked.query
        every = c.training.seq_length // keys.ratio
        work = (*work, Streamed(tokens * every * query.shape[-2].size * query.shape[-1].size, counted=False))
    return work


def _fused(c: Context, keys: Keys, full: Tensor, heads: Dim, d: Dim) -> Module[Tensor]:
    out = c.region(f"{CORE}.output", heads, d)
    count = attended(c, keys, padded=True)
    kept = [
        keys.query,
        full,
        c.new(f"{CORE}.indices", c.seq, c.batch, count, dtype="int32"),
        out,
        c.new(f"{CORE}.softmax_lse", c.seq, c.batch, heads, dtype="fp32"),
    ]
    reads: tuple[Tensor, ...] = (keys.query, full)
    scratch: tuple[Tensor, ...] = ()
    if keys.picked is not None or c.cp_many:
        kept.append(c.new(f"{CORE}.topk_length", c.seq, c.batch, dtype="int32"))
    if keys.picked is not None:
        index = keys.picked
        reads = (*reads, index.query, index.weights, index.keys.keys)
        grads = (index.query, index.weights)
        kept += [t.like(f"{t.name} grad ahead") for t in grads]
        kept.append(c.new(f"{index.keys.keys.name} grad ahead", index.keys.rows, *index.keys.keys.shape[1:]))
        kept.append(c.new(f"{CORE}.indexer.loss", Dim("one", 1), dtype="fp32"))
        scratch = _scratch(c, keys, index)
    backward = (full.like(f"{CORE}.dkv in fp32", "fp32"),)
    yield Op(CORE, reads, (out,), tuple(kept), scratch, backward, work=_work(c, keys, heads, d))
    return out


def _scratch(c: Context, keys: Keys, index: Index) -> tuple[Tensor, ...]:
    """Of the indexer's forward and its backward in it: scores of every compressed key, copies for the kernels, and the distributions
    of teacher and prediction, over the picked keys or, without the sparse loss, over all."""
    assert c.model.dsa_indexer_topk is not None
    scores = c.new(f"{CORE}.indexer.scores", c.seq, c.batch, index.keys.rows, dtype="fp32")
    topk = Dim("dsa_indexer_topk", c.model.dsa_indexer_topk)
    sparse = c.training.dsa_indexer_use_sparse_loss
    one = c.new(f"{CORE}.indexer.teacher", c.seq, c.batch, topk if sparse else index.keys.rows, dtype="fp32")
    return (
        scores,
        index.query.like(f"{CORE}.indexer.query copy"),
        keys.query.like(f"{CORE}.query transposed"),
        one,
        one.like(f"{CORE}.indexer.prediction"),
    )


def _unfused(c: Context, keys: Keys, full: Tensor, heads: Dim, d: Dim) -> Module[Tensor]:
    out = c.region(f"{CORE}.output", heads, d)
    count = attended(c, keys, padded=False)
    rows = (c.seq, c.batch)
    gathered = c.new(f"{CORE}.gathered keys in fp32", *rows, count, d, dtype="fp32")
    scores = c.new(f"{CORE}.exp", *rows, heads, count, dtype="fp32")
    wide = keys.query.like(f"{CORE}.query in fp32", "fp32")
    kept = [
        full,
        c.new(f"{CORE}.indices", *rows, count, dtype="int64"),
        gathered,
        wide,
        c.new(f"{CORE}.mask", *rows, count, dtype="bool"),
        c.new(f"{CORE}.argmax", *rows, heads, dtype="int64"),
        *(c.new(f"{CORE}.{what}", *rows, heads, dtype="fp32") for what in ("max", "sum", "sink")),
        scores,
        scores.like(f"{CORE}.softmax"),
    ]
    reads: tuple[Tensor, ...] = (keys.query, full)
    if keys.picked is not None:
        index = keys.picked
        reads = (*reads, index.query, index.weights, index.keys.keys)
        kept += _indexer_kept(c, keys, index)
    forward = (
        c.new(f"{CORE}.gathered keys", *rows, count, d),
        scores.like(f"{CORE}.scores"),
        wide.like(f"{CORE}.output in fp32"),
    )
    backward = (
        *(gathered.like(f"{CORE}.gathered keys grad in fp32 ({of})") for of in ("values", "scores")),
        scores.like(f"{CORE}.scores grad"),
        wide.like(f"{CORE}.query grad in fp32"),
    )
    work = (*_work(c, keys, heads, d), Streamed())  # functions of PyTorch: each moves what it reads and writes
    yield Op(CORE, reads, (out,), tuple(kept), forward, backward, work=work)
    return out


def _indexer_kept(c: Context, keys: Keys, index: Index) -> list[Tensor]:
    """What the indexer's loss keeps, also where its coefficient is 0."""
    assert keys.compressed is not None and c.model.dsa_indexer_topk is not None
    rows = (c.seq, c.batch)
    every = Dim(f"seq/{keys.ratio}", c.training.seq_length // keys.ratio)
    topk = Dim("min(dsa_indexer_topk, seq/4)", smallest(c.model.dsa_indexer_topk, every.size))
    masked = () if c.cp_many or c.training.sequence_packing_scheduler else (every,)  # packed rows have bounds instead
    return [
        index.query,
        index.weights.like(f"{CORE}.indexer.weights in fp32", "fp32"),
        index.keys.keys,
        keys.query,
        keys.compressed.keys,
        c.new(f"{CORE}.indexer.topk_indices", *rows, topk, dtype="int64"),
        c.new(f"{CORE}.indexer.lse", *rows, Dim("num_attention_heads", c.model.num_attention_heads), dtype="fp32"),
        *(c.new(f"{CORE}.indexer.causal mask", *rows, width, dtype="fp32") for width in masked),
        c.new(f"{CORE}.indexer.loss", Dim("one", 1), dtype="fp32"),
    ]


CORES = {"cudnn": _fused, "none": _unfused}


def compressed_rules(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What DeepSeek-V4's attention requires and excludes."""
    t = training
    if layout.tp != 1:
        yield broken("dsv4-tp", tp=layout.tp)
    yield from broken_if(
        (
            (not model.multi_latent_attention and not model.hybrid, "dsv4-needs-latent-attention"),
            (not t.te_spec, "dsv4-needs-te"),
            (model.add_bias_linear, "dsv4-with-biases"),
            (t.recomputes("core_attn"), "dsv4-core-attention-recomputed"),
            (t.dsa_kernel_backend == "tilelang", "dsv4-with-tilelang"),
            ("qkv_linear" in t.offload_modules, "dsv4-qkv-offloaded"),
            (t.base_frozen, "dsv4-with-peft"),
            (t.params_dtype == "fp32", "dsv4-in-fp32"),
        )
    )
