"""Tensor-parallel linears of TransformerEngine and of Megatron-Core.

Sources: TransformerEngine `pytorch/module/linear.py`, `layernorm_linear.py`; Megatron-LM
`megatron/core/tensor_parallel/layers.py` (ColumnParallelLinear, RowParallelLinear,
LinearWithGradAccumulationAndAsyncCommunication).

A linear keeps its own input. With sequence parallelism a column-parallel linear gathers its input for the GEMM in both
directions (into a buffer of its own with TransformerEngine, into the persistent "mpu" buffer with Megatron's linear) and
reduce-scatters the input gradient; a row-parallel linear reduce-scatters its output and gathers the output gradient.
"""

from __future__ import annotations

from ..context import Context, Module
from ..tape import Op
from ..tensor import Dim, Param, Tensor


def weight_grad(c: Context, weight: Param) -> tuple[Tensor, ...]:
    """The gradient of a weight as a tensor of its own, where the GEMM does not add into main_grad for good.

    With gradient accumulation fusion TransformerEngine 2.3 and later hands autograd a cached dummy (a persistent
    workspace, see `workspaces.py`); older versions allocate the dummy anew in each backward.
    """
    if cached_wgrad(c, weight):
        return ()
    grouped = weight.split == "expert" and c.training.moe_grouped_gemm
    one = (Dim("experts", weight.copies),) if grouped else ()
    return (c.new(f"{weight.name}.wgrad", *one, *weight.shape),)


def cached_wgrad(c: Context, weight: Param) -> bool:
    """Whether the weight's gradient goes through a cached dummy.

    TransformerEngine 2.3 and later (pytorch/module/base.py); Megatron's own linears since Megatron-Core 0.14
    (megatron/core/tensor_parallel/layers.py).
    """
    t = c.training
    return t.gradient_accumulation_fusion and t.te >= (2, 3) and (weight.gemm == "te" or t.mcore >= (0, 14))


def linear_params(c: Context, name: str, out: Dim, inp: Dim, split: str, bias: bool) -> Module[Param]:
    """Weight [out, in] and bias [out] of a linear; `split` is "tp" or "replicated"."""
    weight = Param(f"{name}.weight", (out, inp), split=split, gemm="te" if c.te else "megatron")
    yield weight
    if bias:
        yield Param(f"{name}.bias", (out,), split="tp" if out.axes else "replicated", matrix=False)
    return weight


def column_linear(c: Context, name: str, x: Tensor, weight: Param, *, gathers: bool = True) -> Module[Tensor]:
    """Output [seq/cp, b, out/tp]: the input is sharded over the sequence, the output over features."""
    out = c.region(f"{name}.output", weight.shape[0])
    gathered: tuple[Tensor, ...] = ()
    grads: tuple[Tensor, ...] = ()
    if c.sp_many and gathers:
        if c.te:
            gathered = (c.region(f"{name}.input gathered", weight.shape[1]),)
        grads = (c.region(f"{name}.input grad before reduce-scatter", weight.shape[1]),)
    yield Op(
        name,
        reads=(x,),
        writes=(out,),
        saves=(x,),
        forward=gathered,
        backward=(*gathered, *grads, *weight_grad(c, weight)),
    )
    return out


def row_linear(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """Output on the residual stream: the input is sharded over features, the output over the sequence."""
    out = c.stream(f"{name}.output", c.hidden)
    partial: tuple[Tensor, ...] = ()
    gathered: tuple[Tensor, ...] = ()
    if c.sp_many:
        partial = (c.region(f"{name}.output before reduce-scatter", c.hidden),)
        if c.te:
            gathered = (c.region(f"{name}.output grad gathered", c.hidden),)
    yield Op(
        name,
        reads=(x,),
        writes=(out,),
        saves=(x,),
        forward=partial,
        backward=(*gathered, *weight_grad(c, weight)),
    )
    return out


def duplicated_linear(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """Output on the input's tokens: every tensor-parallel rank has the whole weight."""
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(name, reads=(x,), writes=(out,), saves=(x,), backward=weight_grad(c, weight))
    return out
