"""From a config.json to Megatron's names: unwrap it, find its family, and map its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...job.layer_kinds import MOST_LAYERS, MOST_MTP_LAYERS
from ...wording import LONGEST_SHOWN, plain, shown
from ..loaded_model import LoadedModel
from .families import FAMILIES, REFUSED, TIED, Converted, Family, plain_llama, refused
from .fields import UNFUSED, Fields, meant
from .towers import towers_of
from .unread import OTHER_POSITIONS, check_unread, levels, unwrap

PLAIN = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size",
}  # fmt: skip
NOT_PLAIN = (
    "expert", "lora", "moe", "mamba", "ssm", "linear_", "n_routed", "encoder", "kv_lora", "cross_attention", "attn_type",
    "layer_types", "hybrid", "conv", "post_norm", "postnorm", "lambda_",
)  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
DEPTHS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
PATTERN = ("layers_block_type",)
"""Lists whose length is the number of layers where nothing else says it (nemotron_h files of transformers 5)."""
LAYER_LISTS = (
    "layer_types", "mlp_layer_types", "indexer_types", "block_configs", "attn_type_list", "layers_block_type",
    "moe_layer_freq", "layernorm_types",
)  # fmt: skip
HEADS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def convert(config: Mapping[str, Any], name: str, source: str) -> LoadedModel:
    """The model that a config.json describes."""
    name, source = plain(name, LONGEST_SHOWN), plain(source)
    if not all(isinstance(key, str) for key in config):
        raise ConfigError("the keys of a config.json must be words")
    nested = unwrap(config)
    values, inner, warnings = nested.values, nested.key, nested.warnings
    if not all(isinstance(key, str) for level in levels(config, inner) for key in level):
        raise ConfigError("the keys of a config.json must be words")
    fields = Fields(values)
    towers, of_towers = towers_of(nested, config, fields)
    given = fields.word("model_type")
    model_type = given if given in FAMILIES or given in REFUSED else by_architecture(fields) or given
    if model_type in REFUSED:
        raise refused(name, model_type)
    who = f'model_type "{plain(given, LONGEST_SHOWN)}"' if given else "a config.json without model_type"
    family = FAMILIES.get(model_type)
    if family is None:
        family = _plain(who, values, towers=bool(towers))
        warnings.append(f"{who} is unknown; read as a plain Llama-like decoder")
    elif model_type != given:
        warnings.append(f"{who} is unknown; read as {model_type}, as its architectures say")
    check_counts(fields)
    converted, settings = mapped(fields, family, model_type)
    if nested.towers and str(config.get("model_type")) in OTHER_POSITIONS:
        settings.setdefault("apply_rope_fusion", False)
    if any(tower.hf is not None and tower.hf.kind == "siglip" for tower in towers):
        settings["attention_kernel"] = "cudnn"  # Gemma3VLModelProvider: its bias is added to scores by no other
    on_looks = family is plain_llama or model_type != given
    warnings += check_unread(fields, config, inner, towers=bool(towers), strict=on_looks, who=who)
    refusal = f"{name}: {converted.refusal}" if converted.refusal else ""
    built_by = (converted.provider.warning,) if converted.provider else ()
    return LoadedModel(
        settings,
        name,
        source,
        plain(model_type, LONGEST_SHOWN),
        refusal,
        (*of_towers, *warnings, *built_by, *converted.warnings),
        foreign=converted.extra,
        towers=towers,
        provider=converted.provider.name if converted.provider else "",
        outer_type=plain(str(config.get("model_type") or ""), LONGEST_SHOWN) if inner else "",
    )


def mapped(f: Fields, family: Family, model_type: str) -> tuple[Converted, dict[str, Any]]:
    """What a family's mapping gives, and all settings with what every family shares."""
    converted: Converted = family(f)
    settings = common(f, model_type)
    settings.update(converted.settings)
    for fusion in UNFUSED if converted.provider else ():
        settings.setdefault(fusion, False)
    depths = f.whole(*DEPTHS, default=0)
    if depths and not converted.refusal:
        settings.setdefault("mtp_num_layers", depths)
    freq, pattern = settings.get("moe_layer_freq", 1), settings.get("hybrid_layer_pattern")
    dense = "-" in pattern if pattern is not None else not settings.get("num_moe_experts") or freq != 1
    if dense and "ffn_hidden_size" not in settings:
        f.count("intermediate_size")  # says that it is missing, or zero, and what is near
    return converted, settings


def by_architecture(f: Fields) -> str:
    """The model_type that `architectures` names, or "" where it names none: NemotronForCausalLM is nemotron."""
    listed = f.raw("architectures")
    name = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else ""
    head = next((head for head in HEADS if name.endswith(head)), "")
    if not head:
        return ""
    stem = _bare(name.removesuffix(head))
    known = {_bare(kind): kind for kind in (*FAMILIES, *REFUSED)}
    return known.get(stem) or known.get(stem + "text") or known.get(OTHER_NAMES.get(stem, ""), "")


OTHER_NAMES = {"decilm": "nemotronnas"}
"""Architectures named unlike their model_type."""


def _bare(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def check_counts(f: Fields) -> None:
    """Refuse counts that would size a list, before a mapping makes one; and lists that are not one value per layer."""
    if not f.items(*PATTERN) or f.has(*LAYERS):
        f.count(*LAYERS, most=MOST_LAYERS)
    layers = f.optional_whole(*LAYERS)
    if f.whole(*DEPTHS, default=0) > MOST_MTP_LAYERS:
        raise ConfigError(
            f"config.json has {f.whole(*DEPTHS)} multi-token prediction layers; at most {MOST_MTP_LAYERS}"
        )
    for name in LAYER_LISTS:
        listed = f.values.get(name)
        if isinstance(listed, list) and listed and layers is not None and len(listed) != layers:
            raise ConfigError(
                f"{name} in config.json has {len(listed)} entries for {layers} layers; give one per layer"
            )


def _plain(who: str, values: Mapping[str, Any], *, towers: bool) -> Family:
    """Accept an unknown model_type only if its fields describe a plain Llama-like decoder."""
    missing = sorted(PLAIN - {k for k, v in values.items() if v is not None})
    odd = sorted(
        k for k, v in values.items() if any(word in k for word in NOT_PLAIN) and v not in (None, False, 0, [], "")
    )
    act = values.get("hidden_act", values.get("hidden_activation"))
    why = ""
    if towers:
        why = "it is a part of a model with vision or audio, whose language model may be anything"
    elif missing:
        why = f"it lacks {', '.join(name + meant(name, values, 'it has') for name in missing)}"
    elif odd:
        why = f"it has {', '.join(odd)}"
    elif act not in (None, "silu", "swish"):
        why = f"its activation is {shown(act)}, and Llama's is a gated silu"
    elif any(name in values for name in ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon")):
        why = "it has a LayerNorm, and Llama's norm is an RMSNorm"
    if why:
        raise ConfigError(f"{who} is unknown and its fields do not describe a plain Llama-like decoder: {why}")
    return plain_llama


def common(f: Fields, model_type: str) -> dict[str, Any]:
    """Fields that every family shares."""
    hidden = f.whole("hidden_size", "n_embd")
    layers = f.optional_whole(*LAYERS) or len(f.items(*PATTERN)) or f.whole(*LAYERS)
    heads = f.whole("num_attention_heads", "n_head", default=_default(model_type, "num_attention_heads"))
    groups = f.optional_whole("num_key_value_heads", "num_kv_heads")
    if groups is None:
        usual = None if "num_key_value_heads" in f.values else _default(model_type, "num_key_value_heads")
        groups = 1 if f.switch("multi_query", default=False) else usual or heads
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
    rope = f.values.get("rope_parameters")
    holder = f if f.has("partial_rotary_factor") or not isinstance(rope, Mapping) else Fields(rope)
    partial = holder.number("partial_rotary_factor", default=0)
    if partial > 1:
        raise ConfigError(f"partial_rotary_factor={partial} in config.json must be at most 1")
    if partial:
        settings["rotary_percent"] = partial
    return settings


def activation(f: Fields, model_type: str) -> str:
    """The activation function in Megatron's words."""
    default = "relu2" if model_type == "nemotron" else "gelu" if model_type.startswith(GELU) else "silu"
    word = f.word("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", default=default)
    if word in ("silu", "swish"):
        return "silu"
    if word == "situ":
        return "situ"
    if word == "swigluoai":
        return "quick_gelu"
    if word in ("relu2", "squared_relu"):
        return "squared_relu"
    if not word.startswith(("gelu", "quick_gelu")):
        raise ConfigError(f"hidden_act={shown(word)} in config.json is not an activation function of Megatron-Core")
    return "gelu"


GELU = ("gemma", "gpt2", "falcon")
"""Families whose configuration class defaults to a GELU."""

DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256},
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen3_moe": {"num_key_value_heads": 4},
}
"""Class defaults of families whose published files leave fields out (huggingface/transformers configuration classes)."""


def _default(model_type: str, name: str) -> int | None:
    return DEFAULTS.get(model_type, {}).get(name)
