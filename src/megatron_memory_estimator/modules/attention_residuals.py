"""Attention residuals (Kimi K3): what a sub-layer reads is a weighted sum of the bank of prefixes and the prefix.

    rows and prefix [s, b, r + 1, h] -> fp32 -> norm -> score of each -> softmax -> weighted sum [s, b, h]

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_ops.py` (attn_res_aggregate), `kimi_k3_layers.py`: PyTorch's
operations, uncompiled. The prefix joins the bank behind the first sum of a block's first layer, where the bank has rows.
"""

from __future__ import annotations

from ..job.model import Model
from ..tape.ops import Op, Unit
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .module import Module

CALLS = 14
"""Functions of PyTorch: concatenation, casts, square, mean, sum, root, products, score, softmax, weighted sum."""


def bank(c: Context, name: str, rows: int) -> Tensor:
    """A bank of so many rows."""
    return c.new(name, c.seq_sp, c.batch, Dim("bank rows", rows), c.hidden)


def rows_behind(model: Model) -> int:
    """Rows of the bank behind a layer."""
    return model.bank_rows + model.bank_joined


def residual_params(c: Context, *names: str) -> Module[None]:
    """Norm and score of each sum; replicated, and of one row."""
    for name in names:
        yield Param(f"{name}_res_norm.weight", (c.hidden,), matrix=False)
        yield Param(f"{name}_res_proj.weight", (c.hidden,))


def aggregated(c: Context, name: str, prefix: Tensor, rows: int) -> Module[Tensor]:
    """The weighted sum of so many rows of the bank and the prefix."""
    out = prefix.like(f"{name}_res.output", c.dtype)
    shape = (*prefix.shape[:-1], Dim("bank rows+1", rows + 1))
    values = c.new(f"{name}_res.values", *shape, c.hidden, dtype="fp32")
    kept = (
        values,
        values.like(f"{name}_res.normed"),
        c.new(f"{name}_res.rsigma", *shape, dtype="fp32"),
        c.new(f"{name}_res.probs", *shape, dtype="fp32"),
        c.new(f"{name}_res.weights fp32", Dim("norm, score and their product", 3), c.hidden, dtype="fp32"),
    )
    joined = c.new(f"{name}_res.bank and prefix", *shape, c.hidden)
    scratch = (joined, values.like(f"{name}_res.product"))
    grads = (joined.like(f"{name}_res.bank and prefix grad"), *(values.like(f"{name}_res.grad {i}") for i in range(3)))
    yield Op(f"{name}_res", (prefix,), (out,), kept, scratch, grads, calls=CALLS)
    return out


def beside_layer(c: Context) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The bank while a layer runs forward, and its gradient while it runs backward."""
    rows = rows_behind(c.model)
    if not rows:
        return (), ()
    return (bank(c, "attention residual bank", rows),), (bank(c, "attention residual bank grad", rows),)


def keeping_bank(c: Context, unit: Unit, rows: int, *, received: bool) -> Unit:
    """A unit that keeps the bank in front of it for its backward; `received` from the stage before, with the prefix in one tensor.

    A checkpoint keeps what its layers read, a bank once for all checkpoints that read the same one; a pipeline stage keeps what it got.
    """
    assert unit.entry is not None
    kept = (bank(c, "attention residual bank kept", rows),)
    reads = (unit.entry,) if received else ()
    op = Op("bank", reads, (), (*reads, *kept), stops=reads, part="attn_norm")
    return unit._replace(items=(op, *unit.items))
