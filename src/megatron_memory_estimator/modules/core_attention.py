"""Core attention by kernel: cuDNN, flash-attention, unfused (TransformerEngine) and local (Megatron-Core).

Sources: TransformerEngine `pytorch/attention/dot_product_attention/backends.py`, `context_parallel.py`, `utils.py`;
Megatron-LM `megatron/core/transformer/dot_product_attention.py`; flash-attention 2 and 3 (fp32 dq accumulator).

q [s, b, n, d], k and v [s, b, m, d]; the result is [s, b, n * dv], sharded over tp by heads.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor, ceil_div
from ..tape.work import Attention
from .context import Context
from .context_parallel import NAME, STYLES, Core, in_fp8, own_storage
from .module import Module
from .unfused_attention import unfused


def core_attention(c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, layer: int) -> Module[Tensor]:
    """Output [s, b, n, dv] of the attention kernel that the run uses."""
    v_dim = v.shape[-1]
    if c.core_kernel == "flex":
        return (yield from _flex(c, q, k, v, heads, v_dim))
    if c.core_kernel in ("unfused", "local"):
        return (yield from unfused(c, NAME, q, k, v, heads, v_dim))
    if c.cp_many:
        return (yield from _context_parallel(c, q, k, v, heads, v_dim, layer))
    return (yield from _fused(c, q, k, v, heads, v_dim))


def kernel(c: Context, heads: Dim, qk: int, v: int) -> Attention:
    """The fused kernel on the tokens of a rank; with context parallelism each rank has an even share of the square."""
    tokens = c.seq.local * c.batch.size
    return Attention(tokens, heads.local, _attended(c), qk, v, c.training.fp8_dot_product_attention)


def _attended(c: Context) -> int:
    """Twice the keys that a query attends to on average: all before it, or those in its window."""
    length, window = c.training.seq_length, c.model.sliding_window
    if window is None or window >= length:
        return length
    return 2 * window - window * window // length


def _lse(c: Context, heads: Dim) -> Tensor:
    return c.new(f"{NAME}.softmax_lse", c.batch, heads, c.seq, dtype="fp32")


def _fused(c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim) -> Module[Tensor]:
    out = c.region(f"{NAME}.output", heads, v_dim)
    lse = _lse(c, heads)
    work = (kernel(c, heads, q.shape[-1].size, v_dim.size),)
    if c.kernel == "cudnn":
        kept = (*in_fp8(c, (q, k, v)), *in_fp8(c, (out,), output=True))
        yield Op(NAME, (q, k, v), (out,), (*kept, lse), backward=_backward_scratch(c, q, k, heads), work=work)
        return out
    if q.shape[-1].size != v_dim.size:  # flash-attention pads v to the head dim of q; the result is trimmed again
        padded = c.region(f"{NAME}.v padded", v.shape[-2], q.shape[-1])
        yield Op(f"{NAME}.pad_v", (v,), (padded,))
        v = padded
    several = c.several_sequences
    if several:  # flash-attention works on [b, s, ...]: q, k, v are copied
        copies = tuple(t.like(f"{t.name} [b, s]") for t in (q, k, v))
        yield Op(f"{NAME}.transpose", (q, k, v), copies)
        q, k, v = copies
    inner = out
    if several or v.shape[-1].size != v_dim.size:
        inner = c.region(f"{NAME}.kernel output", heads, v.shape[-1])
    yield Op(NAME, (q, k, v), (inner,), (q, k, v, inner, lse), backward=_backward_scratch(c, q, k, heads), work=work)
    if inner is not out:  # copied back, or trimmed, for linear_proj
        yield Op(f"{NAME}.back", (inner,), (out,))
    return out


def _flex(c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim) -> Module[Tensor]:
    """PyTorch's FlexAttention, compiled: caps and windows inside one kernel that works on [b, n, s, d] (Gemma 2).

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/gemma2_provider.py` (Gemma2FlexDotProductAttention).
    """
    inner, out = c.region(f"{NAME}.kernel output", heads, v_dim), c.region(f"{NAME}.output", heads, v_dim)
    work = (kernel(c, heads, q.shape[-1].size, v_dim.size),)
    rows = c.new(f"{NAME}.softmax_d", c.batch, heads, c.seq, dtype="fp32")
    yield Op(NAME, (q, k, v), (inner,), (q, k, v, inner, _lse(c, heads)), backward=(rows,), work=work)
    yield Op(f"{NAME}.back", (inner,), (out,))
    return out


def _backward_scratch(c: Context, q: Tensor, k: Tensor, heads: Dim) -> tuple[Tensor, ...]:
    """Scratch of the kernel's backward: the fp32 accumulator of dq (one per block of keys when deterministic).

    flash-attention also keeps the row sums of dO * O, and with GQA dk and dv at all heads before they are summed.
    """
    accumulator = q.like(f"{NAME}.dq fp32 accumulator", "fp32")
    if c.kernel != "flash":
        return (accumulator,)
    if c.training.deterministic_mode:
        splits = ceil_div(c.num_sms, c.batch.size * heads.local)
        accumulator = c.new(f"{NAME}.dq fp32 accumulators", Dim("splits", splits), *q.shape, dtype="fp32")
    rows = c.new(f"{NAME}.softmax_d", c.batch, heads, c.seq, dtype="fp32")
    if k.shape[-2].size == heads.size:
        return (accumulator, rows)
    return (accumulator, rows, q.like(f"{NAME}.dk at all heads"), q.like(f"{NAME}.dv at all heads"))


def _context_parallel(
    c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim, layer: int
) -> Module[Tensor]:
    """TransformerEngine `context_parallel.py`: ring (p2p), Ulysses (a2a), all-gather, and the two-level a2a+p2p.

    flash-attention works on [b, s, ...] here too (`backends.py`, FlashAttention.forward): where a style keeps the kernel's output, it is
    another tensor than the one that goes on, which linear_proj keeps.
    """
    kinds = c.layout.cp_comm_type
    kind = kinds[layer % len(kinds)]
    if kind not in STYLES:
        raise UnsupportedError(f"cp_comm_type {kind} is not modelled")
    out = c.region(f"{NAME}.output", heads, v_dim)
    work = (kernel(c, heads, q.shape[-1].size, v_dim.size),)
    inner = out
    if c.kernel == "flash" and c.several_sequences:
        copies = tuple(t.like(f"{t.name} [b, s]") for t in (q, k, v))
        yield Op(f"{NAME}.transpose", (q, k, v), copies)
        q, k, v = copies
        inner = c.region(f"{NAME}.kernel output", heads, v_dim)
    else:
        q, k, v = yield from own_storage(q, k, v)
    core = Core(q, k, v, inner, _lse(c, heads), _backward_scratch(c, q, k, heads), work)
    yield from STYLES[kind](c, core)
    if inner is not out:
        yield Op(f"{NAME}.back", (inner,), (out,))
    return out
