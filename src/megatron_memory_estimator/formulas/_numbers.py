"""Whole numbers of foreign configs, checked in the words of the published functions."""

from __future__ import annotations

import operator
from typing import Any


def whole(name: str, value: Any) -> int:
    """A whole number of at least 0, whatever its type. Raises ValueError."""
    found = _integer(value)
    if found is None or found < 0:
        raise ValueError(f"{name} must be non-negative")
    return found


def positive(name: str, value: Any) -> int:
    """A whole number of at least 1, whatever its type. Raises ValueError."""
    found = _integer(value)
    if found is None or found < 1:
        raise ValueError(f"{name} must be positive")
    return found


def plain(value: Any) -> Any:
    """A NumPy number or array as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def _integer(value: Any) -> int | None:
    value = plain(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return operator.index(value)
    except TypeError:
        return None
