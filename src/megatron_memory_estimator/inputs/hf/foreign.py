"""Families with layers that Megatron-Core does not have: their parameters are counted, their memory is refused by name.

Each gives the nearest Megatron model and, by name, the parameters that it has more or less than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
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


def olmoe(f: Fields) -> Converted:
    """OLMoE: norms over whole projections."""
    return Converted(
        routed(f, DENSE_WIDTH),
        extra=(("norms over the query and key projections", _projection_norms(f)),),
        refusal="norms over whole query and key projections (OLMoE) are not in Megatron-Core's attention",
    )


def minimax_m2(f: Fields) -> Converted:
    """MiniMax-M2: norms over whole projections."""
    f.implied(use_qk_norm=True, qk_norm_type="per_layer", use_mtp=True, mtp_transformer_layers=1)
    f.implied(attn_type_list=[1] * f.whole("num_hidden_layers"))
    return Converted(
        routed(f, DENSE_WIDTH),
        extra=(("norms over the query and key projections", _projection_norms(f)),),
        refusal="norms over whole query and key projections (MiniMax-M2) are not in Megatron-Core's attention",
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


def exaone4(f: Fields) -> Converted:
    """EXAONE 4: norms only after attention and after the MLP, norms per head on query and key.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/exaone/exaone4/exaone4_provider.py`.
    """
    return Converted(
        {"qk_layernorm": True},
        refusal="norms after attention and after the MLP, and none before them (EXAONE 4), are not in Megatron-Core's "
        "transformer layer",
    )


def deci(f: Fields) -> Converted:
    """Nemotron-NAS (DeciLM): every layer has its own width, or no attention, or no MLP."""
    (hidden, layers), heads = _sizes(f), _heads(f)
    blocks = f.items("block_configs")
    if len(blocks) != layers or not all(isinstance(block, Mapping) for block in blocks):
        raise ConfigError("block_configs in config.json must be a list with an object for each layer")
    d = hidden // heads
    total = sum(_deci_block(Fields(block), hidden, heads, d) for block in blocks)
    plain = hidden * d * 4 * heads + 3 * hidden * hidden + 2 * hidden
    return Converted(
        {"num_query_groups": heads, "ffn_hidden_size": hidden},
        extra=(("layers of their own width", total - plain * layers),),
        refusal="layers of different width (Nemotron-NAS) need Megatron-Core's heterogeneous blocks, which are not modelled",
    )


def _deci_block(block: Fields, hidden: int, heads: int, d: int) -> int:
    """Parameters of one layer: each half with its norm, or one linear with its norm, or nothing."""
    attention, ffn = block.section("attention"), block.section("ffn")
    total = 0
    for part in (attention, ffn):
        if part.switch("replace_with_linear", default=False):
            total += hidden * hidden + hidden
    if not attention.switch("no_op", default=False) and attention.has("n_heads_in_group"):
        groups = heads // attention.count("n_heads_in_group")
        total += hidden * d * (2 * heads + 2 * groups) + hidden
    if not ffn.switch("no_op", default=False) and (times := ffn.number("ffn_mult", default=0)):
        width = -(-int(2 * times * hidden / 3) // 256) * 256
        total += 3 * hidden * width + hidden
    return total
