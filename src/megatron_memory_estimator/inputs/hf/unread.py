"""The keys of a config that nothing reads: named in one sentence, because a misspelt width must not pass in silence.

Configs with a language model inside: which object is its own, and which towers stand beside it.

Sources: huggingface/transformers `src/transformers/models/*/configuration_*.py`; NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/` (`qwen_vl/`, `qwen_omni/`, `qwen3_asr/`, `nemotron_omni/`, `ministral3/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...wording import LONGEST_SHOWN, plain, says_nothing, shown
from .fields import Fields, meant

MOST_NAMED = 6
MOST_GUESSED = 200

IRRELEVANT = frozenset(
    word
    for line in (
        # what the file is, and how its checkpoint is stored
        "architectures model_type auto_map torch_dtype dtype transformers_version name_or_path license vocab_file ",
        "quantization_config compression_config expert_dtype checkpoint_dtype mamba_ssm_dtype pretraining_tp ep_size ",
        "torchscript use_bfloat16 model_max_length seq_length max_seq_len max_length tokenizer_class tokenizer_name ",
        "use_cache cache_implementation attn_implementation use_flash_attn use_flash_attention flash_attn use_fused_rms_norm ",
        "use_mamba_kernels use_triton fuse_cross_entropy gradient_checkpointing is_decoder is_encoder_decoder task_specific_params ",
        "id2label label2id num_labels problem_type finetuning_task return_dict return_dict_in_generate pruned_heads ",
        "tie_encoder_decoder tf_legacy_loss prefix bridge_version use_safetensors mamba_ssm_cache_dtype ",
        # generation
        "num_beams num_beam_groups num_return_sequences top_k top_p typical_p temperature do_sample min_length ",
        "length_penalty repetition_penalty diversity_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size early_stopping ",
        "bad_words_ids suppress_tokens begin_suppress_tokens remove_invalid_values max_new_tokens num_logits_to_keep ",
        # factors: they scale a tensor and keep none
        "router_scaling_factor attention_value_scale query_pre_attn_scalar logit_scale softmax_scale layer_switch ",
        "swiglu_alpha clip_qkv logits_scaling hc_sinkhorn_iters hc_eps rescale_prenorm_residual compression_ratio ",
        # windows and positions: the fused attention kernels keep the same tensors
        "sliding_window sliding_window_size sliding_window_pattern use_sliding_window max_window_layers attention_chunk_size ",
        "window_size attention_window_size order_of_interleaved_layers no_rope_layers no_rope_layer_interval alibi ",
        "mrope_section original_max_position_embeddings max_rope_position position_embedding_type attn_scale floor_scale ",
        "attn_temperature_tuning full_attn_mod interpolate_factor initial_context_length indexer_rope_interleave ",
        # routing and its losses: which token goes where, never how much is kept
        "norm_topk_prob moe_renormalize seq_aux aux_loss_alpha router_aux_loss_coef router_jitter_noise router_z_loss_coef ",
        "moe_router_topk_scaling_factor router_dtype moe_router_use_sigmoid norm_head normalize_router_prob_before_dropping ",
        "moe_token_drop_policy router_bias_update_speed moe_capacity moe_gate moe_norm_min moe_shared_expert_overlap ",
        # dropout by other names; the recipes of these models train without
        "dropout attn_pdrop embd_pdrop resid_pdrop summary_activation summary_first_dropout summary_proj_to_labels ",
        "summary_type summary_use_proj scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn ",
        # towers: counted by nobody, and said so
        "spatial_merge_size vision_feature_layer vision_feature_select_strategy tokens_per_second temporal_patch_size ",
        "mm_tokens_per_image video_placeholder multimodal_projector_bias",
    )
    for word in line.split()
)
"""Keys of published configs that change no tensor of a training run (classes of huggingface/transformers
`src/transformers/models/*/configuration_*.py`, remote code of the Hub)."""

IRRELEVANT_STARTS = (
    "_", "rope_", "rotary_", "initializer_", "init_", "output_", "forced_", "summary_", "mup_", "use_mup", "time_step_",
    "layernorm_",
)  # fmt: skip
IRRELEVANT_ENDS = (
    "_token_id", "_token_ids", "_token_index", "_token", "_eps", "_epsilon", "_dropout", "_dropout_prob", "_dropout_rate",
    "_multiplier", "_multipliers", "_scaling_factor", "_softcapping", "_softcap", "_theta", "_loss_coef", "_loss_coeff",
    "_loss_weight", "_initializer_range", "_std", "_in_fp32",
)  # fmt: skip

SHAPE_STARTS = ("num_", "n_", "d_")
SHAPE_ENDS = (
    "_size", "_sizes", "_dim", "_dims", "_rank", "_heads", "_layers", "_experts", "_groups", "_channels", "_width", "_freq",
    "_interval", "_mult",
)  # fmt: skip
TOWER_WORDS = (
    "vision", "visual", "image", "img", "video", "audio", "speech", "sound", "mm_", "vit", "patch", "pixel", "projector",
    "projection", "tile", "frame",
)  # fmt: skip
WINDOWED = ("full_attention", "sliding_attention", "chunked_attention")


def irrelevant(key: str, value: object) -> bool:
    """Whether a key changes no tensor of a training run."""
    if key in IRRELEVANT or key.startswith(IRRELEVANT_STARTS) or key.endswith(IRRELEVANT_ENDS) or says_nothing(value):
        return True
    return key == "layer_types" and isinstance(value, list) and all(kind in WINDOWED for kind in value)


def shape_like(key: str) -> bool:
    """Whether a key is named like a width, a count or a rank."""
    return key.startswith(SHAPE_STARTS) or key.endswith(SHAPE_ENDS) or "_size_" in key or "_dim_" in key


def tower_like(key: str) -> bool:
    """Whether a key describes a vision or audio tower, or what joins one to the language model."""
    return any(word in key for word in TOWER_WORDS)


def unread(f: Fields, towers: bool) -> list[str]:
    """The keys that no mapping read and that may matter; with towers, those of the towers are left out."""
    left = (key for key, value in f.values.items() if key not in f.read and not irrelevant(key, value))
    return [key for key in left if not (towers and tower_like(key))]


def outer_unread(config: Mapping[str, Any], inner: str, f: Fields) -> list[str]:
    """Keys outside the language model's object that look like its shapes and that it does not repeat."""
    return [
        key
        for level in levels(config, inner)[:-1]
        for key, value in level.items()
        if key not in inner.split(".")
        and shape_like(key)
        and not irrelevant(key, value)
        and not tower_like(key)
        and not (key in f.values and f.values[key] == value)
    ]


def named(keys: Iterable[str], f: Fields) -> str:
    """Some keys as a list for a message, each with the nearest key that is read."""
    keys = list(keys)
    parts = [f"{plain(key, 60)}{meant(key, sorted(f.read))}" for key in keys[:MOST_NAMED]]
    more = len(keys) - len(parts)
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def shapes_among(keys: list[str], f: Fields, *, strict: bool) -> list[str]:
    """The keys that change a shape: by their name, as a misspelt shape (of the first few), or by what they hold.

    With `strict` those that hold a list or an object of any kind.
    """
    widths = sorted(name for name in f.read if shape_like(name))
    near = {key for key in keys[:MOST_GUESSED] if meant(key, widths)}
    layers = f.values.get("num_hidden_layers")
    return [
        key for key in keys if key in near or shape_like(key) or _holds_shapes(f.values[key], layers, strict=strict)
    ]


def _holds_shapes(value: object, layers: object, *, strict: bool) -> bool:
    """Whether a value holds shapes: an object with one among its keys, or a number or an object for each layer."""
    if strict:
        return isinstance(value, list | dict)
    if isinstance(value, Mapping):
        return any(isinstance(key, str) and shape_like(key) and not says_nothing(held) for key, held in value.items())
    if not isinstance(value, list) or len(value) != layers or all(one == value[0] for one in value):
        return False
    return all(isinstance(one, int | float | dict) for one in value)


def check_unread(
    f: Fields, config: Mapping[str, Any], inner: str, *, towers: bool, strict: bool, who: str
) -> list[str]:
    """Warnings about keys that nothing reads. Raises ConfigError where one of them changes a shape.

    With `strict` a model is read on its looks alone.
    """
    keys, outside = unread(f, towers), outer_unread(config, inner, f) if inner else []
    shapes = [*shapes_among(keys, f, strict=strict), *(outside if strict else ())]
    if shapes and strict:
        raise ConfigError(
            f"{who} is unknown, and its config.json has shapes that a plain Llama-like decoder does not have: "
            f"{named(shapes, f)}"
        )
    if shapes:
        raise ConfigError(
            f"config.json has shapes that nothing here reads: {named(shapes, f)}; correct them, or take out those that change nothing"
        )
    warnings = [f"config.json has keys that nothing here reads: {named(keys, f)}"] if keys else []
    warnings += [
        f"{plain(key, 60)}={shown(f.values[key])} in config.json is read as {shown(value)}: no other value is modelled"
        for key, value in f.contradicted.items()
        if key not in f.read
    ]
    if outside:
        warnings.append(f"only {inner} of config.json is read, and outside it stand {named(outside, f)}")
    return warnings


THINKER = "thinker_config"
"""What reads and writes text in an omni model."""
INNER = ("text_config", "llm_config", "language_config")
TOWERS = {
    "vision_config": "vision tower", "audio_config": "audio tower", "vision_tower": "vision tower",
    "audio_tower": "audio tower", "mm_vision_tower": "vision tower", "vit_config": "vision tower", "visual": "vision tower",
    "sound_config": "sound tower", "speech_config": "speech tower", "image_config": "image tower",
}  # fmt: skip
"""Keys of towers, and what each is called."""
SPEAKERS = ("talker_config", "token2wav_config", "code2wav_config")
"""Parts of omni models that write sound; Megatron-Bridge trains none of them."""
OF_ITS_OWN = {"exaone4_5": "exaone4_5_text"}
"""Models whose language model is another one than the object of its own says, and what it is."""
OTHER_POSITIONS = frozenset(
    (
        "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni", "qwen3_omni_moe", "qwen3_asr", "glm4v_moe",
        "mistral3",
    )
)  # fmt: skip
"""Models whose provider has mrope or yarn for positions, which Megatron-Bridge never fuses (`utils/fusions.py`)."""
TIED = "tie_word_embeddings"
SHARED = (TIED, "architectures")
"""Keys of an outer object that hold for the language model where its own lacks them."""
TIED_OUTSIDE = ("qwen2_5_vl", "qwen3_vl", "qwen3_5", "exaone4_5", "minimax_m3")
"""Beginnings of models whose outer object says whether embeddings are tied, also where the inner one says otherwise
(`qwen_vl/qwen3_vl_bridge.py`, `exaone/exaone45/exaone45_bridge.py`, `minimax_m3/minimax_m3_bridge.py`)."""


class Nested(NamedTuple):
    """The language model's fields, the key that they stand under, the towers beside it by their keys, and what is said of that.

    `apart`: the language model stands in an object of its own.
    """

    values: dict[str, Any]
    key: str
    towers: dict[str, str]
    warnings: list[str]
    apart: bool = False


def unwrap(config: Mapping[str, Any]) -> Nested:
    """The language model of a config. Raises ConfigError for an inner key that holds no object."""
    warnings = [
        f"{part} is not counted: Megatron-Bridge trains what reads and writes text"
        for part in SPEAKERS
        if config.get(part)
    ]
    outer, above = config, ""
    if THINKER in config:
        outer, above = _object(config, THINKER), f"{THINKER}."
    found = {above + key: name for key, name in TOWERS.items() if outer.get(key)}
    for key in INNER:
        if outer.get(key) is None:
            continue
        inner = _object(outer, key)
        if not found:
            warnings.append(f"only the language model ({above}{key}) is counted; vision or audio towers are not")
        shared = {name: level[name] for level in (config, outer) for name in SHARED if name in level}
        values = {"model_type": outer.get("model_type") or config.get("model_type"), **shared, **inner}
        kind = str(config.get("model_type"))
        if kind in OF_ITS_OWN:
            values["model_type"] = OF_ITS_OWN[kind]
        if values.get(TIED) != shared.get(TIED, values.get(TIED)):
            of_outer = kind.startswith(TIED_OUTSIDE)
            values[TIED] = shared[TIED] if of_outer else values[TIED]
            read = "the outer one" if of_outer else f"that of {above}{key}"
            warnings.append(f"{TIED} differs inside and outside of {above}{key}; {read} is read, as in Megatron-Bridge")
        return Nested(values, above + key, found, warnings, apart=True)
    return Nested(dict(outer), above.rstrip("."), found, warnings)


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = config[key]
    if not isinstance(inner, Mapping):
        raise ConfigError(f"{plain(key, LONGEST_SHOWN)} in config.json must be an object")
    return inner


def levels(config: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects that hold the language model's, the outermost first, and its own last."""
    found = [config]
    for part in key.split(".") if key else ():
        found.append(found[-1][part])
    return found
