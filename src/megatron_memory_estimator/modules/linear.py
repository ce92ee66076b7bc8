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

from typing import Any

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, numel_of, round_up
from ..tape.work import Beside, Gemm, linear
from .adapters import adapted, adapter_params, adapters_of
from .context import Context
from .module import Module
from .norm import norm
from .quantization import quantized
from .sends import Sends, over_tp


def weight_grad(c: Context, weight: Param) -> tuple[Tensor, ...]:
    """The gradient of a weight as a tensor of its own, where the GEMM does not add into main_grad for good.

    With gradient accumulation fusion TransformerEngine 2.3 and later hands autograd a cached dummy (a persistent
    workspace, see `workspaces.py`); older versions allocate the dummy anew in each backward. With weight shards (GTP) TransformerEngine's
    linears write into a buffer that stays (`weight_shards.py`), and Megatron's, as without fusion, into a tensor of the model's dtype.
    """
    if c.layout.gtp > 1 and weight.gemm == "megatron":
        return in_flight(c, weight)
    if c.training.base_frozen or cached_wgrad(c, weight):
        return ()
    grouped = weight.split == "expert" and c.training.moe_grouped_gemm
    one = (Dim("experts", weight.copies),) if grouped else ()
    return (c.new(f"{weight.name}.wgrad", *one, *weight.shape),)


def in_flight(c: Context, weight: Param) -> tuple[Tensor, ...]:
    """The whole gradient of a weight of Megatron's own that its ranks share, and its copy with padded rows, until they are summed.

    Source: Megatron-LM `megatron/core/tensor_parallel/generalized_tensor_parallelism.py` (wgrad_reduce_scatter, _reduce_scatter).
    """
    found = c.new(f"{weight.name}.wgrad", *weight.shape)
    rows, *rest = weight.shape
    more = padded(rows.local, c.layout.gtp) - rows.local
    if not more:
        return (found,)
    return found, c.new(f"{weight.name}.wgrad padded", Dim(rows.name, rows.local + more), *rest)


ROWS = 16
"""Rows of a shard are a multiple of this in 16 bits (GTPRematConfig.pad_for_alignment)."""


def padded(rows: int, ways: int) -> int:
    """Rows of a weight as so many ranks share it."""
    return round_up(rows, ROWS * ways)


def cached_wgrad(c: Context, weight: Param) -> bool:
    """Whether the weight's gradient goes through a cached dummy.

    TransformerEngine 2.3 and later (pytorch/module/base.py); Megatron's own linears since Megatron-Core 0.14
    (megatron/core/tensor_parallel/layers.py).
    """
    t = c.training
    return t.gradient_accumulation_fusion and t.te >= (2, 3) and (weight.gemm == "te" or t.mcore >= (0, 14))


def linear_params(c: Context, name: str, out: Dim, inp: Dim, split: str, bias: bool) -> Module[Param]:
    """Weight [out, in] and bias [out] of a linear; `split` is "tp" or "replicated"."""
    recipe = c.recipe.name if c.recipe else ""
    weight = Param(f"{name}.weight", (out, inp), split=split, gemm="te" if c.te else "megatron", quantized=recipe)
    yield weight
    if bias:
        yield Param(f"{name}.bias", (out,), split="tp" if out.axes else "replicated", matrix=False)
    yield from adapter_params(c, name, weight)
    return weight


def grad_of(out: Tensor) -> Tensor:
    """The gradient of a tensor, as a tensor of its own."""
    return out.like(f"{out.name} grad")


USERBUFFERS = (".linear_qkv", ".linear_proj", ".linear_fc1", ".linear_fc2")
"""Linears with a userbuffer (TransformerEngine `pytorch/module/base.py`, initialize_ub: qkv, proj, fc1, fc2)."""


def in_userbuffers(c: Context, name: str) -> bool:
    """Whether a linear gathers and scatters in userbuffers, outside torch's allocator."""
    return c.training.tp_comm_overlap and c.te and name.endswith(USERBUFFERS)


def keeps_original(c: Context) -> bool:
    """Whether a linear can keep its 16-bit input, where that is kept anyway, instead of a quantized copy.

    Source: Megatron-LM `extensions/transformer_engine.py` (set_save_original_input): recipes other than delayed, from
    TransformerEngine 2.6 (nvfp4: 2.7) on.
    """
    if c.recipe is None or c.recipe.name == "delayed":
        return False
    return c.training.te >= ((2, 7) if c.recipe.name == "nvfp4" else (2, 6))


def requantized(c: Context, weight: Param) -> tuple[Tensor, ...]:
    """The quantized copy of a weight that is not cached: with torch FSDP2 every linear makes its own, in both directions.

    Source: TransformerEngine `pytorch/module/linear.py` (is_fsdp2).
    """
    if c.recipe is None or not c.training.use_torch_fsdp2 or c.training.low_precision_weights:
        return ()
    experts = (Dim("experts", weight.copies),) if weight.copies > 1 else ()
    return quantized(c.recipe, c.new(weight.name, *experts, *weight.shape), f"{weight.name} {c.recipe.name}")


def kept_input(
    c: Context, name: str, x: Tensor, *, original: bool = False, returned: bool = False
) -> tuple[Tensor, ...]:
    """What a linear keeps of its input: the input, or one quantized copy of it.

    `original`: the input itself although it is quantized, because it is kept anyway or shall be recomputed
    (set_save_original_input in Megatron-LM `extensions/transformer_engine.py`). `returned`: the output of the norm inside, which the
    linear returns to its adapter and keeps for that, though its weight is frozen (TransformerEngine `pytorch/module/layernorm_linear.py`,
    return_layernorm_output): under sequence parallelism the local part, beside the gathered one that the adapter keeps.
    """
    # only the gradient of a weight needs the input, and the weights are frozen
    if c.training.base_frozen and not returned:
        return ()
    if c.recipe is None or original:
        return (x,)
    return quantized(c.recipe, x, f"{name}.input {c.recipe.name}")


def other_orientation(c: Context, name: str, x: Tensor) -> tuple[Tensor, ...]:
    """The second quantized copy that block recipes make of a GEMM operand, alive during the op."""
    return quantized(c.recipe, x, f"{name} by rows") if c.recipe and c.recipe.both else ()


def quantized_grad(c: Context, name: str, grad: Tensor) -> tuple[Tensor, ...]:
    """The output gradient in low precision, by rows for the input's gradient and by columns for the weight's."""
    if c.recipe is None:
        return ()
    return tuple(t for way in ("rows", "columns") for t in quantized(c.recipe, grad, f"{name}.output grad by {way}"))


def gemm(c: Context, weight: Param, rows: Any, *, casts: tuple[bool, bool] = (True, True)) -> Gemm:
    """The product of a weight and so many rows in the recipe of this layer; with PEFT the weight is not trained."""
    recipe = c.recipe.name if c.recipe and weight.quantized else ""
    return linear(weight, rows, recipe, trained=not c.training.base_frozen)._replace(casts=casts)


def rows_of(x: Tensor, features: int = 1) -> int:
    """Rows of a tensor whose last dims are features."""
    return numel_of(x.shape[:-features])


def _in_low_precision(c: Context, x: Tensor) -> tuple[Tensor, ...]:
    """A linear's operand as it is gathered: quantized, where the linear is."""
    return quantized(c.recipe, x, x.name) if c.recipe else (x,)


def column_sends(
    c: Context, name: str, width: Dim, *, gathers: bool = True, quantizes: bool = True
) -> tuple[Sends, Sends]:
    """Collectives of a column-parallel linear with an input of a width, forward and backward.

    The backward gathers the input once more for the weight's gradient, beside the product for the input's, and scatters that.
    """
    if not c.tp_many:
        return (), ()
    whole = c.region(f"{name}.input gathered", width)
    if not c.sp_many:
        return (), over_tp(c, "all_reduce", whole)
    if not gathers:
        return (), over_tp(c, "reduce_scatter", whole)
    hidden: Beside = "userbuffers" if in_userbuffers(c, name) else ""
    operand = _in_low_precision(c, whole) if quantizes else (whole,)
    gather = over_tp(c, "all_gather", *operand, beside=hidden)
    again = over_tp(c, "all_gather", *operand, beside=hidden or "wgrad") if not c.training.base_frozen else ()
    return gather, (*again, *over_tp(c, "reduce_scatter", whole, beside=hidden))


def row_sends(c: Context, name: str, whole: Tensor) -> tuple[Sends, Sends]:
    """Collectives of a row-parallel linear, forward and backward; `whole` is its output on all tensor-parallel ranks."""
    if not c.tp_many:
        return (), ()
    if not c.sp_many:
        return over_tp(c, "all_reduce", whole), ()
    hidden: Beside = "userbuffers" if in_userbuffers(c, name) else ""
    return (
        over_tp(c, "reduce_scatter", whole, beside=hidden),
        over_tp(c, "all_gather", *_in_low_precision(c, whole), beside=hidden),
    )


def wgrad_operands(c: Context, name: str, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Input and output gradient as the weight's gradient takes them."""
    if c.recipe is None:
        return x, grad
    return (*kept_input(c, name, x), *quantized(c.recipe, grad, f"{name}.output grad kept"))


def column_linear(
    c: Context,
    name: str,
    x: Tensor,
    weight: Param,
    *,
    gathers: bool = True,
    original: bool = False,
    normed: bool = False,
) -> Module[Tensor]:
    """Output [seq/cp, b, out/tp]: the input is sharded over the sequence, the output over features.

    `normed`: TransformerEngine has the norm before it in the same module.
    """
    out = c.region(f"{name}.output", weight.shape[0])
    gathered: tuple[Tensor, ...] = ()
    grads: tuple[Tensor, ...] = ()
    if c.sp_many and gathers and not in_userbuffers(c, name):
        if c.te:
            gathered = (c.region(f"{name}.input gathered", weight.shape[1]),)
            if c.recipe:  # gathered in low precision
                gathered = quantized(c.recipe, gathered[0], gathered[0].name)
        grads = (c.region(f"{name}.input grad before reduce-scatter", weight.shape[1]),)
    sends, returns = column_sends(c, name, weight.shape[1], gathers=gathers)
    yield Op(
        name,
        reads=(x,),
        writes=(out,),
        saves=kept_input(c, name, x, original=original, returned=normed and c.te and bool(adapters_of(c, name))),
        forward=(*gathered, *other_orientation(c, f"{name}.input", x), *requantized(c, weight)),
        backward=(*gathered, *grads, *quantized_grad(c, name, out), *weight_grad(c, weight), *requantized(c, weight)),
        wgrad=wgrad_operands(
            c, name, c.region(f"{name}.input gathered", weight.shape[1]) if c.sp_many and gathers else x, grad_of(out)
        ),
        work=(gemm(c, weight, rows_of(out)),),
        sends=sends,
        returns=returns,
    )
    return (yield from adapted(c, name, x, out, weight, gathers=c.sp_many and gathers))


def row_linear(
    c: Context, name: str, x: Tensor, weight: Param, *, original: bool = False, normed: bool = False
) -> Module[Tensor]:
    """Output on the residual stream: the input is sharded over features, the output over the sequence.

    `normed`: with a norm behind it, in the same module (NVIDIA-NeMo/Megatron-Bridge `models/common/te_layers.py`).
    """
    out = c.stream(f"{name}.output", c.hidden)
    partial: tuple[Tensor, ...] = ()
    gathered: tuple[Tensor, ...] = ()
    whole = c.region(f"{name}.output grad gathered", c.hidden)
    if c.sp_many and not in_userbuffers(c, name):
        partial = (c.region(f"{name}.output before reduce-scatter", c.hidden),)
        if c.te and c.recipe is None:
            gathered = (whole,)
    sends, returns = row_sends(c, name, whole)
    yield Op(
        name,
        reads=(x,),
        writes=(out,),
        saves=kept_input(c, name, x, original=original),
        forward=(*partial, *other_orientation(c, f"{name}.input", x), *requantized(c, weight)),
        backward=(*gathered, *quantized_grad(c, name, whole), *weight_grad(c, weight), *requantized(c, weight)),
        wgrad=wgrad_operands(c, name, x, whole if c.sp_many else grad_of(out)),
        work=(gemm(c, weight, rows_of(whole)),),
        sends=sends,
        returns=returns,
    )
    if normed:
        out = yield from norm(c, f"{name}.post_layernorm", out)
    return (yield from adapted(c, name, x, out, weight))


def duplicated_linear(c: Context, name: str, x: Tensor, weight: Param, *, original: bool = False) -> Module[Tensor]:
    """Output on the input's tokens: every tensor-parallel rank has the whole weight."""
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(
        name, reads=(x,), writes=(out,), saves=kept_input(c, name, x, original=original),
        forward=(*other_orientation(c, f"{name}.input", x), *requantized(c, weight)),
        backward=(*quantized_grad(c, name, out), *weight_grad(c, weight), *requantized(c, weight)),
        wgrad=wgrad_operands(c, name, x, grad_of(out)), work=(gemm(c, weight, rows_of(out)),),
    )  # fmt: skip
    return (yield from adapted(c, name, x, out, weight))
