"""Biases of the experts' second linear, added to the rows of each expert and weighed with their probabilities.

Source: Megatron-LM `megatron/core/transformer/moe/experts.py` (TEGroupedMLP._apply_bias), since Megatron-Core 0.13.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor, ceil_div
from .context import Context
from .module import Module

NAME = "mlp.experts.bias"


def with_biases(c: Context, out: Tensor, probs: Tensor) -> Module[Tensor]:
    """The rows with their biases: expert by expert, in fp32 where the probabilities are, then joined and cast back."""
    pieces = out.view(f"{NAME}.rows of each expert", out.shape)
    yield Op(f"{NAME}.split", (out,), (pieces,))
    sums = out.like(f"{NAME}.sums", probs.dtype)
    rows = Dim("rows of one expert", ceil_div(out.shape[0].local, c.local_experts.local))
    product = c.new(f"{NAME}.product of one expert", rows, *out.shape[1:], dtype=probs.dtype)
    grads = (product.like(f"{NAME}.gradient times probabilities"), product.like(f"{NAME}.gradient times bias"))
    same = (pieces,) if sums.dtype == out.dtype else ()
    yield Op(f"{NAME}.add", (pieces, probs), (sums,), (probs,), (product,), grads, passes=same)
    joined = sums.like(f"{NAME}.joined")
    yield Op(f"{NAME}.join", (sums,), (joined,), passes=(sums,), holds=(out,))
    if joined.dtype == out.dtype:
        return joined
    result = out.like(f"{NAME}.output")
    yield Op(f"{NAME}.cast", (joined,), (result,), holds=(out,))
    return result
