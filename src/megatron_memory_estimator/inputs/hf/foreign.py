"""Families with layers that Megatron-Core does not have: their parameters are counted, their memory is refused by name.

Each gives the nearest Megatron model and, by name, the parameters that it has more or less than that.
"""

from __future__ import annotations

from .converted import Converted
from .fields import Fields
from .moe import DENSE_WIDTH, routed


def _sizes(f: Fields) -> tuple[int, int]:
    return f.count("hidden_size"), f.count("num_hidden_layers")


def _heads(f: Fields) -> int:
    return f.count("num_attention_heads")


def _projection_norms(f: Fields) -> int:
    """Norms over the whole query and key projections, in place of norms per head (which the nearest model lacks)."""
    hidden, layers = _sizes(f)
    heads = _heads(f)
    d = f.whole("head_dim", default=hidden // heads)
    return (heads + f.whole("num_key_value_heads", default=heads)) * d * layers


def olmo2(f: Fields) -> Converted:
    """OLMo 2: norms after attention and MLP, norms over whole projections."""
    return Converted(
        {},
        extra=(("norms over the query and key projections", _projection_norms(f)),),
        refusal="post-norms and norms over whole projections (OLMo 2) are not in Megatron-Core's transformer layer",
    )


def minimax_m1(f: Fields) -> Converted:
    """MiniMax-M1: lightning attention in most layers."""
    f.implied(postnorm=True, shared_moe_mode="sigmoid")
    hidden, _ = _sizes(f)
    heads, groups, d = _heads(f), f.whole("num_key_value_heads"), f.whole("head_dim")
    lightning = sum(kind == 0 for kind in f.items("attn_type_list"))
    softmax = hidden * d * (2 * heads + 2 * groups)
    linear = hidden * d * heads * 5 + heads * d
    return Converted(
        routed(f, DENSE_WIDTH),
        extra=(("lightning attention", lightning * (linear - softmax)),),
        refusal="lightning attention (MiniMax-M1) is not in Megatron-Core",
    )
