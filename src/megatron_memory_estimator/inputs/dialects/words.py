"""Words of programs: `--key value ...` and `key=value`, and what a word means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

NEGATIVE = re.compile(r"-[0-9.]")


def flags(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """`--key` with the words behind it up to the next one, keys with underscores; and the words before the first key.

    The last of equal keys holds, as in argparse. `--key=value` is one word.
    """
    found: dict[str, list[str]] = {}
    before: list[str] = []
    current: list[str] | None = None
    for word in words:
        if word.startswith("-") and not NEGATIVE.match(word) and len(word) > 1:
            key, equals, value = word.lstrip("-").partition("=")
            current = found[key.replace("-", "_")] = [value] if equals else []
        elif current is None:
            before.append(word)
        else:
            current.append(word)
    return found, before


def value_of(words: Iterable[str]) -> Any:
    """What the words behind a key mean: nothing is true, one is a scalar, several are a list."""
    values = [scalar(word) for word in words]
    return True if not values else values[0] if len(values) == 1 else values


def scalar(word: str) -> Any:
    """A word as YAML reads it: a number, true, false, null, or itself."""
    text = word.strip()
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null", "~", ""):
        return None
    if re.fullmatch(r"[+-]?[0-9](_?[0-9]){0,17}", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        return float(text)
    return text
