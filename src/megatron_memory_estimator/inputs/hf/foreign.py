"""Families with layers that Megatron-Core does not have: their parameters are counted, their memory is refused by name.

Each gives the nearest Megatron model and, by name, the parameters that it has more or less than that.
"""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedError
from .converted import Converted
from .fields import Fields
from .moe import DENSE_WIDTH, routed


def _sizes(f: Fields) -> tuple[int, int]:
    return f.count("hidden_size"), f.count("num_hidden_layers")


def _heads(f: Fields) -> int:
    return f.count("num_attention_heads")


def gemma4(f: Fields) -> Converted:
    """Gemma 4: two attention shapes, keys used as values, a dense MLP beside the experts in every layer."""
    if f.whole("hidden_size_per_layer_input", default=0) or f.whole("num_kv_shared_layers", default=0):
        raise UnsupportedError(
            "gemma4 with per-layer inputs or shared keys and values (E2B, E4B) is not supported: its parameters are not counted"
        )
    f.implied(vocab_size_per_layer_input=f.values.get("vocab_size"))
    hidden, layers = _sizes(f)
    heads, groups, d = _heads(f), f.whole("num_key_value_heads"), f.whole("head_dim", default=256)
    wide, few = f.whole("global_head_dim", default=512), f.whole("num_global_key_value_heads", default=groups)
    types = f.items("layer_types")
    full = sum(kind == "full_attention" for kind in types)
    plain = hidden * d * (2 * heads + 2 * groups) + 2 * d
    copies = 1 if f.switch("attention_k_eq_v", default=False) else 2
    other = hidden * wide * (2 * heads + copies * few) + 2 * wide
    experts, moe = f.whole("num_experts", default=0), f.switch("enable_moe_block", default=False)
    dense = 3 * hidden * f.whole("intermediate_size")
    norms = 5 * hidden if moe else 2 * hidden
    extra = [
        ("full-attention layers", full * (other - plain)),
        ("norms after attention and MLP", norms * layers),
    ]
    settings: dict[str, Any] = {"qk_layernorm": True}
    if moe:
        settings.update(routed(f))
        extra += [("dense MLP beside the experts", dense * layers), ("router scales", (hidden + experts) * layers)]
    return Converted(
        settings,
        extra=tuple(extra),
        refusal="two attention shapes, and a dense MLP beside the experts (Gemma 4), are not in Megatron-Core",
    )


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
