"""Bias-dropout-add: the residual stream. Source: Megatron-LM `megatron/core/fusions/fused_bias_dropout.py`.

Nothing is kept without dropout; with dropout a one-byte mask. The gradient of the sum is the gradient of the residual.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Tensor
from .context import Context
from .module import Module


def bias_dropout_add(
    c: Context, name: str, x: Tensor, residual: Tensor, holds: tuple[Tensor, ...] = (), *, biased: bool = False
) -> Module[Tensor]:
    """residual + dropout(x + bias); `holds` are alive until then. `biased`: the linear before it left its bias to this.

    Fused it is one kernel. Else each of its steps makes a tensor, and the input and the sum with the bias are variables to the end.
    """
    out = c.residual(f"{name}.output")
    dropout = c.model.hidden_dropout > 0
    casts = x.dtype != out.dtype
    if not c.training.bias_dropout_fusion:
        if casts:
            wide = x.like(f"{name}.input in {out.dtype}", out.dtype)
            yield Op(f"{name}.widen", (x,), (wide,))
            x, holds = wide, (*holds, x)
        if biased:
            total = x.like(f"{name}.input and bias")
            yield Op(f"{name}.add_bias", (x,), (total,), holds=holds, passes=(x,))
            x, holds = total, holds if casts else (*holds, x)
        if dropout:
            dropped, mask = x.like(f"{name}.dropped"), x.like(f"{name}.dropout_mask", "bool")
            yield Op(f"{name}.dropout", (x,), (dropped,), (mask,), holds=holds)
            x, holds = dropped, (*holds, x)
        yield Op(name, (x, residual), (out,), holds=holds, passes=(x, residual))
    elif dropout:
        mask = x.like(f"{name}.dropout_mask", "bool")
        yield Op(name, (x, residual), (out,), (mask,), holds=holds, passes=(residual,), compiled=True)
    else:
        yield Op(name, (x, residual), (out,), holds=holds, passes=(residual,) if casts else (x, residual))
    return out
