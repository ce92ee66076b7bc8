"""Configs with a language model inside: which object is its own, and which towers stand beside it.

Sources: huggingface/transformers `src/transformers/models/*/configuration_*.py`; NVIDIA-NeMo/Megatron-Bridge
`src/megatron/bridge/models/` (`qwen_vl/`, `qwen_omni/`, `qwen3_asr/`, `nemotron_omni/`, `ministral3/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...wording import LONGEST_SHOWN, plain

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
