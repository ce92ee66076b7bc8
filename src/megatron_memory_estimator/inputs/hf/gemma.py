"""Gemma 2, 3 and 4: norms before and behind attention and MLP, local and global layers, an activation that is never fused.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma2_provider.py, gemma3_provider.py,
gemma4_provider.py, gemma4_bridge.py, modeling_gemma4.py) and `models/common/te_layers.py`.

Gemma 4 without experts (E2B, E4B, 31B): embeddings for every layer, last layers that take keys and values of earlier ones.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma4_bridge.py, gemma4_provider.py, modeling_gemma4.py).
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...job.variants import BASE
from .fields import Converted, Fields, Provider
from .moe import routed

LOCAL = "local"
"""The variant of a layer with a sliding window."""
GLOBAL_EVERY = 6
"""Every sixth layer of Gemma 3 is global in Megatron-Bridge, whatever the config says (`interleaved_attn_pattern`)."""


def sandwich(f: Fields) -> dict[str, Any]:
    """What both have: norms around both halves of a layer, `fast_gelu`, no biases."""
    return {
        "norm_placement": "sandwich",
        "activation_func": "fast_gelu",
        "add_bias_linear": False,
        "share_embeddings_and_output_weights": f.switch("tie_word_embeddings", default=True),
    }


def windows(window: int, local: list[bool]) -> dict[str, Any]:
    """Local layers as a variant with a sliding window."""
    return {
        "variants": ((LOCAL, (("sliding_window", window),)),),
        "layer_variants": tuple(LOCAL if one else BASE for one in local),
    }


def gemma2(f: Fields) -> Converted:
    """Gemma 2: caps of the scores and of the logits, FlexAttention; odd layers are local."""
    layers = f.whole("num_hidden_layers")
    window = f.count("sliding_window", default=4096)
    settings = {
        **sandwich(f),
        **windows(window, [layer % 2 == 0 for layer in range(layers)]),
        "core_attention": "flex",
        "attn_logit_softcapping": f.number("attn_logit_softcapping", default=50.0) or None,
        "final_logit_softcapping": f.number("final_logit_softcapping", default=30.0) or None,
    }
    what = "norms behind attention and MLP, capped scores and logits"
    return Converted(settings, provider=Provider("Gemma2ModelProvider", what), warnings=(FLEX,))


FLEX = "core attention is FlexAttention; attention_kernel unfused is what runs with a padding mask or without FlexAttention"


def gemma3(f: Fields) -> Converted:
    """Gemma 3: norms per head on query and key, a second RoPE table for local layers."""
    layers = f.whole("num_hidden_layers")
    window = f.count("sliding_window", default=4096)
    settings = {
        **sandwich(f),
        **windows(window, [(layer + 1) % GLOBAL_EVERY != 0 for layer in range(layers)]),
        "qk_layernorm": True,
        "local_rotary_table": True,
        "attention_kernel": "flash",
    }
    return Converted(settings, provider=Provider("Gemma3ModelProvider", "norms behind attention and MLP"))


GLOBAL = "full"
"""The variant of a layer of Gemma 4 without a window, whose heads have another width."""


def gemma4(f: Fields) -> Converted:
    """Gemma 4 with experts (26B-A4B), or without (`gemma4_dense`): two attention shapes, values normed without a weight.

    Beside the experts is a dense MLP. Megatron-Bridge allocates value rows in layers whose values are their keys (`attention_k_eq_v`),
    and never reads them.
    """
    if not f.switch("enable_moe_block", default=False):
        return gemma4_dense(f)
    f.implied(hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False)
    f.implied(vocab_size_per_layer_input=f.values.get("vocab_size"))
    groups, wide = f.count("num_key_value_heads"), f.count("global_head_dim", default=512)
    few = f.whole("num_global_key_value_heads", default=groups)
    local = local_layers(f)
    settings = {
        **sandwich(f),
        **routed(f),
        "kv_channels": f.count("head_dim", default=256),
        "sliding_window": f.count("sliding_window", default=1024),
        "variants": ((GLOBAL, (("kv_channels", wide), ("num_query_groups", few), ("sliding_window", None))),),
        "layer_variants": tuple(BASE if one else GLOBAL for one in local),
        "rotary_percent": 1.0,
        "qk_layernorm": True,
        "value_norm": True,
        "gemma4_moe": True,
        "moe_shared_expert_intermediate_size": f.count("intermediate_size"),
        "moe_router_pre_softmax": True,
        "moe_router_dtype": "fp32",
        "final_logit_softcapping": f.number("final_logit_softcapping", default=0) or None,
        "cp_comm_type": ("a2a",),
    }
    tied = few * wide * f.count("hidden_size") if f.switch("attention_k_eq_v", default=False) else 0
    what = "a dense MLP beside the experts of a layer, two attention shapes"
    heads = f"kernels for heads of {wide} are not checked: cuDNN and flash attention publish at most 256"
    return Converted(
        settings,
        extra=(("value rows of layers whose values are their keys", -tied * local.count(False)),),
        warnings=(heads,),
        provider=Provider("Gemma4ModelProvider", what),
    )


def local_layers(f: Fields) -> list[bool]:
    """Whether each layer has a window: Megatron-Bridge repeats the layers up to the end of the first global ones."""
    kinds = f.items("layer_types")
    local = [kind != "full_attention" for kind in kinds]
    before = local.index(False) if False in local else len(local)
    behind = next((i for i in range(before, len(local)) if local[i]), len(local))
    if not kinds or local != [i % behind < before for i in range(len(local))]:
        raise UnsupportedError(
            "layer_types of gemma4 that do not repeat the layers up to the first global one are not supported"
        )
    return local


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
