"""Names of layers of other shapes than the model's, and the settings that differ there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..wording import shown

Variants = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""Names of variants, each with the settings that differ."""
BASE = "base"
"""The name of a layer that is as the model says; an empty name means the same."""
MARK = "@"
"""What stands between a layer's kind and its variant: gqa+moe@sliding."""


def bare(kind: str) -> str:
    """A layer's kind without its variant."""
    return kind.partition(MARK)[0]


def variant_of(kind: str) -> str:
    """The variant of a layer's kind, or nothing."""
    return kind.partition(MARK)[2]


def marked(kind: str, name: str) -> str:
    """A layer's kind with its variant."""
    return f"{kind}{MARK}{name}" if name not in ("", BASE) else kind


def frozen(value: object) -> Variants:
    """Variants as they are kept, from an object of objects. Raises ConfigError for anything else."""
    if isinstance(value, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 2 for one in value):
        value = {name: own for name, own in value if isinstance(name, str)}
    if not isinstance(value, Mapping):
        raise ConfigError(f"variants={shown(value)} must be an object of objects: name, then setting and value")
    found = []
    for name, own in value.items():
        if isinstance(own, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 2 for one in own):
            own = {key: one for key, one in own if isinstance(key, str)}
        named = isinstance(name, str) and name.isidentifier() and name != BASE
        if not named or not isinstance(own, Mapping) or not all(isinstance(key, str) for key in own):
            raise ConfigError(f"variants {shown(name)} must be a word other than {BASE}, with an object of settings")
        found.append((name, tuple((key, tuple(one) if isinstance(one, list) else one) for key, one in own.items())))
    return tuple(found)


def as_object(variants: Variants) -> dict[str, dict[str, Any]]:
    """Variants as an object of objects."""
    return {name: dict(own) for name, own in variants}
