"""Llama-Nemotron (DeciLM): layers of their own width, without attention or MLP, or with one linear in their place.

Sources: Megatron-LM `megatron/core/transformer/heterogeneous/heterogeneous_config.py`; NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/llama_nemotron/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .converted import Converted
from .fields import Fields

MULTIPLE = 256
"""Widths of MLPs are multiples of this."""


def nemotron_nas(f: Fields) -> Converted:
    """A variant for every different block of `block_configs`; Megatron-LM reads them too (heterogeneous-layers-config-path)."""
    hidden, layers, heads = f.count("hidden_size"), f.count("num_hidden_layers"), f.count("num_attention_heads")
    blocks = f.items("block_configs")
    if len(blocks) != layers or not all(isinstance(block, Mapping) for block in blocks):
        raise ConfigError("block_configs in config.json must be a list with an object for each layer")
    known: dict[str, dict[str, Any]] = {}
    names = []
    for block in blocks:
        one = Fields(block)
        parts = one.section("attention"), one.section("ffn" if one.has("ffn") else "mlp")
        mlp, width = _mlp(parts[1], hidden)
        attention, groups = _attention(parts[0], heads)
        names.append(f"{attention}_{mlp}")
        known[names[-1]] = {**groups, **width}
    return Converted(
        {
            "num_query_groups": f.optional_whole("num_key_value_heads") or _first(known, "num_query_groups") or heads,
            "ffn_hidden_size": f.optional_whole("intermediate_size") or _first(known, "ffn_hidden_size") or 4 * hidden,
            "variants": tuple((name, tuple(own.items())) for name, own in known.items()),
            "layer_variants": tuple(names),
            "bias_activation_fusion": True,
            "apply_rope_fusion": True,
        }
    )


def _first(known: dict[str, dict[str, Any]], name: str) -> int | None:
    """The first value that a block has of a setting."""
    return next((own[name] for own in known.values() if name in own), None)


def _block(part: Fields, where: str, usual: str, setting: str) -> tuple[str, dict[str, Any]] | None:
    """The name and the setting of what stands in a part's place, or None for the part itself."""
    nothing, linear = part.switch("no_op", default=False), part.switch("replace_with_linear", default=False)
    if nothing and linear:
        raise ConfigError(f"{where} in block_configs of config.json has both no_op and replace_with_linear")
    if nothing:
        return f"no_{usual}", {setting: "no_op"}
    return (f"linear_{usual}", {setting: "linear"}) if linear else None


def _attention(part: Fields, heads: int) -> tuple[str, dict[str, Any]]:
    if found := _block(part, "attention", "attention", "attention_block"):
        return found
    groups = part.optional_whole("num_query_groups")
    if groups is None:
        each = part.count("n_heads_in_group", most=heads)
        if heads % each:
            raise ConfigError(f"num_attention_heads={heads} in config.json is not divisible by n_heads_in_group={each}")
        groups = heads // each
    return f"groups_{groups}", {"num_query_groups": groups}


def _mlp(part: Fields, hidden: int) -> tuple[str, dict[str, Any]]:
    if found := _block(part, "ffn", "mlp", "mlp_block"):
        return found
    width = part.optional_whole("ffn_hidden_size", "intermediate_size")
    if width is None:
        times = part.number("ffn_mult", default=0)
        width = -(-int(2 * times * hidden / 3) // MULTIPLE) * MULTIPLE
    if width < 1:
        raise ConfigError(
            "ffn in block_configs of config.json has no width: give ffn_mult, no_op or replace_with_linear"
        )
    return f"ffn_{width}", {"ffn_hidden_size": width}
