"""Gemma 2 and 3: norms before and behind attention and MLP, local and global layers, an activation that is never fused.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma2_provider.py, gemma3_provider.py) and
`models/common/te_layers.py`.
"""

from __future__ import annotations

from typing import Any

from ...job.variants import BASE
from .converted import Converted, built_by
from .fields import Fields

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
        "bias_activation_fusion": False,
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
    return Converted(settings, warnings=(built_by("Gemma2ModelProvider", what), FLEX))


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
        "cp_comm_type": ("a2a",),
    }
    return Converted(settings, warnings=(built_by("Gemma3ModelProvider", "norms behind attention and MLP"),))
