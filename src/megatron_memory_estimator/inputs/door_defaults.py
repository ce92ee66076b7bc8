"""What each way to Megatron-Core (a door) decides where a run says nothing, by family of models: `doors.csv`, a row a setting.

The same model reaches Megatron-Core through `pretrain_gpt.py`, Megatron-Bridge or a framework, and each fuses other operations, takes
another loss and another dtype of the router. A run file says its door itself; a model by name is built as `pretrain_gpt.py` builds it,
with the habits of published recipes, or as `door` says.

The sources stand in the rows; `run` means that the class or recipe was executed and its fields were read, `read` that its source was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..job.assumption import OpenSetting
from ..job.choices import DOORS
from ..job.training import Training
from ..tables import rows_beside
from ..wording import dashed

MEGATRON_CORE, MEGATRON_LM, BRIDGE = "megatron-core", "megatron-lm", "bridge"
LOSS, IMPLEMENTATION = "cross_entropy_loss_fusion", "cross_entropy_fusion_impl"
LOSSES = (LOSS, IMPLEMENTATION, "loss_function")
_BUILT = (
    "bailing_moe bailing_moe_v2 deepseek_v2 deepseek_v3 deepseek_v4 ernie4_5_moe exaone4 exaone4_5 exaone_moe falcon_h1 gemma gemma2 "
    "gemma3 gemma3_text gemma4 glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss hy_v3 kimi_k2 kimi_k25 kimi_k3 llama mimo mimo_v2_flash "
    "minimax_m2 minimax_m3 minimax_m3_vl ministral3 mistral mistral3 nemotron nemotron-nas nemotron_h olmoe qwen2 qwen3 qwen3_5 "
    "qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe sarvam_mla sarvam_moe step3p5"
)
BUILT = frozenset(_BUILT.split())
"""Families that Megatron-Bridge 0.6.2 and its main branch of August 2026 build (`models/*`, MegatronModelBridge.register_bridge)."""


class Row(NamedTuple):
    """What a door decides for families (`*`: all others too). `when` is `name` where the files of runs say it themselves, `fuses` where it
    holds only for models whose activation Megatron-Core fuses."""

    door: str
    base: str
    when: str
    families: str
    setting: str
    value: Any
    sure: str
    source: str


_WORDS = {"true": True, "false": False, "null": None}


def _value(word: str) -> Any:
    if word in _WORDS:
        return _WORDS[word]
    try:
        return float(word) if "." in word else int(word)
    except ValueError:
        return word


@cache
def rows() -> tuple[Row, ...]:
    """The table, in its order: later rows of a door win over earlier ones."""
    return tuple(Row(**{**row, "value": _value(row["value"])}) for row in rows_beside(__file__, "doors.csv"))


def family_name(model_type: str) -> str:
    """The family of a `model_type`: a language model within another is of its family, unless it has rows of its own."""
    own = any(model_type in row.families.split() for row in rows())
    return model_type if own else model_type.removesuffix("_text").removesuffix("_vl") or model_type


def decided(door: str, model_type: str = "", *, by_name: bool = False) -> dict[str, Any]:
    """What a door decides for a family, over what the door that it builds on decides; without the classes of Megatron-Core and the
    arguments of Megatron-LM, whose defaults a model's own settings win over."""
    mine = [row for row in rows() if row.door == door]
    base = next((row.base for row in mine), "")
    found = decided(base, model_type, by_name=by_name) if base not in ("", MEGATRON_CORE, MEGATRON_LM) else {}
    family = family_name(model_type)
    for families in ("*", family):
        found |= {
            row.setting: row.value
            for row in mine
            if families in row.families.split() and (by_name or row.when != "name")
        }
    return found


def own(door: str, *, by_name: bool = False) -> dict[str, Any]:
    """What a door decides itself for all families, without the one that it builds on."""
    mine = (row for row in rows() if row.door == door and row.families == "*")
    return {row.setting: row.value for row in mine if by_name or row.when != "name"}


def unfused(door: str, config: Mapping[str, Any]) -> list[str]:
    """Fusions of a door that a model with such a config does without."""
    return [
        row.setting for row in rows() if row.door == door and row.when == "fuses" and config.get(row.setting) is False
    ]


def without_loss(door: str, model_type: str) -> dict[str, Any]:
    """What `decided` has beside the loss: a framework with a loss of its own inherits no other."""
    return {name: value for name, value in decided(door, model_type).items() if name not in LOSSES}


def under_a_model(door: str) -> dict[str, Any]:
    """What a door has for a model by name where neither it nor the model says anything: for Megatron-LM what our settings have too."""
    return {} if _builds_on(door, MEGATRON_LM) else decided(MEGATRON_CORE)


def over_a_model(door: str, model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a door decides for a model by name, whatever its config says. Raises ConfigError for a door that has no such model.

    Sequence parallelism follows the degree, as it does for every model by name: most runs say it themselves.
    """
    if door == MEGATRON_LM:
        return {}
    if _builds_on(door, BRIDGE) and model_type and family_name(model_type) not in BUILT:
        raise ConfigError(
            f"door={door}: Megatron-Bridge has no bridge for {model_type}, so {DOORS[door]} does not train it as other models; "
            f"use --door {MEGATRON_LM}, or one of the doors that do not build on it"
        )
    found = decided(door, model_type, by_name=True)
    left = {"sequence_parallel", *unfused(door, config)}
    return {name: value for name, value in found.items() if name not in left}


def _builds_on(door: str, base: str) -> bool:
    while door and door != base:
        door = next((row.base for row in rows() if row.door == door), "")
    return door == base


GROUPS: tuple[tuple[str, ...], ...] = (
    ("bias_activation_fusion",),
    LOSSES,
    ("apply_rope_fusion", "masked_softmax_fusion", "attention_softmax_in_fp32", "attention_kernel", "moe_router_dtype"),
)
"""Settings that doors decide and that are said together: the activation, the loss, all else that moves bytes."""
SHORT = {"bias_activation_fusion": "activation", LOSS: "loss"}


def open_settings(
    door: str, model_type: str, config: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[OpenSetting]:
    """What nobody gives and the nearest other door decides otherwise: Megatron-Bridge, or for every other one Megatron-LM itself."""
    other = BRIDGE if door == MEGATRON_LM else MEGATRON_LM
    family = family_name(model_type)
    if other == BRIDGE and family not in BUILT:
        return
    usual = {name: Training.__dataclass_fields__[name].default for names in GROUPS for name in names}
    taken, then = (
        {**usual, **under_a_model(one), **config, **over_a_model(one, model_type, config)} for one in (door, other)
    )
    for names in GROUPS:
        free = [name for name in names if name not in given]
        moved = [name for name in free if taken[name] != then[name]]
        if moved and free[0] == names[0]:
            yield OpenSetting(
                tuple((name, then[name]) for name in free),
                _called({name: taken[name] for name in moved}),
                f"{_said(names, taken, moved)}, the default of {DOORS[door]}",
                f"{_said(names, then, moved)}, as {DOORS[other]} builds {family}",
                DOORS[other],
                " ".join(_flag(name, then[name]) for name in moved),
            )


def _called(values: Mapping[str, Any]) -> str:
    """A few words for what is taken: fused activation, unfused loss."""
    own, name = values.get("loss_function"), next(iter(values))
    if own not in (None, "cross_entropy"):
        return f"loss of {own}"
    return f"{'fused' if values[name] else 'unfused'} {SHORT[name]}" if name in SHORT else "other fusions and dtypes"


def _said(names: tuple[str, ...], values: Mapping[str, Any], moved: Sequence[str]) -> str:
    """Values in words: on or off for a fusion alone, the kind of a loss, or each by its name."""
    if names == LOSSES:
        own = str(values["loss_function"])
        return own if own != "cross_entropy" else str(values[IMPLEMENTATION]) if values[LOSS] else "off"
    words = {name: {True: "on", False: "off", None: "its default"}.get(values[name], values[name]) for name in moved}
    return str(words[moved[0]]) if len(names) == 1 else ", ".join(f"{name} {word}" for name, word in words.items())


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return dashed(name) if value else dashed(f"no_{name}")
    return f"{dashed(name)} {value}"
