"""Core attention of DeepSeek-V4 by back end (`dsa_kernel_backend`): each query over its window and the compressed keys it attends to.

cudnn   FlashMLA and cuDNN: the backward of the indexer runs in the forward, what stays of it are gradients
none    PyTorch: every query's keys gathered, in fp32

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/csa.py`
(unfused_compressed_sparse_attn), `csa_utils/fused_sparse_attention.py` (csa_sparse_attn, fused_csa_indexer_sparse_attn).
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor, smallest
from ..tape.work import Attention, Streamed, Work
from .compressed_keys import Compressed, boundary_rows
from .context import Context
from .context_parallel import NAME
from .csa_indexer import Index
from .module import Module


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
        full = c.new(f"{NAME}.kv_full", rows, c.batch, d)
        yield Op(f"{NAME}.join_keys", (keys.kv, keys.compressed.keys), (full,), passes=(keys.kv,))
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
    out = c.region(f"{NAME}.output", heads, d)
    count = attended(c, keys, padded=True)
    kept = [
        keys.query,
        full,
        c.new(f"{NAME}.indices", c.seq, c.batch, count, dtype="int32"),
        out,
        c.new(f"{NAME}.softmax_lse", c.seq, c.batch, heads, dtype="fp32"),
    ]
    reads: tuple[Tensor, ...] = (keys.query, full)
    scratch: tuple[Tensor, ...] = ()
    if keys.picked is not None or c.cp_many:
        kept.append(c.new(f"{NAME}.topk_length", c.seq, c.batch, dtype="int32"))
    if keys.picked is not None:
        index = keys.picked
        reads = (*reads, index.query, index.weights, index.keys.keys)
        grads = (index.query, index.weights)
        kept += [t.like(f"{t.name} grad ahead") for t in grads]
        kept.append(c.new(f"{index.keys.keys.name} grad ahead", index.keys.rows, *index.keys.keys.shape[1:]))
        kept.append(c.new(f"{NAME}.indexer.loss", Dim("one", 1), dtype="fp32"))
        scratch = _scratch(c, keys, index)
    backward = (full.like(f"{NAME}.dkv in fp32", "fp32"),)
    yield Op(NAME, reads, (out,), tuple(kept), scratch, backward, work=_work(c, keys, heads, d))
    return out


def _scratch(c: Context, keys: Keys, index: Index) -> tuple[Tensor, ...]:
    """Of the indexer's forward and its backward in it: scores of every compressed key, copies for the kernels, and the distributions
    of teacher and prediction, over the picked keys or, without the sparse loss, over all."""
    assert c.model.dsa_indexer_topk is not None
    scores = c.new(f"{NAME}.indexer.scores", c.seq, c.batch, index.keys.rows, dtype="fp32")
    topk = Dim("dsa_indexer_topk", c.model.dsa_indexer_topk)
    sparse = c.training.dsa_indexer_use_sparse_loss
    one = c.new(f"{NAME}.indexer.teacher", c.seq, c.batch, topk if sparse else index.keys.rows, dtype="fp32")
    return (
        scores,
        index.query.like(f"{NAME}.indexer.query copy"),
        keys.query.like(f"{NAME}.query transposed"),
        one,
        one.like(f"{NAME}.indexer.prediction"),
    )


def _unfused(c: Context, keys: Keys, full: Tensor, heads: Dim, d: Dim) -> Module[Tensor]:
    out = c.region(f"{NAME}.output", heads, d)
    count = attended(c, keys, padded=False)
    rows = (c.seq, c.batch)
    gathered = c.new(f"{NAME}.gathered keys in fp32", *rows, count, d, dtype="fp32")
    scores = c.new(f"{NAME}.exp", *rows, heads, count, dtype="fp32")
    wide = keys.query.like(f"{NAME}.query in fp32", "fp32")
    kept = [
        full,
        c.new(f"{NAME}.indices", *rows, count, dtype="int64"),
        gathered,
        wide,
        c.new(f"{NAME}.mask", *rows, count, dtype="bool"),
        c.new(f"{NAME}.argmax", *rows, heads, dtype="int64"),
        *(c.new(f"{NAME}.{what}", *rows, heads, dtype="fp32") for what in ("max", "sum", "sink")),
        scores,
        scores.like(f"{NAME}.softmax"),
    ]
    reads: tuple[Tensor, ...] = (keys.query, full)
    if keys.picked is not None:
        index = keys.picked
        reads = (*reads, index.query, index.weights, index.keys.keys)
        kept += _indexer_kept(c, keys, index)
    forward = (
        c.new(f"{NAME}.gathered keys", *rows, count, d),
        scores.like(f"{NAME}.scores"),
        wide.like(f"{NAME}.output in fp32"),
    )
    backward = (
        *(gathered.like(f"{NAME}.gathered keys grad in fp32 ({of})") for of in ("values", "scores")),
        scores.like(f"{NAME}.scores grad"),
        wide.like(f"{NAME}.query grad in fp32"),
    )
    work = (*_work(c, keys, heads, d), Streamed())  # functions of PyTorch: each moves what it reads and writes
    yield Op(NAME, reads, (out,), tuple(kept), forward, backward, work=work)
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
        index.weights.like(f"{NAME}.indexer.weights in fp32", "fp32"),
        index.keys.keys,
        keys.query,
        keys.compressed.keys,
        c.new(f"{NAME}.indexer.topk_indices", *rows, topk, dtype="int64"),
        c.new(f"{NAME}.indexer.lse", *rows, Dim("num_attention_heads", c.model.num_attention_heads), dtype="fp32"),
        *(c.new(f"{NAME}.indexer.causal mask", *rows, width, dtype="fp32") for width in masked),
        c.new(f"{NAME}.indexer.loss", Dim("one", 1), dtype="fp32"),
    ]


CORES = {"cudnn": _fused, "none": _unfused}
