"""Experts as one fused op of TransformerEngine: fc1, activation times probability, fc2, in mxfp8 or nvfp4.

Source: TransformerEngine `pytorch/ops/fused/grouped_mlp.py`; Megatron-LM `megatron/core/transformer/moe/experts.py`
(use_transformer_engine_op_fuser). Other precisions run the ops one by one and keep what the unfused experts keep.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .linear import gemm, grad_of, kept_input, other_orientation, quantized_grad, weight_grad, wgrad_operands
from .module import Module

FUSED = ("mxfp8", "nvfp4")
"""Recipes that the fused op exists for."""


def fuses(c: Context) -> bool:
    """Whether the experts are one op."""
    return c.training.use_transformer_engine_op_fuser and c.recipe is not None and c.recipe.name in FUSED


def fused_experts(
    c: Context, tokens: Tensor, probs: Tensor | None, rows: Dim, fc1: Param, fc2: Param
) -> Module[Tensor]:
    """Output rows of a rank's experts; inputs of both GEMMs are kept in low precision, the output of fc1 in 16 bits.

    mxfp8 keeps the inputs by columns; nvfp4 both orientations, and passes the activation and its gradient through 16 bits.
    Squared ReLU with moe_act recomputation makes the input of fc2 again.
    """
    name = "mlp.experts.grouped_mlp"
    nvfp4 = c.recipe is not None and c.recipe.name == "nvfp4"
    wide = c.new(f"{name}.fc1 output", rows, fc1.shape[0])
    act = c.new(f"{name}.activation output", rows, fc2.shape[1])
    out = c.new(f"{name}.output", rows, fc2.shape[0])
    again = c.training.recomputes("moe_act")
    inputs = [(f"{name}.fc1", tokens), (f"{name}.fc2", act)]
    kept = [wide]
    scratch: list[Tensor] = []
    for label, x in inputs:
        rowwise = other_orientation(c, f"{label}.input", x)
        if not (again and x is act):
            kept += kept_input(c, label, x)
        if nvfp4 and not (again and x is act):
            kept += rowwise
        else:
            scratch += rowwise
    reads = (tokens,) if probs is None else (tokens, probs)
    yield Op(
        name, reads, (out,), (*kept, *reads[1:]), (*scratch, *((act,) if nvfp4 else ())),
        (*quantized_grad(c, f"{name}.fc2", out), *quantized_grad(c, f"{name}.fc1", wide),
         *((grad_of(wide),) if nvfp4 else ()), *(kept_input(c, f"{name}.fc2", act) if again else ()),
         *weight_grad(c, fc1), *weight_grad(c, fc2)),
        wgrad=(*wgrad_operands(c, f"{name}.fc1", tokens, grad_of(wide)), *wgrad_operands(c, f"{name}.fc2", act, grad_of(out))),
        work=(  # the GEMMs quantize what is between them
            gemm(c, fc1, rows.local * c.filled, casts=(True, False)), gemm(c, fc2, rows.local * c.filled, casts=(False, True)),
        ),
    )  # fmt: skip
    return out
