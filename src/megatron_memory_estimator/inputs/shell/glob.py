"""Patterns of the shell (`*`, `?`, `[...]`), matched in time linear in pattern and text each, without backtracking.

Source: the Bash Reference Manual 5.2, 3.5.8.1 (Pattern Matching), without `extglob`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import ConfigError

CLASSES: dict[str, list[tuple[str, str]]] = {
    "digit": [("0", "9")], "lower": [("a", "z")], "upper": [("A", "Z")], "alpha": [("a", "z"), ("A", "Z")],
    "space": [("\t", "\r"), (" ", " ")],
    "alnum": [("0", "9"), ("a", "z"), ("A", "Z")], "blank": [(" ", " "), ("\t", "\t")], "xdigit": [("0", "9"), ("a", "f"), ("A", "F")],
    "punct": [("!", "/"), (":", "@"), ("[", "`"), ("{", "~")],
}  # fmt: skip
"""Classes of characters, of plain ASCII texts."""


class Unit(NamedTuple):
    """One part of a pattern: any text (`*`), or one character that `takes` accepts."""

    many: bool
    takes: Callable[[str], bool] = lambda _: True


def pattern(pieces: list[tuple[str, bool]]) -> tuple[Unit, ...]:
    """The pattern of (text, quoted) pieces; quoted text stands for itself. Raises ConfigError for what is not read."""
    text = [(c, quoted) for piece, quoted in pieces for c in piece]
    units: list[Unit] = []
    at = 0
    while at < len(text):
        c, quoted = text[at]
        at += 1
        if quoted or c not in "*?\\[":
            units.append(_one(c))
        elif c in "*?":
            units.append(Unit(c == "*"))
        elif c == "[" and (found := _set(text, at)) is not None:
            unit, at = found
            units.append(unit)
        elif c == "\\" and at < len(text):
            units.append(_one(text[at][0]))
            at += 1
        else:
            units.append(_one(c))
    return tuple(units)


def _one(c: str) -> Unit:
    return Unit(False, lambda other: other == c)


def _set(text: list[tuple[str, bool]], at: int) -> tuple[Unit, int] | None:
    """The set that begins behind a bracket, and the place behind it; None where it does not end."""
    negated = text[at : at + 1] in ([("!", False)], [("^", False)])
    at += negated
    ranges: list[tuple[str, str]] = []
    first = at
    while at < len(text) and (text[at] != ("]", False) or at == first):
        low = text[at][0]
        if low == "[" and text[at + 1 : at + 2] and text[at + 1][0] in ":.=":
            name, end = _named(text, at)
            ranges += CLASSES[name]
            at = end
        elif text[at + 1 : at + 2] == [("-", False)] and text[at + 2 : at + 3] not in ([], [("]", False)]):
            high = text[at + 2][0]
            if low != high and (low.isalpha() != high.isalpha() or low.islower() != high.islower()):
                raise ConfigError(
                    "a pattern with a range of different kinds of characters depends on the locale and is not read"
                )
            ranges.append((low, high))
            at += 3
        else:
            ranges.append((low, low))
            at += 1
        if len(ranges) > 1000:
            raise ConfigError("a pattern with a set of more than 1,000 characters is not read")
    if at >= len(text):
        return None
    return Unit(False, lambda c: any(low <= c <= high for low, high in ranges) != negated), at + 1


def _named(text: list[tuple[str, bool]], at: int) -> tuple[str, int]:
    """The class of characters in `[:name:]`, and the place behind it. Raises ConfigError for what is not read."""
    name = "".join(c for c, _ in text[at + 2 : at + 10]).partition(":]")[0]
    end = at + 4 + len(name)
    if text[at + 1][0] != ":" or name not in CLASSES or any(quoted for _, quoted in text[at:end]):
        raise ConfigError("a pattern with [[.x.]], [[=x=]] or a class that is none of the ASCII ones is not read")
    return name, end


def ends(units: tuple[Unit, ...], text: str) -> list[int]:
    """All lengths of beginnings of `text` that the pattern matches whole, in rising order."""
    alive = _closed(units, {0})
    found = [0] if len(units) in alive else []
    for place, c in enumerate(text, 1):
        after = set()
        for unit in alive:
            if unit < len(units):
                if units[unit].many:
                    after.add(unit)
                elif units[unit].takes(c):
                    after.add(unit + 1)
        alive = _closed(units, after)
        if not alive:
            break
        if len(units) in alive:
            found.append(place)
    return found


def matches(units: tuple[Unit, ...], text: str) -> bool:
    """Whether the pattern matches all of `text`."""
    return len(text) in ends(units, text)


def _closed(units: tuple[Unit, ...], alive: set[int]) -> set[int]:
    """The places in the pattern that can be reached without a character."""
    found = set(alive)
    for unit in alive:
        while unit < len(units) and units[unit].many:
            unit += 1
            found.add(unit)
    return found
