"""EXAONE 4: norms only behind attention and MLP. K-EXAONE: sliding layers with RoPE, full layers without, a dense MTP layer.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/exaone/` (exaone4/, exaone45/, exaone_moe/).
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from .converted import Converted, Provider
from .fields import Fields
from .layers import FULL, SLIDING, clamp, clamps, layer_types, variants
from .moe import first_dense, placement, sigmoid_moe


def exaone4(f: Fields) -> Converted:
    """EXAONE 4: norms per head on query and key; Megatron-Bridge gives every layer full attention with a matrix of all scores."""
    layer_types(f)
    settings = {"qk_layernorm": True, "norm_placement": "post", "core_attention": "local"}
    what = "norms behind attention and MLP alone, core attention that makes a matrix of all scores"
    return Converted(settings, provider=Provider("exaone4_layer_spec", what))


def exaone45(f: Fields) -> Converted:
    """EXAONE 4.5: EXAONE 4's layers, of which those with full attention have no RoPE, and MTP layers as the first layer is."""
    f.raw("sliding_window_pattern", "mtp_loss_scaling_factor")
    window = f.optional_whole("sliding_window")
    layers = [_layer(kind, window, None) for kind in layer_types(f, default=SLIDING)]
    plain = exaone4(f)
    settings = {
        **plain.settings,
        **variants(layers, mtp=layers[0]),
        "add_qkv_bias": f.switch("attention_bias", default=False),
        "attention_softmax_in_fp32": True,
        "mtp_use_repeated_layer": f.switch("mtp_share_layers", default=False),
    }
    unseen = "EXAONE 4.5 was never compared with the real class; its layers are EXAONE 4's"
    return plain._replace(settings=settings, warnings=(unseen,))


def exaone_moe(f: Fields) -> Converted:
    """K-EXAONE. Megatron-Core can say every one of its layers but for MTP's, which is dense whatever the last layer is."""
    window, types = f.optional_whole("sliding_window"), layer_types(f, default=SLIDING)
    windows = f.items("sliding_windows") or [window if one == SLIDING else None for one in types]
    limits = clamps(f, "swiglu_limits", len(types))
    layers = [_layer(*one) for one in zip(types, windows, limits, strict=False)]
    if len(layers) != len(types):
        raise ConfigError(f"sliding_windows in config.json has {len(windows)} entries for {len(types)} layers")
    settings = {
        **sigmoid_moe(f),
        "qk_layernorm": True,
        "moe_router_score_function": f.word("scoring_func", default="sigmoid"),
        "moe_layer_freq": _moe_layers(f),
        "moe_router_load_balancing_type": ("none",) if f.word("topk_method") == "noaux_tc" else ("global_aux_loss",),
        "moe_z_loss_coeff": 1e-3,
        "moe_router_dtype": "fp32",
        "moe_shared_expert_overlap": True,
        **variants(layers, mtp={"num_moe_experts": None, **_of_mtp(f)}),
    }
    for name in ("mtp_share_layers", "mtp_use_repeated_layer"):
        if f.switch(name, default=False):
            settings["mtp_use_repeated_layer"] = True
    return Converted(settings, provider=Provider("ExaoneMoeModelProvider", "an MTP layer without experts"))


def _layer(kind: str, window: Any, limit: float | None) -> dict[str, Any]:
    """What a layer changes: a window with RoPE, or all tokens without; a clamp of the activation."""
    place = {"sliding_window": window} if kind == SLIDING else {"position_embedding_type": "none"}
    return {**place, **clamp(limit)}


def _of_mtp(f: Fields) -> dict[str, Any]:
    """Attention of an MTP layer: full, unless the config says otherwise."""
    kinds, windows = f.items("mtp_layer_types"), f.items("mtp_sliding_windows")
    if any(one != kinds[0] for one in kinds) or any(one != windows[0] for one in windows):
        raise ConfigError("config.json has MTP layers that differ from one another, which are not modelled")
    window = windows[0] if windows else f.optional_whole("sliding_window")
    return _layer(kinds[0] if kinds else FULL, window, None)


def _moe_layers(f: Fields) -> Any:
    listed = f.items("is_moe_layer")
    return placement(f, [bool(one) for one in listed]) if listed else first_dense(f)
