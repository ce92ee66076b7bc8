"""Linears that read one gathered input: what they read is kept once, and nothing is sent by each of them (Kimi K3).

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py`.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Param, Tensor
from .context import Context
from .linear import gemm, kept_input, rows_of, weight_grad
from .module import Module
from .sends import over_tp


def gathered_input(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """All tokens of the tensor-parallel region, kept whole; the gradients of all that read it are summed over the ranks at once."""
    if not c.tp_many:
        return x
    whole = c.region(f"{name}.input gathered", c.hidden)
    if c.sp_many:
        sends, returns = over_tp(c, "all_gather", whole), over_tp(c, "reduce_scatter", whole)
    else:
        whole, sends, returns = x.view(whole.name, x.shape), (), over_tp(c, "all_reduce", whole)
    yield Op(f"{name}.gather_input", (x,), (whole,), passes=() if c.sp_many else (x,), sends=sends, returns=returns)
    return whole


def projected(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """Output on the input's tokens."""
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(
        name,
        (x,),
        (out,),
        kept_input(c, name, x),
        backward=weight_grad(c, weight),
        work=(gemm(c, weight, rows_of(out)),),
    )
    return out


def split_norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """A norm op by op: its input in fp32, a statistic of each row and the normed rows without the weight stay."""
    out = x.like(f"{name}.output")
    kept = (
        x.like(f"{name}.input fp32", "fp32"),
        c.new(f"{name}.rsigma", *x.shape[:-1], dtype="fp32"),
        x.like(f"{name}.normed"),
    )
    scratch = (x.like(f"{name}.square", "fp32"),)
    grads = (x.like(f"{name}.grad fp32", "fp32"), x.like(f"{name}.second grad fp32", "fp32"))
    yield Op(name, (x,), (out,), kept, scratch, grads, calls=7)
    return out
