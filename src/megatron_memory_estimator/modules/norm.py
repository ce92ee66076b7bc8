"""Norms. Sources: TransformerEngine `pytorch/module/layernorm.py`, `rmsnorm.py`, `layernorm_linear.py`.

A norm keeps its input and one fp32 statistic per row (rsigma), LayerNorm a second one (mu).

Bias-dropout-add: the residual stream. Source: Megatron-LM `megatron/core/fusions/fused_bias_dropout.py`.

Nothing is kept without dropout; with dropout a one-byte mask. The gradient of the sum is the gradient of the residual.

RMS norms that PyTorch runs op by op in fp32, uncompiled: every intermediate of theirs stays.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/modeling_gemma4.py` (_gemma4_rms_norm).
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .module import GROUP, Module, recomputed


def norm_params(c: Context, name: str, width: Dim) -> Module[None]:
    """Weight of a norm, and bias of a LayerNorm; replicated over tp."""
    yield Param(f"{name}weight", (width,), matrix=False)
    if c.model.normalization == "LayerNorm":
        yield Param(f"{name}bias", (width,), matrix=False)


def before(c: Context) -> bool:
    """Whether attention and MLP have a norm before them."""
    return c.model.norm_placement != "post"


def behind(c: Context) -> bool:
    """Whether their last linears have a norm behind them."""
    return c.model.norm_placement != "pre"


def of_torch(c: Context) -> bool:
    """PyTorch's norms, which keep a strided input as it is: RMSNorm of the local spec, and LayerNorm without Apex.

    Source: Megatron-LM `megatron/core/models/backends.py` (LocalSpecProvider).
    """
    return not c.te and (c.model.normalization == "RMSNorm" or not c.training.apex)


def statistics(c: Context, name: str, rows: tuple[Dim, ...]) -> tuple[Tensor, ...]:
    """fp32 statistics that a norm keeps for its backward."""
    kept: tuple[Tensor, ...] = (c.new(f"{name}.rsigma", *rows, dtype="fp32"),)
    if c.model.normalization == "LayerNorm":
        kept += (c.new(f"{name}.mu", *rows, dtype="fp32"),)
    return kept


def separate_norm(c: Context, name: str, x: Tensor, hook: str) -> Module[Tensor]:
    """A norm of its own in front of a sub-layer, under the checkpoint that drops its output if there is one: until the backward of
    `hook` with recompute_modules layernorm; with mhc until that of the group, except in hybrid models."""
    t = c.training
    if t.recomputes("mhc") and c.model.stream == "several" and not c.model.hybrid:
        return (yield from recomputed(True, f"{name}.checkpoint", norm(c, name, x), GROUP))
    return (yield from recomputed(t.recomputes("layernorm"), f"{name}.checkpoint", norm(c, name, x), hook))


def norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """The normalized tensor, in the compute dtype. TransformerEngine's cast an fp32 residual stream first and keep the cast.

    Source: TransformerEngine `pytorch/ops/basic/rmsnorm.py`, `layer_norm.py` (op_forward).
    """
    out = x.like(f"{name}.output", c.dtype)
    if c.te and x.dtype != c.dtype:
        wide, x = x, x.like(f"{name}.input", c.dtype)
        yield Op(f"{name}.cast", (wide,), (x,))
    yield Op(name, reads=(x,), writes=(out,), saves=(x, *statistics(c, name, x.shape[:-1])))
    return out


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


def in_compute_dtype(c: Context, name: str, hidden: Tensor) -> Module[Tensor]:
    """The residual stream as a norm reads it."""
    x = hidden.like(f"{name}.input", c.dtype)
    yield Op(f"{name}.cast", (hidden,), (x,))
    return x


def value_norm(c: Context, name: str, value: Tensor) -> Module[Tensor]:
    """Values divided by their root mean square, without a weight: their fp32 copy and the root stay; with a power in place of the root
    what it takes too (Gemma 4 without experts)."""
    out = value.like(f"{name}.output")
    rows = ("mean square", "power") if c.model.eager_norms else ("root",)
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
