"""Parameters of the parts that the published formulas distinguish, from the engine's own declarations at degree 1.

Whole numbers of foreign configs, checked in the words of the published functions.
"""

from __future__ import annotations

import operator
import re
from typing import Any

from ..dataclass import dataclass
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.context import Context
from ..modules.counts import PUBLISHED_SHAPES
from ..modules.layers import final_norm_unit, layer_unit

_PARTS = (
    ("experts", r"mlp\.experts\.linear_\w+\.weight"),
    ("gate", r"mlp\.shared_experts\.gate_weight"),
    ("shared", r"mlp\.shared_experts\.linear_\w+\.weight"),
    ("latent", r"mlp\.fc[12]_latent_proj\.weight"),
    ("router", r"mlp\.router\.\w+"),
    (
        "norms",
        r"input_layernorm\.\w+|pre_mlp_layernorm\.\w+|(self_attention\.linear_qkv|mlp\.linear_fc1)\.layer_norm_\w+",
    ),
    ("mlp", r"mlp\.linear_fc[12]\.weight"),
    ("bias", r".*(linear_\w+|latent_proj)\.bias"),
    ("attention", r"self_attention\..+"),
)


@dataclass(frozen=True)
class Parts:
    """Parameters of one layer by part; biases of linears are in none of the published formulas."""

    attention: int = 0
    norms: int = 0
    mlp: int = 0
    experts: int = 0
    shared: int = 0
    gate: int = 0
    latent: int = 0
    router: int = 0
    bias: int = 0


def layer_parts(model: Model, *, moe: bool) -> Parts:
    """Parameters of one dense or MoE layer of `model`."""
    kind = f"{'mla' if model.multi_latent_attention else 'gqa'}+{'moe' if moe else 'dense'}"
    found: dict[str, int] = {}
    for param in layer_unit(_context(model), kind).params:
        part = next(name for name, pattern in _PARTS if re.fullmatch(pattern, param.name))
        found[part] = found.get(part, 0) + param.numel
    return Parts(**found)


def final_norm(model: Model) -> int:
    """Parameters of the norm behind the last layer."""
    return sum(param.numel for param in final_norm_unit(_context(model)).params)


def _context(model: Model) -> Context:
    return Context(model, Layout(), Training(seq_length=1, megatron_core_version=PUBLISHED_SHAPES), "cudnn")


def whole(name: str, value: Any) -> int:
    """A whole number of at least 0, whatever its type. Raises ValueError."""
    found = _integer(value)
    if found is None or found < 0:
        raise ValueError(f"{name} must be non-negative")
    return found


def positive(name: str, value: Any) -> int:
    """A whole number of at least 1, whatever its type. Raises ValueError."""
    found = _integer(value)
    if found is None or found < 1:
        raise ValueError(f"{name} must be positive")
    return found


def plain(value: Any) -> Any:
    """A NumPy number or array as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _integer(value: Any) -> int | None:
    value = plain(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        return None
