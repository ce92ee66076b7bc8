"""Whole numbers read from text, options as they are written, and text that is safe to print: the only place where each is decided."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_DIGITS = 18
"""Digits of the longest whole number that is read; more than 10**18 of anything is no setting of a run."""
LONGEST_MESSAGE = 500
LONGEST_QUESTIONS = 2000
"""Characters of a message that asks for everything that a file leaves open."""
LONGEST_SHOWN = 100

_WHOLE = re.compile(rf"[0-9]{{1,{MOST_DIGITS}}}")
_SIGNED = re.compile(rf"-?[0-9]{{1,{MOST_DIGITS}}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


def whole(text: object) -> int | None:
    """The whole number that ASCII digits say, or None for anything else (signs, other scripts' digits, more than 18 digits)."""
    return int(text) if isinstance(text, str) and _WHOLE.fullmatch(text) else None


def signed(text: object) -> int | None:
    """The whole number that ASCII digits say behind at most one minus sign, or None."""
    return int(text) if isinstance(text, str) and _SIGNED.fullmatch(text) else None


def dashed(name: str) -> str:
    """An option as it is written on a command line: `--num-layers` of num_layers."""
    return f"--{name.replace('_', '-')}"


def any_of(values: Iterable[object]) -> str:
    """Values as alternatives of a sentence: `1, 2, 4 or 8`."""
    return _listed(values, "or")


def all_of(values: Iterable[object]) -> str:
    """Values together in a sentence: `a, b and c`."""
    return _listed(values, "and")


def _listed(values: Iterable[object], word: str) -> str:
    *rest, last = map(str, values)
    return f"{', '.join(rest)} {word} {last}" if rest else last


def counted(number: int, one: str) -> str:
    """`1 stage`, `2 stages`."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def sentence(text: str) -> str:
    """A thought as a sentence: with a capital, and a full stop."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def filled(words: Iterable[str], width: int, broken: str = "", indent: str = "") -> list[str]:
    """Words in lines of a width, none broken inside; each line but the last ends with `broken`, each but the first begins with `indent`."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) + len(broken) > width:
            lines[-1] += broken
            lines.append(indent + word)
        else:
            lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return lines


def any_count(numbers: Iterable[int], one: str) -> str:
    """`1 stage`, `2 or 4 stages`."""
    listed = any_of(numbers)
    return f"{listed} {one}" if listed == "1" else f"{listed} {one}s"


def plain(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text on one line, without control characters or half characters, and at most `most` characters long."""
    line = " ".join(_CONTROL.sub(" ", text[: 4 * most]).split())
    if len(line) <= most and len(text) <= 4 * most:
        return line
    return line[: most - 3] + "..."


def shown(value: object, most: int = LONGEST_SHOWN) -> str:
    """A value as Python writes it, shortened, for a message."""
    if isinstance(value, str | bytes):
        return plain(repr(value[: 2 * most]), most)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**MOST_DIGITS:
        return f"a number of more than {MOST_DIGITS} digits"
    if isinstance(value, dict | list | tuple | set | frozenset) and len(value) > most:
        return f"a {type(value).__name__} of {len(value)} values"
    try:
        return plain(repr(value), most)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"


def says_nothing(value: object) -> bool:
    """Whether a value stands for "not here": null, false, zero, or empty."""
    return value is None or value is False or (isinstance(value, int | float | str | list | dict) and not value)
