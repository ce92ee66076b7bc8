"""A layout in one word, as `compare --layout` takes it: `tp=4,pp=4,ep=8,recompute_granularity=full`."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import ConfigError
from ..job.layout import SHORT
from ..job.settings import field_kind, nearest
from .everyday import WORDS, Word, in_megatrons_words
from .setting_names import full_name, known_settings

EXTRA = {"bf16": "bool", "fp16": "bool", "gpu": "str", "attention_backend": "str"}
"""Words that are not settings of their own."""

BOOLEANS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def parse_layout_words(text: str) -> dict[str, Any]:
    """Settings by Megatron's names; a part without = belongs to the list before it. Raises ConfigError."""
    known = known_settings()
    found: dict[str, Any] = {}
    for name, word in _words(text).items():
        if name in EXTRA or name in WORDS:
            found[name] = _typed(text, EXTRA.get(name) or _kind(WORDS[name]), name, word)
            continue
        field = next(f for f in dataclasses.fields(known[name]) if f.name == name)
        found[name] = _typed(text, field_kind(field), name, word)
    try:
        return in_megatrons_words(found)
    except ConfigError as error:
        raise ConfigError(f'--layout "{text}": {error}') from None


def _kind(word: Word) -> str:
    """The kind of an everyday word's value."""
    return "int" if word.number else "bool" if word.alone else "str"


def _typed(text: str, kind: str, name: str, word: str) -> Any:
    """A word in the setting's type; lists and words stay as they are."""
    if kind == "bool":
        if word.lower() not in BOOLEANS:
            raise ConfigError(f'--layout "{text}": {name}={word} must be true or false')
        return BOOLEANS[word.lower()]
    if kind in ("int", "float") and word.lower() not in ("none", "null"):
        try:
            if not word.isascii() or "_" in word:
                raise ValueError
            return int(word) if kind == "int" else float(word)
        except ValueError:
            kind_name = "a whole number" if kind == "int" else "a number"
            raise ConfigError(f'--layout "{text}": {name}={word} must be {kind_name}') from None
    return word


def _words(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals and last:
            found[last] += f",{part.strip()}"
            continue
        last = full_name(name.strip())
        if not equals or not value.strip():
            raise ConfigError(f'--layout "{text}": "{part}" must be name=value, such as tp=4,pp=4,ep=8')
        if last not in known_settings() and last not in EXTRA and last not in WORDS:
            raise ConfigError(
                f'--layout "{text}": unknown setting "{name}".{nearest(name, [*SHORT, *WORDS, *known_settings()])}'
            )
        if last in found:
            raise ConfigError(f'--layout "{text}": {name} is given twice')
        found[last] = value.strip()
    return found
