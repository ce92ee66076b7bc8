"""RMS norms that PyTorch runs op by op in fp32, uncompiled: every intermediate of theirs stays.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/modeling_gemma4.py` (_gemma4_rms_norm).
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Tensor
from .context import Context
from .module import Module

CALLS = 8
"""Functions of PyTorch: two casts, square, mean, sum, power, product, cast back."""


def eager_norm(c: Context, name: str, x: Tensor, *, weighted: bool = True) -> Module[Tensor]:
    """The normalized tensor in the dtype of its input.

    Kept in fp32: the input for the product and again for its square, what a row is divided by, before and after the power, and with a
    weight its copy and the normed rows.
    """
    out = x.like(f"{name}.output")
    row = x.shape[:-1]
    kept = [x.like(f"{name}.input fp32 {i}", "fp32") for i in range(2)]
    kept += [c.new(f"{name}.mean square", *row, dtype="fp32"), c.new(f"{name}.rsigma", *row, dtype="fp32")]
    wide = x.like(f"{name}.square fp32", "fp32")
    scratch: tuple[Tensor, ...] = (wide,)
    if weighted:
        kept += [x.like(f"{name}.normed fp32", "fp32"), c.new(f"{name}.weight fp32", x.shape[-1], dtype="fp32")]
        scratch = (wide, x.like(f"{name}.output fp32", "fp32"))
    grads = tuple(x.like(f"{name}.grad fp32 {i}", "fp32") for i in range(3))
    yield Op(name, (x,), (out,), tuple(kept), scratch, grads, calls=CALLS + 2 * weighted)
    return out


def value_norm(c: Context, name: str, value: Tensor) -> Module[Tensor]:
    """Values divided by their root mean square, without a weight: their fp32 copy and the root stay; with a power in place of the root
    what it takes too (Gemma 4 without experts)."""
    out = value.like(f"{name}.output")
    rows = ("mean square", "power") if c.model.gemma4_dense else ("root",)
    kept = (
        value.like(f"{name}.input fp32", "fp32"),
        *(c.new(f"{name}.{row}", *value.shape[:-1], dtype="fp32") for row in rows),
    )
    scratch = (value.like(f"{name}.square fp32", "fp32"),)
    grads = tuple(value.like(f"{name}.grad fp32 {i}", "fp32") for i in range(2))
    yield Op(name, (value,), (out,), kept, scratch, grads, calls=CALLS - 1)
    return out


def dropped_norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """A norm whose output nothing reads in the end: what it would keep goes with it, and what takes its place is as large."""
    out = x.like(f"{name}.output of an earlier layer")
    wide = tuple(x.like(f"{name}.fp32 {i}", "fp32") for i in range(4))
    yield Op(name, (x,), (out,), forward=(*wide, x.like(f"{name}.output")), calls=CALLS)
    return out
