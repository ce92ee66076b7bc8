"""MiMo-V2-Flash and Step-3.5: sliding layers with attention of another shape, experts, dense MTP layers.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/mimo_v2_flash/`, `stepfun/`.

EXAONE 4: norms only behind attention and MLP. K-EXAONE: sliding layers with RoPE, full layers without, a dense MTP layer.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/exaone/` (exaone4/, exaone45/, exaone_moe/).

Layers that differ, as variants of a model: what every layer changes, by name.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...job.variants import BASE
from ...wording import shown
from .fields import Converted, Fields, Provider
from .moe import first_dense, placement, routed, sigmoid_moe

FEW_NOTE = "MTP layers of MiMo-V2-Flash are in its checkpoint and not in its config.json; mtp_num_layers adds them"


def mimo_v2(f: Fields) -> Converted:
    """MiMo-V2-Flash: values narrower than keys; sliding layers have more groups, and sinks."""
    heads, d, dv = f.count("num_attention_heads"), f.count("head_dim"), f.count("v_head_dim")
    f.always(swa_num_attention_heads=heads, swa_head_dim=d, swa_v_head_dim=dv, add_swa_attention_sink_bias=True)
    f.implied(num_nextn_predict_layers=0, n_shared_experts=None)
    pattern = f.items("hybrid_layer_pattern")
    if len(pattern) != f.count("num_hidden_layers") or any(one not in (0, 1) for one in pattern):
        raise ConfigError("hybrid_layer_pattern in config.json must be a list with 0 or 1 for each layer")
    sliding = {
        "num_query_groups": f.count("swa_num_key_value_heads"),
        "sliding_window": f.count("sliding_window_size", "sliding_window"),
        "softmax_type": "learnable",
    }
    settings = {
        **routed(f),
        **variants([sliding if one else {} for one in pattern], mtp={"num_moe_experts": None, **sliding}),
        "kv_channels": d,
        "value_channels": dv,
        "moe_layer_freq": first_dense(f),
        "moe_router_load_balancing_type": ("none",),
        "moe_router_enable_expert_bias": True,
        "local_rotary_table": True,
        "hidden_dropout": 0.1,
        "mtp_num_layers": None,
    }
    what = "values of another width than keys, sliding layers with groups of their own"
    return Converted(settings, provider=Provider("MiMoV2FlashModelProvider", what), warnings=(DROPOUT, FEW_NOTE))


DROPOUT = (
    "hidden_dropout is 0.1, which Megatron-Bridge leaves as Megatron-Core has it; hidden_dropout 0 is without its masks"
)


def step(f: Fields) -> Converted:
    """Step-3.5 and 3.7: sliding layers with more heads, gates on the attention output, clamps in the last layers."""
    f.implied(zero_centered=True, norm_expert_weight=True)
    types = layer_types(f)
    moe = _moe_layers(f, len(types))
    settings = {
        "num_query_groups": f.count("num_attention_groups"),
        "qk_layernorm": f.switch("use_qk_norm", default=f.word("model_type") != "step3p5"),
        "share_embeddings_and_output_weights": f.switch("tie_word_embeddings", default=False),
        "attention_output_gate": f.switch("use_head_wise_attn_gate", "attention_output_gate", default=False),
        "num_moe_experts": f.count("moe_num_experts"),
        "moe_router_topk": f.count("moe_top_k"),
        "moe_ffn_hidden_size": f.count("moe_intermediate_size"),
        "moe_shared_expert_intermediate_size": f.whole("share_expert_dim", "share_expert_dims", default=0) or None,
        "moe_router_score_function": f.word("moe_router_activation", default="softmax"),
        "moe_router_enable_expert_bias": f.switch("use_moe_router_bias", default=False),
        "moe_router_dtype": "fp32" if f.switch("need_fp32_gate", default=False) else None,
        "moe_layer_freq": placement(f, moe),
        **_step_layers(f, types),
    }
    what = "sliding layers with heads of their own, dense MTP layers"
    warnings = []
    if settings["attention_output_gate"]:
        warnings.append(GATES)
    if isinstance(f.raw("rope_theta"), list):
        warnings.append("rope_theta differs by layer: the table of every layer is not counted")
    return Converted(settings, warnings=tuple(warnings), provider=Provider("Step35ModelProvider", what))


GATES = (
    "gates of whole heads stand for one gate per head, as Megatron-Bridge builds them on a Megatron-Core without head_wise_attn_gate: "
    "more parameters than published"
)


def _moe_layers(f: Fields, layers: int) -> list[bool]:
    """Layers with experts by their numbers, in a list or a string with commas."""
    given = f.raw("moe_layers_enum")
    words = (
        given.split(",")
        if isinstance(given, str)
        else given
        if isinstance(given, list)
        else []
        if given is None
        else None
    )
    if words is None:
        raise ConfigError(f"moe_layers_enum={shown(given)} in config.json must be a list of layers")
    numbers = [int(one) if str(one).strip().isdecimal() else -1 for one in words if one != ""]
    if any(one < 0 for one in numbers):
        raise ConfigError(f"moe_layers_enum={shown(given)} in config.json must be a list of layers")
    return [not numbers or layer in numbers for layer in range(layers)]


def _step_layers(f: Fields, types: list[str]) -> dict[str, Any]:
    """What each layer changes; lists go on with those of the MTP layers, which must be alike.

    On a later stage Megatron-Bridge looks MTP layers up behind the end of these lists, by the layers of the stages before: they have full
    attention there, and the clamp that the last layer with full attention left in the config that they share. A layer's part of rotary
    dims changes no table: the model's has the full width. (`stepfun/step35_provider.py`, Step35DecoderLayer; read from source, no record.)
    """
    depths = f.whole("num_nextn_predict_layers", default=0)
    more = f.items("mtp_layer_types")
    every = [*types, *(more + [FULL] * depths)[:depths]]
    limits, shared = (clamps(f, name, len(every)) for name in ("swiglu_limits", "swiglu_limits_shared"))
    sliding, layers = _sliding(f), []
    for at, kind in enumerate(every):
        own: dict[str, Any] = dict(sliding) if kind == SLIDING else {}
        own.update({**clamp(limits[at]), **clamp(shared[at], "activation_func_clamp_value_shared_expert")})
        layers.append(own)
    ends = layers[len(types) :]
    if any(one != ends[0] for one in ends):
        raise ConfigError("config.json has MTP layers that differ from one another, which are not modelled")
    if not ends:
        return variants(layers)
    left = clamp(limits[len(types) - 1]) if types[-1] == FULL else {}
    dense: dict[str, Any] = {"num_moe_experts": None}
    return variants(layers[: len(types)], mtp={**dense, **ends[0]}, behind={**dense, **left})


def _sliding(f: Fields) -> dict[str, Any]:
    """Attention of a sliding layer, with the heads of Step-3.5-Flash where the config says none."""
    other = f.section("attention_other_setting")
    own = other if other.word("attention_type") == SLIDING else Fields({})
    return {
        "num_attention_heads": own.count("num_attention_heads", default=96),
        "num_query_groups": own.count("num_attention_groups", default=8),
        "kv_channels": own.count("head_dim", default=128),
        "sliding_window": f.count("sliding_window", default=512),
    }


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
        "moe_layer_freq": _listed_experts(f),
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


def _listed_experts(f: Fields) -> Any:
    listed = f.items("is_moe_layer")
    return placement(f, [bool(one) for one in listed]) if listed else first_dense(f)


SLIDING, FULL = "sliding_attention", "full_attention"
MTP = "mtp"
"""The variant of an MTP layer."""
BEHIND = "mtp_behind"
"""The variant of an MTP layer on a later stage than the first."""
WORDS = {"sliding_window": "sliding", "position_embedding_type": "no_rope", "activation_func_clamp_value": "clamped"}
"""What settings that a layer changes are called in the layer's name."""


def layer_types(f: Fields, default: str = FULL) -> list[str]:
    """Attention of every layer. Raises ConfigError for a kind that is neither full nor sliding."""
    layers = f.count("num_hidden_layers")
    types = f.items("layer_types") or [default] * layers
    wrong = next((one for one in types if one not in (SLIDING, FULL)), None)
    if wrong is not None:
        raise ConfigError(f"layer_types in config.json has {shown(wrong)}; {FULL} and {SLIDING} are known")
    return types


def clamps(f: Fields, name: str, layers: int) -> list[float | None]:
    """The clamp of every layer's activation from a list, in which nothing and 0 mean none."""
    listed = f.items(name)
    if any(isinstance(one, bool) or not isinstance(one, int | float | None) or (one or 0) < 0 for one in listed):
        raise ConfigError(f"{name} in config.json must be a list of numbers of at least 0")
    found = [float(one) if one else None for one in listed]
    return (found + [None] * layers)[:layers]


def clamp(limit: float | None, name: str = "activation_func_clamp_value") -> dict[str, Any]:
    """The setting of a clamp, where there is one."""
    return {} if limit is None else {name: limit}


def variants(
    layers: list[dict[str, Any]], mtp: dict[str, Any] | None = None, behind: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What every layer changes, and what an MTP layer does, `behind` on a later stage, as variants; nothing is changed by a layer without
    changes."""
    known: dict[str, tuple[tuple[str, Any], ...]] = {}
    names = [_named(known, own) for own in layers]
    found: dict[str, Any] = {"layer_variants": tuple(names)} if known else {}
    if mtp is not None:
        known[MTP] = tuple(mtp.items())
        found["mtp_layer_variant"] = MTP
    if behind is not None:
        known[BEHIND] = tuple(behind.items())
        found["mtp_layer_variant_behind"] = BEHIND
    return {**found, "variants": tuple(known.items())} if known else {}


def _named(known: dict[str, tuple[tuple[str, Any], ...]], own: dict[str, Any]) -> str:
    """The name of a layer's changes: of those that they are called by, with a number where others have it."""
    if not own:
        return BASE
    changes = tuple(own.items())
    name = next((name for name, other in known.items() if other == changes), "")
    if not name:
        name = stem = "_".join(word for key, word in WORDS.items() if key in own) or "other"
        count = 1
        while name in known:
            count += 1
            name = f"{stem}_{count}"
        known[name] = changes
    return name
