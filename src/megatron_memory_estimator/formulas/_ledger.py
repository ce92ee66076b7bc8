"""Parameters of the parts that the published formulas distinguish, from the engine's own declarations at degree 1."""

from __future__ import annotations

import re

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
