"""How a setting is declared: a dataclass field with its default and one sentence of help.

The sentence becomes the option's help on the command line and the row in the docs; `choices` are enforced; `flag` is
the Megatron-LM option where it is not the field's name with dashes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from ..errors import ConfigError
from .variants import frozen

LARGEST_INTEGER, LARGEST_NUMBER = 2**40, 1e16
Owner = Literal[
    "", "mla", "gdn", "dsa", "csa", "mamba", "moe", "mhc", "gated", "yarn", "parallel", "kimi", "gemma4", "tower", "audio"
]  # fmt: skip
"""Whose setting it is, where only some models have what it describes: latent attention, Gated DeltaNet, sparse attention, compressed
sparse attention, Mamba-2, routed experts, hyper-connections, streams that gates mix, YaRN, attention and MLP side by side, Kimi K3's
layers, Gemma 4's without experts, a vision tower that is counted."""


def setting(
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    flag: str = "",
    kind: str = "",
    of: Owner = "",
    words: Mapping[str, float] | None = None,
) -> Any:
    """A dataclass field with help text. `kind` overrides the parsing: "list" for comma-separated words. `words` stand for numbers.
    `of` says what a model must have for the setting to mean something."""
    metadata = {"help": text, "choices": choices, "flag": flag, "kind": kind, "of": of, "words": words or {}}
    return dataclasses.field(default=default, metadata=metadata)


def _meant(word: str, choices: Any) -> str:
    apart = word.split(",")
    if len(apart) > 1 and set(apart) <= set(choices):
        return f" Give them apart: {' '.join(apart)}"
    return nearest(word, choices)


def nearest(name: str, known: Any) -> str:
    """` Did you mean "x"?` for the nearest known name, or nothing."""
    from difflib import get_close_matches

    match = get_close_matches(name, list(known), n=1)
    return f' Did you mean "{match[0]}"?' if match else ""


def field_kind(field: dataclasses.Field[Any]) -> str:
    """The kind of a setting's value: int, float, bool, str, list or any."""
    if field.metadata.get("kind"):
        return str(field.metadata["kind"])
    words = str(field.type).replace(" ", "").split("|")
    for kind in ("bool", "int", "float", "str"):
        if kind in words:
            return kind
    return "any"


def checked(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value in the field's type, or a ConfigError that names the setting.

    Whole floats are taken for ints; ints for floats; no string is parsed here.
    """
    name, kind = field.name, field_kind(field)
    words = field.metadata.get("words") or {}
    if isinstance(value, str) and value in words:
        value = words[value]
    if kind in ("int", "float", "bool") and hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy scalar
    optional = "None" in str(field.type)
    if value is None:
        if optional:
            return None
        raise ConfigError(f"{name} must not be null; leave it out for its default {field.default!r}")
    if kind == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={value!r} must be true or false")
    elif kind == "int":
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name}={value!r} must be a whole number")
        if abs(value) > LARGEST_INTEGER:
            raise ConfigError(f"{name} is absurdly large; the largest accepted whole number is {LARGEST_INTEGER}")
    elif kind == "float":
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != value
            or abs(value) > LARGEST_NUMBER
        ):
            raise ConfigError(f"{name}={value!r} must be a finite number")
        value = float(value)
    elif kind == "str":
        if not isinstance(value, str):
            raise ConfigError(f"{name}={value!r} must be a word")
    elif kind == "ints":
        value = (value,) if isinstance(value, int) else value
        if not isinstance(value, list | tuple) or any(
            isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in value
        ):
            raise ConfigError(f"{name}={value!r} must be a list of whole numbers of at least 1")
        value = tuple(value)
    elif kind == "variants":
        value = frozen(value)
    elif kind in ("list", "words"):
        value = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{name}={value!r} must be a list")
        value = tuple(value)
        if kind == "words" and not all(isinstance(word, str) for word in value):
            raise ConfigError(f"{name}={value!r} must be a list of words")
    choices = field.metadata.get("choices") or ()
    for word in value if kind == "list" else (value,):
        if choices and word not in choices:
            raise ConfigError(f"{name}={word!r} is not one of {', '.join(choices)}.{_meant(str(word), choices)}")
    return value


def build(cls: type[Any], values: Mapping[str, Any]) -> Any:
    """The dataclass with checked values; an unknown name is refused with the nearest match."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in values:
        if name not in fields:
            raise ConfigError(f'unknown setting "{name}".{nearest(name, fields)}')
    return cls(**{name: checked(fields[name], value) for name, value in values.items()})
