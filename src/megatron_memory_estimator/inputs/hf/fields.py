"""Typed access to a Hugging Face config: first spelling present wins, an absent key means the family's default.

What a family's mapping gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError, UnsupportedError
from ...wording import plain, says_nothing, shown

LARGEST = 2**40
MOST_COMPARED = 1000
"""Keys that a misspelt word is compared with."""


class Fields:
    """The architecture fields of one config; every getter names the field in its error and notes it in `read`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.read: set[str] = set()
        self.contradicted: dict[str, Any] = {}
        """Keys that say no, false or 0 of what the family has, and what is read instead."""

    def has(self, *names: str) -> bool:
        """Whether one of the spellings is present and not null."""
        self.read.update(names)
        return any(self.values.get(name) is not None for name in names)

    def raw(self, *names: str) -> Any:
        """The first spelling that is present and not null, or None."""
        self.read.update(names)
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def implied(self, **expected: Any) -> None:
        """Note keys that say what the family is anyway; one with another value stays unread, and so is named."""
        for name, value in expected.items():
            given = self.values.get(name)
            if given == value:
                self.read.add(name)
            elif given is not None and says_nothing(given) and not says_nothing(value):
                self.contradicted[name] = value

    def always(self, **expected: Any) -> None:
        """The same of keys that the model's class reads. Raises UnsupportedError for one that says no, false or 0."""
        self.implied(**expected)
        for name in expected:
            if name in self.contradicted:
                kind = plain(str(self.values.get("model_type")), 60)
                raise UnsupportedError(f"{name}={shown(self.values[name])} in config.json of {kind} is not modelled")

    def whole(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least 0; lists of one repeated value are unwrapped."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise ConfigError(f"config.json has no {' or '.join(names)}{meant(names[0], self.values, 'it has')}")
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{names[0]}={shown(value)} in config.json must be a whole number")
        if not 0 <= value <= LARGEST:
            raise ConfigError(f"{names[0]}={shown(value)} in config.json is out of range (0 to {LARGEST})")
        return value

    def count(self, *names: str, default: int | None = None, most: int = LARGEST) -> int:
        """A whole number of at least 1 and at most `most`."""
        value = self.whole(*names, default=default)
        if not 1 <= value <= most:
            raise ConfigError(f"{names[0]}={value} in config.json must be at least 1 and at most {most}")
        return value

    def optional_whole(self, *names: str) -> int | None:
        """A whole number, or None where absent or null."""
        return self.whole(*names) if self.has(*names) else None

    def wholes_of(self, name: str, default: tuple[int, ...] = (), *, least: int = 1) -> tuple[int, ...]:
        """The whole numbers of a list in their order, each at least that."""
        found = tuple(self.items(name)) or default
        if any(isinstance(item, bool) or not isinstance(item, int) or not least <= item <= LARGEST for item in found):
            raise ConfigError(f"{name} in config.json must be a list of whole numbers of at least {least}")
        return found

    def named(self, *names: str) -> str:
        """The first spelling that is present, or the last."""
        return next((name for name in names if self.values.get(name) is not None), names[-1])

    def wholes(self, *names: str) -> frozenset[int]:
        """The whole numbers of a list, empty where absent."""
        found = self.items(*names)
        if any(isinstance(item, bool) or not isinstance(item, int) for item in found):
            raise ConfigError(f"{names[0]} in config.json must be a list of whole numbers")
        return frozenset(found)

    def number(self, *names: str, default: float) -> float:
        """A finite number of at least 0."""
        value = self.raw(*names)
        if value is None:
            return default
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 <= value <= LARGEST:
            raise ConfigError(f"{names[0]}={shown(value)} in config.json must be a number from 0 to {LARGEST}")
        return float(value)

    def switch(self, *names: str, default: bool) -> bool:
        """A switch."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{names[0]}={shown(value)} in config.json must be true or false")
        return value

    def word(self, *names: str, default: str = "") -> str:
        """A word."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{names[0]}={shown(value)} in config.json must be a word")
        return value

    def items(self, *names: str) -> list[Any]:
        """A list, empty where absent."""
        value = self.raw(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigError(f"{names[0]}={shown(value)} in config.json must be a list")
        return value

    def section(self, name: str) -> Fields:
        """The fields of an inner object, none where absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name}={shown(value)} in config.json must be an object")
        return Fields(value or {})


def meant(word: str, among: Iterable[str], question: str = "did you mean") -> str:
    """The addition (did you mean WORD?) with the nearest of some words, or nothing where none is near."""
    from difflib import get_close_matches
    from itertools import islice

    alike = (one for one in islice(among, MOST_COMPARED) if one != word and abs(len(one) - len(word)) <= 3)
    near = get_close_matches(word, alike, n=1, cutoff=0.85)
    return f" ({question} {plain(near[0], 60)}{'?' if question.startswith('did') else ''})" if near else ""


UNFUSED = ("bias_activation_fusion", "apply_rope_fusion")
"""Fusions that a provider of Megatron-Bridge leaves off where it does not turn them on (`models/gpt_provider.py`)."""


class Provider(NamedTuple):
    """The class of Megatron-Bridge that builds a model which Megatron-LM alone does not train: its name, and what only it has."""

    name: str
    what: str

    @property
    def warning(self) -> str:
        """Which code the figures are true of."""
        said = f"{self.what}: not in Megatron-LM's own models; the figures are those of Megatron-Bridge's {self.name}"
        return f"{said}, which leaves {' and '.join(UNFUSED)} off"


class Converted(NamedTuple):
    """Settings in Megatron's names; parameters that Megatron-Core's layers do not have (signed, by name); why memory is
    refused, if it is; warnings; who builds it, if not Megatron-LM."""

    settings: dict[str, Any]
    extra: tuple[tuple[str, int], ...] = ()
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    provider: Provider | None = None
