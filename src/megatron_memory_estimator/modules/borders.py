"""On which side of a border layouts are. An array of layouts shares one structure, so that all of it must agree."""

from __future__ import annotations

from typing import Any


def above(degree: int, limit: int) -> bool:
    """Whether a degree is above a limit; an array of layouts must agree, because it shares one structure."""
    return agreed(degree > limit)


def agreed(found: Any) -> bool:
    """An answer that all layouts of an array share, because they share one structure."""
    if isinstance(found, bool):
        return found
    assert found.all() or not found.any(), "layouts of different structure in one array"
    return bool(found.all())


def many(degree: int) -> bool:
    """Whether a degree is above one."""
    return above(degree, 1)
