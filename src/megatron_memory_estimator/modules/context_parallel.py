"""Core attention under context parallelism: ring (p2p), Ulysses (a2a), all-gather, and the two-level a2a+p2p.

Source: TransformerEngine `pytorch/attention/dot_product_attention/context_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..tape.ops import Op, Part
from ..tape.tensor import DTYPE_BYTES, Dim, Tensor, ceil_div, largest, smallest, tensor
from ..tape.work import Work
from .context import Context
from .module import Module
from .sends import Sends, over_cp

NAME = "self_attention.core_attention"
EXCHANGES: tuple[Part, Part] = ("heads_out", "heads_back")
"""The all-to-alls of Ulysses context parallelism."""
Scratch = tuple[Tensor, ...]


def in_fp8(c: Context, tensors: Scratch, *, output: bool = False) -> Scratch:
    """What fp8 attention keeps of its operands: fp8 copies; of its output only with delayed scaling.

    Source: TransformerEngine `pytorch/attention/dot_product_attention/` (backends.py, context_parallel.py).
    """
    if not (c.recipe and c.training.fp8_dot_product_attention) or (output and c.recipe.name != "delayed"):
        return tensors
    return tuple(t.like(f"{t.name} fp8", "fp8") for t in tensors)


class Core(NamedTuple):
    """A fused core under context parallelism: what it reads and writes, its statistics, the scratch of its backward, its work."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    scratch: Scratch
    work: tuple[Work, ...]


def own_storage(*packed: Tensor) -> Module[Scratch]:
    """Views of one packed tensor as tensors of their own (`backends.py`, FusedAttention.forward)."""
    copies = {t.name: t.like(f"{t.name} contiguous") for t in packed if t.storage != t.name}
    if copies:
        yield Op(f"{NAME}.contiguous", tuple(t for t in packed if t.name in copies), tuple(copies.values()))
    return tuple(copies.get(t.name, t) for t in packed)


def _ring_of_keys(c: Context, core: Core) -> Module[None]:
    """Keys and values are passed round."""
    kv = _sized(f"{NAME}.kv", (core.k, core.v), 1)
    yield Op(f"{NAME}.join_kv", (core.k, core.v), (kv,))
    ring, back = _ring(c, c.layout.cp, core, core.q, core.k, core.v, core.out)
    kept = (*in_fp8(c, (core.q, kv)), *in_fp8(c, (core.out,), output=True), core.lse)
    yield Op(
        NAME, (core.q, kv), (core.out,), kept, ring, (*back, *core.scratch), (core.k, core.v), work=core.work,
        sends=over_cp(c, "ring", kv, times=c.layout.cp), returns=over_cp(c, "ring", kv, times=2 * c.layout.cp),
    )  # fmt: skip


def _all_gathered(c: Context, core: Core) -> Module[None]:
    """Every rank gathers the keys and values of the whole sequence, and works on one half of its queries after the other.

    Forward: the first is put in order beside both as gathered, or both in order beside the outputs of both halves. Backward, the
    gradients of the whole sequence, all gathered again, those of each half (together half a rank's keys more than the sequence), and
    the gradient of the queries a second time: with the kernel's scratch of one half, or the first gradient put in order.
    """
    cp, k, v, one = c.layout.cp, core.k, core.v, core.out.nbytes
    whole, pair = cp * (k.nbytes + v.nbytes), k.nbytes + v.nbytes
    halves = tuple(_sized(f"{core.lse.name} of {half} half", (core.lse,), 1, 2) for half in ("one", "the other"))
    forward = largest(whole + cp * largest(k.nbytes, v.nbytes) - one, whole + 2 * one)
    steps = 3 * whole + pair // 2 + core.q.nbytes - pair
    backward = steps + largest(sum(t.nbytes for t in core.scratch) // 2, cp * largest(k.nbytes, v.nbytes))
    kept = (*in_fp8(c, (core.q, k, v)), *in_fp8(c, (core.out,), output=True), *halves)
    sends = over_cp(c, "all_gather", k, v, times=cp)
    yield Op(
        NAME, (core.q, k, v), (core.out,), kept, (_of_bytes("kv gathered, outputs of both halves", core.q, forward),),
        (_of_bytes("kv gathered, gradients of the whole sequence", core.q, backward),), work=core.work,
        sends=sends, returns=(*sends, *over_cp(c, "reduce_scatter", k, v, times=cp)),
    )  # fmt: skip


def _two_levels(c: Context, core: Core) -> Module[None]:
    """Heads are exchanged for tokens in the first level, with a ring over the second."""
    assert c.layout.hierarchical_context_parallel_sizes is not None
    yield from _exchanged(c, core, c.layout.hierarchical_context_parallel_sizes)


def _exchanged(c: Context, core: Core, levels: tuple[int, ...] = ()) -> Module[None]:
    """Heads are exchanged for tokens among all ranks, or among those of the first of two levels."""
    exchanged = tuple(t.like(f"{t.name} after all-to-all") for t in (core.q, core.k, core.v))
    inner = core.out.like(f"{NAME}.output before all-to-all")
    sizes = [t.nbytes for t in exchanged]
    # one after the other is sent, received while the one before is put in order; what was sent stays: the most is with k, or with q
    with_key = sum(sizes) + largest(sizes[1], sizes[2])
    sent = _of_bytes("q, k and v sent and received", core.q, largest(with_key, 2 * sizes[0] + sizes[1] - sizes[2]))
    # one node of autograd: what it keeps lives on, and the output's gradient (a checkpoint around the core holds that) with one in order;
    # the gradients of q, k and v are reordered, all three, then one after the other is sent and put in order
    moved = largest(2 * sizes[0] + sizes[1], sum(sizes) + largest(sizes[1], sizes[2]))
    kept_grads = 1 if c.training.recomputes("core_attn") else 2
    returned = sum(sizes) + moved + (1 + kept_grads) * inner.nbytes + core.lse.nbytes
    yield Op(
        f"{NAME}.all_to_all", (core.q, core.k, core.v), exchanged, forward=(sent,),
        backward=(_of_bytes("gradients on their way back to their heads", core.q, returned),), part=EXCHANGES[0],
    )  # fmt: skip
    ring: Scratch = ()
    back: Scratch = ()
    q, k, v = exchanged
    if levels:
        ring, back = _ring(c, levels[1], core, q, k, v, inner)
    kept = (*in_fp8(c, exchanged), *in_fp8(c, (inner,), output=True), core.lse)
    yield Op(
        NAME, exchanged, (inner,), kept, ring, (*back, *core.scratch), work=core.work,
        sends=(*_exchange(c, levels, *exchanged), *_round(c, levels, k, v)),
        returns=(*_exchange(c, levels, *exchanged), *_round(c, levels, k, v, times=2)),
    )  # fmt: skip
    ordered = _sized(f"{NAME}.output reordered and received", (inner,), 2)
    sends = _exchange(c, levels, inner)
    yield Op(
        f"{NAME}.all_to_all_back", (inner,), (core.out,), forward=(ordered,), holds=(core.q, core.k, core.v, *exchanged), part=EXCHANGES[1],
        sends=sends, returns=sends,
    )  # fmt: skip


STYLES: dict[str, Callable[[Context, Core], Module[None]]] = {
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


def _of_bytes(name: str, like: Tensor, nbytes: int) -> Tensor:
    """Buffers of so many bytes together."""
    return tensor(f"{NAME}.{name}", (Dim("elements", nbytes // DTYPE_BYTES[like.dtype]),), like.dtype)


def _ring(c: Context, ranks: int, core: Core, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> tuple[Scratch, Scratch]:
    """Scratch of a ring of ranks in forward and backward, beside the joined keys and values and the output that stay, on its last rank,
    whose steps all have whole outputs: received keys and values and the outputs of steps; ring buffers and one step's gradients.

    From TransformerEngine 2.20 on, keys and values wait in two buffers and two variables, and outputs in two: the most is when the
    next buffer is made (at most 4 pairs, 3 outputs), or a step's output (3 pairs, 4 outputs). Before, all stay until the end. Statistics
    of two steps, or of all, are there with a copy of their sum and four tensors of its correction.
    """
    pair, one = _sized(f"{NAME}.kv", (k, v), 1).nbytes, out.nbytes
    if c.training.te >= (2, 20):
        sent = smallest(ranks, 4) * pair + 3 * one
        computed = smallest(ranks - 1, 3) * pair + smallest(ranks + 1, 4) * one
        most = largest(sent, computed) - pair - one
    else:
        most = (ranks - 1) * pair + ranks * one
    steps = _sized(f"{NAME}.statistics of ring steps", (core.lse,), (2 if c.training.te >= (2, 20) else ranks) + 5)
    received = _of_bytes("kv received, outputs of ring steps", q, most)
    # two pairs of kv and dkv; one dkv is the gradient
    buffers = _sized(f"{NAME}.kv ring buffers and the other dkv", (k, v), 3)
    step = _sized(f"{NAME}.dq, dk, dv of one ring step", (q, k, v), 1)
    return (received, steps), (buffers, step)
