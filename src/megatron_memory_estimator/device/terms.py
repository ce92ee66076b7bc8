"""What device memory is made of: named ranges with sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from ..job.hardware import GIB
from ..tape.tensor import largest


class Range(NamedTuple):
    """A low and a high value in bytes."""

    low: int
    high: int


def widest(one: Range, other: Range) -> Range:
    """The most of two ranges at either end, element by element for arrays."""
    return Range(largest(one.low, other.low), largest(one.high, other.high))


class Bounded(Protocol):
    """What has a low and a high value in bytes."""

    @property
    def low(self) -> int:
        """Its least."""

    @property
    def high(self) -> int:
        """Its most."""


def together(parts: Iterable[Bounded]) -> Range:
    """The bytes of several parts that are there at once."""
    every = tuple(parts)
    return Range(sum(one.low for one in every), sum(one.high for one in every))


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
