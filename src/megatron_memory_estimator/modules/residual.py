"""Bias-dropout-add: the residual stream. Source: Megatron-LM `megatron/core/fusions/fused_bias_dropout.py`.

Nothing is kept without dropout; with dropout a one-byte mask. The gradient of the sum is the gradient of the residual.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Tensor
from .context import Context
from .module import Module


def bias_dropout_add(
    c: Context, name: str, x: Tensor, residual: Tensor, holds: tuple[Tensor, ...] = ()
) -> Module[Tensor]:
    """residual + dropout(x + bias); `holds` are alive until then."""
    out = c.residual(f"{name}.output")
    if c.model.hidden_dropout > 0:
        mask = x.like(f"{name}.dropout_mask", "bool")
        yield Op(name, (x, residual), (out,), (mask,), holds=holds, passes=(residual,), compiled=True)
    else:
        yield Op(name, reads=(x, residual), writes=(out,), holds=holds, passes=(x, residual))
    return out
