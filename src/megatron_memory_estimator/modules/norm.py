"""Norms. Sources: TransformerEngine `pytorch/module/layernorm.py`, `rmsnorm.py`, `layernorm_linear.py`.

A norm keeps its input and one fp32 statistic per row (rsigma), LayerNorm a second one (mu).
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
    if t.recomputes("mhc") and c.model.enable_mhc_connections and not c.model.hybrid:
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
