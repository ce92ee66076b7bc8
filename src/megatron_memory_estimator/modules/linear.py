"""Tensor-parallel linears of TransformerEngine and of Megatron-Core.

Sources: TransformerEngine `pytorch/module/linear.py`, `layernorm_linear.py`; Megatron-LM
`megatron/core/tensor_parallel/layers.py` (ColumnParallelLinear, RowParallelLinear,
LinearWithGradAccumulationAndAsyncCommunication).

A linear keeps its own input. With sequence parallelism a column-parallel linear gathers its input for the GEMM in both
directions (into a buffer of its own with TransformerEngine, into the persistent "mpu" buffer with Megatron's linear) and
reduce-scatters the input gradient; a row-parallel linear reduce-scatters its output and gathers the output gradient. With
`tp_comm_overlap` the linears of attention and dense MLP do all that in TransformerEngine's userbuffers, outside torch.
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


def grad_of(out: Tensor) -> Tensor:
    """The gradient of a tensor, as a tensor of its own."""
    return out.like(f"{out.name} grad")


USERBUFFERS = (".linear_qkv", ".linear_proj", ".linear_fc1", ".linear_fc2")
"""Linears with a userbuffer (TransformerEngine `pytorch/module/base.py`, initialize_ub: qkv, proj, fc1, fc2)."""


def in_userbuffers(c: Context, name: str) -> bool:
    """Whether a linear gathers and scatters in userbuffers, outside torch's allocator."""
    return c.training.tp_comm_overlap and c.te and name.endswith(USERBUFFERS)


def column_linear(c: Context, name: str, x: Tensor, weight: Param, *, gathers: bool = True) -> Module[Tensor]:
    """Output [seq/cp, b, out/tp]: the input is sharded over the sequence, the output over features."""
    out = c.region(f"{name}.output", weight.shape[0])
    gathered: tuple[Tensor, ...] = ()
    grads: tuple[Tensor, ...] = ()
    if c.sp_many and gathers and not in_userbuffers(c, name):
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
        wgrad=(c.region(f"{name}.input gathered", weight.shape[1]) if c.sp_many and gathers else x, grad_of(out)),
    )
    return out


def row_linear(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """Output on the residual stream: the input is sharded over features, the output over the sequence."""
    out = c.stream(f"{name}.output", c.hidden)
    partial: tuple[Tensor, ...] = ()
    gathered: tuple[Tensor, ...] = ()
    if c.sp_many and not in_userbuffers(c, name):
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
        wgrad=(x, c.region(f"{name}.output grad gathered", c.hidden) if c.sp_many else grad_of(out)),
    )
    return out


def duplicated_linear(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """Output on the input's tokens: every tensor-parallel rank has the whole weight."""
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(name, reads=(x,), writes=(out,), saves=(x,), backward=weight_grad(c, weight), wgrad=(x, grad_of(out)))
    return out
