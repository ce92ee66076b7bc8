"""From a config.json to Megatron's names: unwrap it, find its family, and map its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ..resolve import LoadedModel
from .families import FAMILIES, TIED, Converted, plain_llama
from .fields import Fields

INNER = ("text_config", "llm_config", "language_config")
TOWERS = ("vision_config", "audio_config", "vision_tower", "audio_tower")
PLAIN = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
}  # fmt: skip
NOT_PLAIN = (
    "expert", "lora", "moe", "mamba", "ssm", "linear_", "n_routed", "encoder", "kv_lora", "cross_attention", "attn_type",
    "layer_types", "hybrid", "conv",
)  # fmt: skip


def convert(config: Mapping[str, Any], name: str, source: str) -> LoadedModel:
    """The model that a config.json describes."""
    values, warnings = unwrap(config)
    fields = Fields(values)
    model_type = fields.word("model_type")
    if model_type == "deepseek_v4":
        raise UnsupportedError(
            "deepseek_v4 is not supported: its compressed attention, hash routing and hyper-connections are not in "
            "Megatron-Core's released layers"
        )
    family = FAMILIES.get(model_type)
    if family is None:
        family = plain_llama
        warnings.append(_unknown(model_type, values))
    converted: Converted = family(fields)
    settings = common(fields, model_type)
    settings.update(converted.settings)
    depths = fields.optional_whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules") or 0
    if depths and not converted.refusal:
        settings.setdefault("mtp_num_layers", depths)
    refusal = f"{name}: {converted.refusal}" if converted.refusal else ""
    return LoadedModel(
        settings, name, source, model_type, refusal, (*warnings, *converted.warnings), foreign=converted.extra
    )


def unwrap(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The language model's fields; a wrapped config gives the rest only where the inner level lacks it."""
    warnings = [f"{tower} is not counted: only the language model is" for tower in TOWERS if config.get(tower)]
    for key in INNER:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            values = {**{k: v for k, v in config.items() if k in ("tie_word_embeddings", "architectures")}, **inner}
            values.setdefault("model_type", config.get("model_type"))
            if not any(warnings):
                warnings.append(f"only the language model ({key}) is counted; vision or audio towers are not")
            return values, warnings
        if inner is not None:
            raise ConfigError(f"{key} in config.json must be an object")
    return dict(config), warnings


def _unknown(model_type: str, values: Mapping[str, Any]) -> str:
    """Accept an unknown model_type only if its fields describe a plain Llama-like decoder."""
    missing = sorted(PLAIN - {k for k, v in values.items() if v is not None})
    odd = sorted(
        k for k, v in values.items() if any(word in k for word in NOT_PLAIN) and v not in (None, False, 0, [], "")
    )
    shown = f'model_type "{model_type}"' if model_type else "a config.json without model_type"
    if missing or odd:
        why = f"it lacks {', '.join(missing)}" if missing else f"it has {', '.join(odd)}"
        raise ConfigError(f"{shown} is unknown and its fields do not describe a plain Llama-like decoder: {why}")
    return f"{shown} is unknown; read as a plain Llama-like decoder"


def common(f: Fields, model_type: str) -> dict[str, Any]:
    """Fields that every family shares."""
    hidden = f.whole("hidden_size", "n_embd")
    layers = f.whole("num_hidden_layers", "n_layer", "num_layers")
    heads = f.whole("num_attention_heads", "n_head", default=_default(model_type, "num_attention_heads"))
    groups = f.optional_whole("num_key_value_heads", "num_kv_heads")
    if groups is None:
        groups = 1 if f.switch("multi_query", default=False) else _default(model_type, "num_key_value_heads") or heads
    head_dim = f.optional_whole("head_dim", "attention_head_dim")
    if head_dim is None:
        head_dim = _default(model_type, "head_dim")
    settings: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "vocab_size": f.whole("vocab_size", default=_default(model_type, "vocab_size")),
        "share_embeddings_and_output_weights": f.switch("tie_word_embeddings", default=model_type in TIED),
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": activation(f, model_type),
        "add_bias_linear": f.switch("mlp_bias", default=False),
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "position_embedding_type": "rope",
    }
    if head_dim is not None:
        settings["kv_channels"] = head_dim
    width = f.optional_whole("intermediate_size", "n_inner")
    if width:
        settings["ffn_hidden_size"] = width
    positions = f.optional_whole("max_position_embeddings", "n_positions")
    if positions:
        settings["max_position_embeddings"] = positions
    partial = f.raw("partial_rotary_factor")
    if isinstance(partial, int | float) and not isinstance(partial, bool) and 0 < partial <= 1:
        settings["rotary_percent"] = float(partial)
    return settings


def activation(f: Fields, model_type: str) -> str:
    """The activation function in Megatron's words."""
    default = "gelu" if model_type.startswith(GELU) else "silu"
    word = f.word("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", default=default)
    if word in ("silu", "swish"):
        return "silu"
    if word in ("relu2", "squared_relu"):
        return "squared_relu"
    if not word.startswith(("gelu", "quick_gelu")):
        raise ConfigError(f"hidden_act={word!r} in config.json is not an activation function of Megatron-Core")
    return "gelu"


GELU = ("gemma", "gpt2", "falcon")
"""Families whose configuration class defaults to a GELU."""

DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
    "gemma2": {"head_dim": 256},
}
"""Class defaults of families whose published files leave fields out (huggingface/transformers configuration classes)."""


def _default(model_type: str, name: str) -> int | None:
    return DEFAULTS.get(model_type, {}).get(name)
