"""Core attention by kernel: cuDNN, flash-attention, unfused (TransformerEngine) and local (Megatron-Core).

Sources: TransformerEngine `pytorch/attention/dot_product_attention/backends.py`, `context_parallel.py`, `utils.py`;
Megatron-LM `megatron/core/transformer/dot_product_attention.py`; flash-attention 2 and 3 (fp32 dq accumulator).

q [s, b, n, d], k and v [s, b, m, d]; the result is [s, b, n * dv], sharded over tp by heads.
"""

from __future__ import annotations

from ..context import Context, Module
from ..errors import UnsupportedError
from ..tape import Op
from ..tensor import Dim, Tensor, ceil_div

NAME = "self_attention.core_attention"


def core_attention(c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, layer: int) -> Module[Tensor]:
    """Output [s, b, n, dv] of the attention kernel that the run uses."""
    v_dim = v.shape[-1]
    if c.kernel in ("unfused", "local"):
        return (yield from _unfused(c, q, k, v, heads, v_dim))
    if c.cp_many:
        return (yield from _context_parallel(c, q, k, v, heads, v_dim, layer))
    return (yield from _fused(c, q, k, v, heads, v_dim))


def _lse(c: Context, heads: Dim) -> Tensor:
    return c.new(f"{NAME}.softmax_lse", c.batch, heads, c.seq, dtype="fp32")


def _fused(c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim) -> Module[Tensor]:
    out = c.region(f"{NAME}.output", heads, v_dim)
    kept: tuple[Tensor, ...] = (_lse(c, heads),)
    accumulator = q.like(f"{NAME}.dq fp32 accumulator", "fp32")
    if c.kernel == "cudnn":
        yield Op(NAME, (q, k, v), (out,), (q, k, v, out, *kept), backward=(accumulator,))
        return out
    if q.shape[-1].size != v_dim.size:  # flash-attention pads v to the head dim of q; the result is trimmed again
        padded = v.like(f"{NAME}.v padded")._replace(nbytes=v.nbytes // v_dim.size * q.shape[-1].size)
        wide = out.like(f"{NAME}.output padded")._replace(nbytes=out.nbytes // v_dim.size * q.shape[-1].size)
        yield Op(f"{NAME}.pad_v", (v,), (padded,))
        yield Op(NAME, (q, k, padded), (wide,), (q, k, padded, wide, *kept), backward=(accumulator,))
        yield Op(f"{NAME}.trim", (wide,), (out,))
        return out
    if c.training.micro_batch_size == 1:
        yield Op(NAME, (q, k, v), (out,), (q, k, v, out, *kept), backward=(accumulator,))
        return out
    # flash-attention works on [b, s, ...]: q, k, v are copied, and its output is copied back for linear_proj
    copies = tuple(t.like(f"{t.name} [b, s]") for t in (q, k, v))
    inner = out.like(f"{NAME}.output [b, s]")
    yield Op(f"{NAME}.transpose", (q, k, v), copies)
    yield Op(NAME, copies, (inner,), (*copies, inner, *kept), backward=(accumulator,))
    yield Op(f"{NAME}.transpose_back", (inner,), (out,))
    return out


def _context_parallel(
    c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim, layer: int
) -> Module[Tensor]:
    """TransformerEngine `context_parallel.py`: ring (p2p), Ulysses (a2a), all-gather, and the two-level a2a+p2p."""
    kinds = c.layout.cp_comm_type
    kind = kinds[layer % len(kinds)]
    cp = c.layout.cp
    out = c.region(f"{NAME}.output", heads, v_dim)
    lse = _lse(c, heads)
    kv = f"{NAME}.kv"

    def sized(name: str, like: tuple[Tensor, ...], times: int, over: int = 1, dtype: str = "") -> Tensor:
        nbytes = ceil_div(sum(t.nbytes for t in like) * times, over)
        return like[0].like(name, dtype or None)._replace(nbytes=nbytes)

    accumulator = q.like(f"{NAME}.dq fp32 accumulator", "fp32")
    if kind in ("a2a", "a2a+p2p"):
        exchanged = tuple(t.like(f"{t.name} after all-to-all") for t in (q, k, v))
        inner = out.like(f"{NAME}.output before all-to-all")
        yield Op(f"{NAME}.all_to_all", (q, k, v), exchanged, forward=(sized(f"{NAME}.reordered", exchanged, 1),))
        rings = (sized(f"{kv} of the ring", exchanged[1:], 2),) if kind == "a2a+p2p" else ()
        yield Op(NAME, exchanged, (inner,), (*exchanged, inner, lse), forward=rings, backward=(*rings, accumulator))
        yield Op(f"{NAME}.all_to_all_back", (inner,), (out,), forward=(inner.like(f"{NAME}.output reordered"),))
        return out
    if kind == "p2p":
        received = sized(f"{kv} received from {c.layout.cp - 1} ranks", (k, v), cp - 1)
        steps = sized(f"{NAME}.output per ring step", (out,), cp + 1, 2)
        ring = sized(f"{kv} ring buffers and dkv", (k, v), 4)
        step = sized(f"{NAME}.dq, dk, dv of one ring step", (q, k, v), 1)
        yield Op(
            NAME, (q, k, v), (out,), (q, k, v, out, lse), forward=(received, steps), backward=(ring, step, accumulator)
        )
        return out
    if kind == "all_gather":
        second = lse.like(f"{NAME}.softmax_lse of the second half")
        gathered = sized(f"{kv} gathered and reordered", (k, v), 2 * cp)
        whole = sized(f"{kv} gathered, and dk, dv of the whole sequence", (k, v), 2 * cp)
        yield Op(
            NAME, (q, k, v), (out,), (q, k, v, out, lse, second), forward=(gathered,), backward=(whole, accumulator)
        )
        return out
    raise UnsupportedError(f"cp_comm_type {kind} is not modelled")


def _unfused(c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim) -> Module[Tensor]:
    """Attention with a score matrix [b, n, s, s] (TransformerEngine UnfusedDotProductAttention, local spec)."""
    if c.cp_many:
        raise UnsupportedError(
            f"attention_kernel={c.kernel} does not support context parallelism "
            f"(context_parallel_size={c.layout.cp}); use flash or cudnn"
        )
    out = c.region(f"{NAME}.output", heads, v_dim)
    scores_shape = (c.batch, heads, c.seq, c.full_seq)
    if k.shape[-2].size != heads.size:  # key and value are repeated to all heads
        repeated = tuple(c.region(f"{t.name} repeated", heads, t.shape[-1]) for t in (k, v))
        yield Op(f"{NAME}.repeat_kv", (k, v), repeated)
        k, v = repeated
    scores = c.new(f"{NAME}.scores", *scores_shape)
    if c.kernel == "local":  # the score buffer is persistent (GlobalMemoryBuffer, see workspaces.py)
        scores = scores._replace(nbytes=0)
    yield Op(f"{NAME}.scores", (q, k), (scores,), (q, k))
    probs = c.new(f"{NAME}.softmax", *scores_shape)
    saved_probs: Tensor = probs
    dropout = c.model.attention_dropout > 0
    scratch = scores.like(f"{NAME}.softmax grad")
    torch_softmax = c.training.attention_softmax_in_fp32 and not c.training.masked_softmax_fusion
    if torch_softmax:
        wide = c.new(f"{NAME}.softmax fp32", *scores_shape, dtype="fp32")
        yield Op(f"{NAME}.softmax", (scores,), (wide,), (wide,), forward=(wide.like(f"{NAME}.scores fp32"),))
        yield Op(f"{NAME}.softmax_cast", (wide,), (probs,))
    else:
        yield Op(f"{NAME}.softmax", (scores,), (probs,), (probs,), backward=(scratch,))
    if dropout:
        mask = c.new(f"{NAME}.dropout_mask", *scores_shape, dtype="bool")
        dropped = c.new(f"{NAME}.dropped softmax", *scores_shape)
        yield Op(f"{NAME}.attention_dropout", (probs,), (dropped,), (mask,))
        saved_probs = dropped
    yield Op(f"{NAME}.context", (saved_probs, v), (out,), (saved_probs, v))
    return out
