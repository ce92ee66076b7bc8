"""Gemma 4 without experts (E2B, E4B, 31B): embeddings for every layer, last layers that take keys and values of earlier ones.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma4_bridge.py, gemma4_provider.py, modeling_gemma4.py).
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from .converted import Converted, Provider
from .fields import Fields

WORDS = ("", "_stored", "_shared")
"""Ends of a variant's name: by what a layer does with keys and values."""


def gemma4_dense(f: Fields) -> Converted:
    """Layers with and without a window, whose heads differ; the last `num_kv_shared_layers` have no keys and values of their own.

    Megatron-Bridge has their rows all the same, and never reads them.
    """
    layers, shared = f.count("num_hidden_layers"), f.whole("num_kv_shared_layers", default=0)
    kinds = f.items("layer_types")
    if len(kinds) != layers or shared >= layers:
        raise ConfigError(
            "gemma4 needs layer_types with a word for each layer, and num_kv_shared_layers below their number"
        )
    local = [kind != "full_attention" for kind in kinds]
    names = tuple(("sliding" if one else "full") + _keys(local, i, layers - shared) for i, one in enumerate(local))
    size = f.whole("hidden_size_per_layer_input", default=256)
    rows = f.count("vocab_size_per_layer_input", default=f.count("vocab_size"))
    variants = _variants(f)
    settings = {
        "activation_func": "fast_gelu",
        "add_bias_linear": False,
        "share_embeddings_and_output_weights": f.switch("tie_word_embeddings", default=True),
        "gemma4_dense": True,
        "transformer_impl": "local",
        "kv_channels": f.count("head_dim", default=256),
        "qk_layernorm": True,
        "value_norm": True,
        "rotary_percent": 1.0,
        "variants": tuple((name, tuple(variants[name].items())) for name in dict.fromkeys(names)),
        "layer_variants": names,
        "per_layer_embed_dim": size or None,
        "per_layer_embed_vocab_size": rows if size else None,
        "final_logit_softcapping": f.number("final_logit_softcapping", default=0) or None,
    }
    what = "an embedding for every layer, keys and values of earlier layers, norms op by op"
    return Converted(settings, extra=_unread(f, names, variants), provider=Provider("Gemma4DenseProvider", what))


def _variants(f: Fields) -> dict[str, dict[str, Any]]:
    """What layers of each name have of their own."""
    groups = f.count("num_key_value_heads")
    own: dict[str, dict[str, Any]] = {
        "sliding": {"sliding_window": f.count("sliding_window", default=512)},
        "full": {
            "kv_channels": f.count("global_head_dim", default=512),
            "num_query_groups": f.whole("num_global_key_value_heads", default=groups) or groups,
        },
    }
    wide = (
        {"ffn_hidden_size": 2 * f.count("intermediate_size")} if f.switch("use_double_wide_mlp", default=False) else {}
    )
    more: dict[str, dict[str, Any]] = {"": {}, "_stored": {"kv_stored": True}, "_shared": {"kv_shared": True, **wide}}
    return {f"{shape}{word}": {**own[shape], **more[word]} for shape in own for word in WORDS}


def _keys(local: list[bool], layer: int, first_shared: int) -> str:
    """Whether a layer takes its keys from another, or is the last of its shape that others take theirs from."""
    if layer >= first_shared:
        return "_shared"
    last = local[layer] not in local[layer + 1 : first_shared]
    return "_stored" if last and first_shared < len(local) else ""


def _unread(f: Fields, names: tuple[str, ...], variants: dict[str, dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """Parameters of Megatron-Bridge's that the published model does not have, signed."""
    hidden, tied = f.count("hidden_size"), f.switch("attention_k_eq_v", default=False)
    values = keys = 0
    for name in names:
        groups = variants[name].get("num_query_groups", f.count("num_key_value_heads"))
        d = variants[name].get("kv_channels", f.count("head_dim", default=256))
        if name.endswith("_shared"):
            keys -= 2 * groups * d * hidden + d
        elif tied and name.startswith("full"):
            values -= groups * d * hidden
    return (
        ("value rows of layers whose values are their keys", values),
        ("keys and values of layers that take those of others", keys),
    )
