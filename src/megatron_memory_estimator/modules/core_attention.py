"""Core attention by kernel: cuDNN, flash-attention, unfused (TransformerEngine) and local (Megatron-Core).

Sources: TransformerEngine `pytorch/attention/dot_product_attention/backends.py`, `context_parallel.py`, `utils.py`;
Megatron-LM `megatron/core/transformer/dot_product_attention.py`; flash-attention 2 and 3 (fp32 dq accumulator).

q [s, b, n, d], k and v [s, b, m, d]; the result is [s, b, n * dv], sharded over tp by heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..errors import UnsupportedError
from ..tape.ops import Op, Part
from ..tape.tensor import DTYPE_BYTES, Dim, Tensor, ceil_div, tensor
from ..tape.work import Attention, Work
from .context import Context
from .module import Module
from .sends import Sends, over_cp
from .unfused_attention import unfused

NAME = "self_attention.core_attention"
EXCHANGES: tuple[Part, Part] = ("heads_out", "heads_back")
"""The all-to-alls of Ulysses context parallelism."""
Scratch = tuple[Tensor, ...]


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


def in_fp8(c: Context, tensors: Scratch, *, output: bool = False) -> Scratch:
    """What fp8 attention keeps of its operands: fp8 copies; of its output only with delayed scaling.

    Source: TransformerEngine `pytorch/attention/dot_product_attention/` (backends.py, context_parallel.py).
    """
    if not (c.recipe and c.training.fp8_dot_product_attention) or (output and c.recipe.name != "delayed"):
        return tensors
    return tuple(t.like(f"{t.name} fp8", "fp8") for t in tensors)


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


class _Core(NamedTuple):
    """A fused core under context parallelism: what it reads and writes, its statistics, the scratch of its backward, its work."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    scratch: Scratch
    work: tuple[Work, ...]


def _context_parallel(
    c: Context, q: Tensor, k: Tensor, v: Tensor, heads: Dim, v_dim: Dim, layer: int
) -> Module[Tensor]:
    """TransformerEngine `context_parallel.py`: ring (p2p), Ulysses (a2a), all-gather, and the two-level a2a+p2p."""
    kinds = c.layout.cp_comm_type
    kind = kinds[layer % len(kinds)]
    if kind not in _STYLES:
        raise UnsupportedError(f"cp_comm_type {kind} is not modelled")
    out = c.region(f"{NAME}.output", heads, v_dim)
    work = (kernel(c, heads, q.shape[-1].size, v_dim.size),)
    core = _Core(q, k, v, out, _lse(c, heads), _backward_scratch(c, q, k, heads), work)
    yield from _STYLES[kind](c, core)
    return out


def _ring_of_keys(c: Context, core: _Core) -> Module[None]:
    """Keys and values are passed round."""
    kv = _sized(f"{NAME}.kv", (core.k, core.v), 1)
    yield Op(f"{NAME}.join_kv", (core.k, core.v), (kv,))
    ring, back = _ring(c.layout.cp, core.q, core.k, core.v, core.out)
    kept = (*in_fp8(c, (core.q, kv)), *in_fp8(c, (core.out,), output=True), core.lse)
    yield Op(
        NAME, (core.q, kv), (core.out,), kept, ring, (*back, *core.scratch), work=core.work,
        sends=over_cp(c, "ring", kv, times=c.layout.cp), returns=over_cp(c, "ring", kv, times=2 * c.layout.cp),
    )  # fmt: skip


def _all_gathered(c: Context, core: _Core) -> Module[None]:
    """Every rank gathers the keys and values of the whole sequence, for each half of its queries."""
    cp, k, v = c.layout.cp, core.k, core.v
    second = core.lse.like(f"{NAME}.softmax_lse of the second half")
    gathered = _sized(f"{NAME}.kv gathered and reordered", (k, v), 2 * cp)
    whole = _sized(f"{NAME}.kv gathered, and dk, dv of the whole sequence", (k, v), 2 * cp)
    kept = (*in_fp8(c, (core.q, k, v)), *in_fp8(c, (core.out,), output=True), core.lse, second)
    sends = over_cp(c, "all_gather", k, v, times=cp)
    yield Op(
        NAME, (core.q, k, v), (core.out,), kept, (gathered,), (whole, *core.scratch), work=core.work,
        sends=sends, returns=(*sends, *over_cp(c, "reduce_scatter", k, v, times=cp)),
    )  # fmt: skip


def _two_levels(c: Context, core: _Core) -> Module[None]:
    """Heads are exchanged for tokens in the first level, with a ring over the second."""
    assert c.layout.hierarchical_context_parallel_sizes is not None
    yield from _exchanged(c, core, c.layout.hierarchical_context_parallel_sizes)


def _exchanged(c: Context, core: _Core, levels: tuple[int, ...] = ()) -> Module[None]:
    """Heads are exchanged for tokens among all ranks, or among those of the first of two levels."""
    exchanged = tuple(t.like(f"{t.name} after all-to-all") for t in (core.q, core.k, core.v))
    inner = core.out.like(f"{NAME}.output before all-to-all")
    reordered = _sized(f"{NAME}.q, k, v reordered", exchanged, 1)
    yield Op(f"{NAME}.all_to_all", (core.q, core.k, core.v), exchanged, forward=(reordered,), part=EXCHANGES[0])
    ring: Scratch = ()
    back: Scratch = ()
    q, k, v = exchanged
    if levels:
        ring, back = _ring(levels[1], q, k, v, inner)
    kept = (*in_fp8(c, exchanged), *in_fp8(c, (inner,), output=True), core.lse)
    yield Op(
        NAME, exchanged, (inner,), kept, ring, (*back, *core.scratch), work=core.work,
        sends=(*_exchange(c, levels, *exchanged), *_round(c, levels, k, v)),
        returns=(*_exchange(c, levels, *exchanged), *_round(c, levels, k, v, times=2)),
    )  # fmt: skip
    yield Op(
        f"{NAME}.all_to_all_back", (inner,), (core.out,), forward=(inner.like(f"{NAME}.output reordered"),), part=EXCHANGES[1],
        sends=_exchange(c, levels, inner), returns=_exchange(c, levels, inner),
    )  # fmt: skip


_STYLES: dict[str, Callable[[Context, _Core], Module[None]]] = {
    "p2p": _ring_of_keys,
    "all_gather": _all_gathered,
    "a2a": _exchanged,
    "a2a+p2p": _two_levels,
}


def _exchange(c: Context, levels: tuple[int, ...], *tensors: Tensor) -> Sends:
    """Heads exchanged for tokens, among all context-parallel ranks or those of the first level."""
    sends = over_cp(c, "alltoall", *tensors)
    return tuple(send._replace(ranks=levels[0]) for send in sends) if levels else sends


def _round(c: Context, levels: tuple[int, ...], k: Tensor, v: Tensor, times: int = 1) -> Sends:
    """Keys and values passed round the second level of context parallelism, if there is one."""
    if not levels:
        return ()
    ring = over_cp(c, "ring", k, v, times=times * levels[1])
    return tuple(send._replace(ranks=levels[1], stride=send.stride * levels[0]) for send in ring)


def _sized(name: str, like: tuple[Tensor, ...], times: int, over: int = 1) -> Tensor:
    """A buffer of several tensors' bytes, times and over some counts."""
    first = like[0]
    elements = ceil_div(sum(t.nbytes for t in like) * times, over * DTYPE_BYTES[first.dtype])
    return tensor(name, (Dim("elements", elements),), first.dtype)


def _ring(ranks: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> tuple[Scratch, Scratch]:
    """Scratch of a ring of ranks: received keys and values and one output per step; in backward ring buffers and one
    step's gradients. The output of a step past the own rank is half; on average (ranks + 1) / 2 of a whole one."""
    received = _sized(f"{NAME}.kv received from cp-1 ranks", (k, v), ranks - 1)
    steps = _sized(f"{NAME}.output per ring step", (out,), ranks + 1, 2)
    buffers = _sized(f"{NAME}.kv ring buffers and dkv", (k, v), 4)
    step = _sized(f"{NAME}.dq, dk, dv of one ring step", (q, k, v), 1)
    return (received, steps), (buffers, step)
