"""Norms on query and key: per head, over the whole projection, or over a rank's part of it with sums over all ranks.

Sources: Megatron-LM `megatron/core/transformer/attention.py`; NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/olmoe/olmoe_provider.py`, `minimax_m2/minimax_m2_provider.py`.
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .eager_norm import dropped_norm, eager_norm
from .module import Module
from .norm import norm_params, of_torch, statistics
from .sends import over_tp


def query_norm_params(c: Context, name: str, heads: Dim, groups: Dim, d: Dim) -> Module[None]:
    """Weights of the norms on query and key."""
    scope = c.model.qk_layernorm_scope
    for part, of in (("q", heads), ("k", groups)):
        weight = f"{name}.{part}_layernorm."
        if scope == "head":
            yield from norm_params(c, weight, d)
        elif scope == "projection":  # of the query's width for the key too
            yield from norm_params(c, weight, Dim("heads*kv_channels", heads.size * d.size))
        else:
            width = of._replace(size=of.size * d.size, name=f"{of.name}*kv_channels")
            yield Param(f"{weight}weight", (width,), split="tp", matrix=False)


def query_norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """The normalized query or key [s, b, heads, d]. The norm's input must be contiguous, so a strided view is copied; PyTorch's
    copies it for its kernel only and keeps the view."""
    if c.model.gemma4_dense:
        borrowed = c.model.kv_shared and name.endswith("k_layernorm")
        return (yield from (dropped_norm if borrowed else eager_norm)(c, name, x))
    if c.model.qk_layernorm_scope == "sharded_projection":
        return (yield from _summed(c, name, x))
    copied = x
    if x.storage != x.name and not (of_torch(c) and _is_view(c, name)):
        copied = x.like(f"{name}.input")
        yield Op(f"{name}.contiguous", (x,), (copied,), passes=(x,))
    out = copied.like(f"{name}.output")
    rows = copied.shape[:-1] if c.model.qk_layernorm_scope == "head" else copied.shape[:-2]
    yield Op(name, (copied,), (out,), (copied, *statistics(c, name, rows)))
    return out


def _is_view(c: Context, name: str) -> bool:
    """Whether it is a view of what linear_qkv made: keys are, and queries of one query group or of as many groups as heads."""
    return name.endswith("k_layernorm") or c.model.groups == c.model.num_attention_heads or not c.several_groups


def _summed(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """Eager, in fp32, with the sum of squares over all tensor-parallel ranks: the wide input and the normed copy are kept."""
    wide, row = x.like(f"{name}.input fp32", "fp32"), c.new(f"{name}.rsqrt", *x.shape[:-2], dtype="fp32")
    squares = wide.like(f"{name}.squares")
    yield Op(f"{name}.widen", (x,), (wide,), passes=(x,))
    yield Op(f"{name}.sum_of_squares", (wide,), (row,), (wide, row), (squares,), sends=over_tp(c, "all_reduce", row))
    normed = x.like(f"{name}.normed")
    yield Op(f"{name}.scale", (wide, row), (normed,), (wide, row), (wide.like(f"{name}.normed fp32"),))
    out = x.like(f"{name}.output")
    yield Op(name, (normed,), (out,), (normed,))
    return out
