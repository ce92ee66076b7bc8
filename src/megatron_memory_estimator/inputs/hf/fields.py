"""Typed access to a Hugging Face config: first spelling present wins, an absent key means the family's default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError

LARGEST = 2**40


class Fields:
    """The architecture fields of one config; every getter names the field in its error."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def has(self, *names: str) -> bool:
        """Whether one of the spellings is present and not null."""
        return any(self.values.get(name) is not None for name in names)

    def raw(self, *names: str) -> Any:
        """The first spelling that is present and not null, or None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None) -> int:
        """A whole number of at least 0; lists of one repeated value are unwrapped."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise ConfigError(f"config.json has no {' or '.join(names)}")
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{names[0]}={value!r} in config.json must be a whole number")
        if not 0 <= value <= LARGEST:
            raise ConfigError(f"{names[0]}={_short(value)} in config.json is out of range (0 to {LARGEST})")
        return value

    def optional_whole(self, *names: str) -> int | None:
        """A whole number, or None where absent or null."""
        return self.whole(*names) if self.has(*names) else None

    def switch(self, *names: str, default: bool) -> bool:
        """A switch."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{names[0]}={value!r} in config.json must be true or false")
        return value

    def word(self, *names: str, default: str = "") -> str:
        """A word."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ConfigError(f"{names[0]}={value!r} in config.json must be a word")
        return value

    def items(self, *names: str) -> list[Any]:
        """A list, empty where absent."""
        value = self.raw(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigError(f"{names[0]} in config.json must be a list")
        return value


def _short(value: int) -> str:
    text = str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
    return text
