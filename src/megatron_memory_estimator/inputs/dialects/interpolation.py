"""Interpolations of OmegaConf, `${a.b}` and `${resolver:x,y}`, evaluated where they are looked at, within bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from .words import scalar

DEEPEST = 40
"""Interpolations that lead to one another."""
MOST = 20_000
"""Values that are looked at for one run file."""
LONGEST = 10_000
"""Characters of a text that interpolations put together."""
RESOLVER = re.compile(r"\s*([A-Za-z_][\w.]*):(.*)", re.DOTALL)
LARGEST = 10**18
"""Number that arithmetic gives."""
OPENING, CLOSING = "([{", ")]}"


def _divided(numbers: Sequence[float]) -> float:
    return numbers[0] / numbers[1]


ARITHMETIC: dict[str, Callable[[Sequence[float]], float]] = {
    "mul": math.prod,
    "div": _divided,
    "int_div": lambda numbers: numbers[0] // numbers[1],
    "add": sum,
    "sum": sum,
    "sub": lambda numbers: numbers[0] - numbers[1],
    "max": max,
    "min": min,
}
"""Resolvers of numbers that frameworks register."""


def split_at_commas(text: str) -> list[str]:
    """Parts between commas that stand in no bracket and no quotes; of an empty text none."""
    parts: list[str] = []
    start = depth = 0
    quote = ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return parts if len(parts) > 1 or parts[0].strip() else []


def pieces(text: str) -> list[tuple[bool, str]]:
    """Plain text and the insides of `${...}` in their order; one that is not closed is plain text."""
    found: list[tuple[bool, str]] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        end = _closing(text, start + 2)
        if end is None:
            break
        if start > at:
            found.append((False, text[at:start]))
        found.append((True, text[start + 2 : end]))
        at = end + 1
    if at < len(text):
        found.append((False, text[at:]))
    return found


def _closing(text: str, start: int) -> int | None:
    """The place of the brace that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    return None


class Interpolations:
    """What stands in a tree. A resolver that is not known leaves its text as it is."""

    def __init__(self, root: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self.root, self.env, self.looked_at = root, env, 0

    def at(self, path: Sequence[str], depth: int = 0) -> Any:
        """The value at a path, or None."""
        node: Any = self.root
        for number, part in enumerate(path):
            if isinstance(node, str):
                node = self._value(node, path[:number], depth)
            if isinstance(node, list) and part.isdecimal() and len(part) < 9:
                node = node[int(part)] if int(part) < len(node) else None
            else:
                node = node.get(part) if isinstance(node, Mapping) else None
            if node is None:
                return None
        return self._value(node, path, depth)

    def _value(self, node: Any, path: Sequence[str], depth: int) -> Any:
        """A node at a path with everything in it evaluated."""
        self.looked_at += 1
        if self.looked_at > MOST:
            raise ConfigError(f"interpolations of the file lead to more than {MOST} values")
        if depth > DEEPEST:
            raise ConfigError(f"{shown(node)} leads back to itself, or through more than {DEEPEST} others")
        if isinstance(node, Mapping):
            return {key: self._value(each, (*path, str(key)), depth + 1) for key, each in node.items()}
        if isinstance(node, list):
            return [self._value(each, (*path, str(at)), depth + 1) for at, each in enumerate(node)]
        return self._text(node, path, depth) if isinstance(node, str) and "${" in node else node

    def _text(self, text: str, path: Sequence[str], depth: int) -> Any:
        parts = [self._inside(inside, path, depth) if is_one else inside for is_one, inside in pieces(text)]
        if len(parts) == 1:
            return parts[0]
        if sum(len(str(part)) for part in parts if not isinstance(part, Mapping | list)) > LONGEST:
            raise ConfigError(f"{shown(text)} becomes longer than {LONGEST} characters")
        return "".join(part if isinstance(part, str) else shown(part) for part in parts)

    def _inside(self, inside: str, path: Sequence[str], depth: int) -> Any:
        """What an interpolation is: a resolver's value, or what stands at a path."""
        if depth > DEEPEST:
            raise ConfigError(f"${{{shown(inside)}}} leads back to itself, or through more than {DEEPEST} others")
        resolver = RESOLVER.fullmatch(inside)
        if resolver is None:
            key = self._text(inside, path, depth + 1) if "${" in inside else inside
            return self.at(_absolute(str(key).strip(), path), depth + 1)
        name = resolver.group(1)
        given = [self._argument(part, path, depth + 1) for part in split_at_commas(resolver.group(2))]
        found = self._resolved(name, given, depth)
        return "${" + inside + "}" if found is NotImplemented else found

    def _argument(self, text: str, path: Sequence[str], depth: int) -> Any:
        text = text.strip()
        if "${" in text:
            return self._text(text, path, depth)
        return scalar(text.strip("'\""))

    def _resolved(self, name: str, given: list[Any], depth: int) -> Any:
        """What a resolver gives; NotImplemented for one that is not known, or is not given what it takes."""
        fallback = given[1] if len(given) > 1 else None
        if name in ("oc.env", "env") and given:
            found = self.env.get(str(given[0]))
            if found is None and len(given) < 2:
                return NotImplemented
            return fallback if found is None else scalar(found)
        if name == "oc.select" and given:
            found = self.at(str(given[0]).split("."), depth + 1)
            return fallback if found is None else found
        if name == "oc.decode" and given:
            return scalar(given[0]) if isinstance(given[0], str) else given[0]
        numbers = [each for each in given if isinstance(each, int | float) and not isinstance(each, bool)]
        if name not in ARITHMETIC or len(numbers) != len(given) or len(given) < 2:
            return NotImplemented
        try:
            number = ARITHMETIC[name](numbers)
            if not abs(number) < LARGEST:
                return NotImplemented
            return int(number) if isinstance(number, float) and number.is_integer() else number
        except (ZeroDivisionError, OverflowError, ValueError):
            return NotImplemented


def _absolute(key: str, path: Sequence[str]) -> list[str]:
    """The path that a key means at a path; the first dot in front of it is the mapping that it stands in, each more one above."""
    name = key.lstrip(".")
    ups = len(key) - len(name)
    parts = name.replace("[", ".").replace("]", "").split(".")
    return [*path[: max(len(path) - ups, 0)], *parts] if ups else parts
