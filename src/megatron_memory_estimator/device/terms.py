"""What device memory is made of: named ranges with sources."""

from __future__ import annotations

from typing import NamedTuple

from ..job.hardware import GIB
from ..tape.tensor import largest


class Range(NamedTuple):
    """A low and a high value in bytes."""

    low: int
    high: int


def widest(one: Range, other: Range) -> Range:
    """The most of two ranges at either end, element by element for arrays."""
    return Range(largest(one.low, other.low), largest(one.high, other.high))


class Term(NamedTuple):
    """A named part of device memory."""

    name: str
    low: int
    high: int
    source: str


def fixed(name: str, given: float | None, low: float, high: float, source: str) -> Term:
    """A term of so many GiB, or of what the environment sets."""
    if given is not None:
        return Term(name, int(given * GIB), int(given * GIB), "set by the user")
    return Term(name, int(low * GIB), int(high * GIB), source)
