"""Values of a shell script: a text, or a text with parts that nobody can know; and arrays of them.

A known value is a `str`. Any other is a tuple of pieces, each a `str` or an `Unknown`; `joined` makes either of parts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ...dataclass import dataclass


@dataclass(frozen=True)
class Unknown:
    """A part of a value that is not known.

    `unset`: a variable that nothing sets; it is empty for bash, and `name` is the variable. `outside`: what comes from outside of the
    script or differs between the ways through it; `why` says so, `name` is the variable that holds it (--set gives it), `choices` are the
    words that it may be, where they are known, `cause` is the variable that decides between them, where there is one, and `compared` are
    the values of it that the script names. Inside quotes it is one word (`quoted`), otherwise none or several. `apart`: an element of an
    array that was joined to one text; it is no element for bash, and a word of its own where the text is split again.
    """

    kind: Literal["unset", "outside"]
    name: str = ""
    why: str = ""
    choices: tuple[tuple[Value, ...], ...] = ()
    cause: str = ""
    compared: tuple[str, ...] = ()
    quoted: bool = False
    apart: bool = False

    @property
    def is_unset(self) -> bool:
        """Whether it is a variable that nothing sets."""
        return self.kind == "unset"

    @property
    def option(self) -> str:
        """The variable to give with --set, where there is one."""
        return self.cause or self.name


Piece = str | Unknown
Value = str | tuple[Piece, ...]


@dataclass(frozen=True)
class Array:
    """An array: values by number, or by word where it is `keyed` (`declare -A`)."""

    items: Mapping[int | str, Value]
    keyed: bool = False

    def values(self) -> list[Value]:
        """The elements in order."""
        if self.keyed:
            return list(self.items.values())
        return [self.items[key] for key in sorted(self.items, key=int)]

    @property
    def highest(self) -> int:
        """The highest index; -1 where there is none."""
        return max((int(key) for key in self.items), default=-1)

    @property
    def uncertain(self) -> bool:
        """Whether it is not known how many elements it has."""
        return any(loose(value) or vanishes(value) for value in self.items.values())

    def first(self) -> Value | None:
        """The element that the bare name of the array means."""
        return self.items.get("0" if self.keyed else 0)


Held = Value | Array
"""What a variable holds."""


def as_array(held: Held | None) -> Array:
    """What a variable holds as an array; a text is its first element."""
    return held if isinstance(held, Array) else Array({} if held is None else {0: held})


def pieces(value: Value) -> tuple[Piece, ...]:
    """The pieces of a value."""
    return (value,) if isinstance(value, str) else value


def altered(value: Value, change: Callable[[Unknown], Unknown]) -> Value:
    """The value with each part that is not known changed."""
    if isinstance(value, str):
        return value
    return tuple(piece if isinstance(piece, str) else change(piece) for piece in value)


EMPTY = "its default is empty"
"""Why a variable that nothing sets may stay empty."""


def unset(name: str, *, quoted: bool = False, by_default: bool = False) -> Value:
    """The value of a variable that nothing sets, perhaps one whose default is empty: `${NAME:-}`."""
    return (Unknown("unset", name, EMPTY if by_default else "", quoted=quoted),)


def joined(parts: Iterable[Value]) -> Value:
    """Parts as one value; a `str` where all of it is known."""
    found: list[Piece] = []
    run: list[str] = []
    for part in parts:
        for piece in pieces(part):
            if isinstance(piece, str):
                run.append(piece)
                continue
            if text := "".join(run):
                found.append(text)
            run = []
            found.append(piece)
    text = "".join(run)
    if not found:
        return text
    return (*found, text) if text else tuple(found)


def unknowns(value: Value) -> list[Unknown]:
    """The parts of a value that are not known."""
    return [piece for piece in pieces(value) if isinstance(piece, Unknown)]


def outside_in(value: Value) -> list[Unknown]:
    """The parts that come from outside; variables that nothing sets are none."""
    return [piece for piece in unknowns(value) if not piece.is_unset]


def unset_in(value: Value) -> list[str]:
    """The variables in a value that nothing sets."""
    return [piece.name for piece in unknowns(value) if piece.is_unset]


def in_doubt(value: Value) -> bool:
    """Whether a part of the value comes from outside; variables that nothing sets are empty."""
    return any(not piece.is_unset for piece in unknowns(value))


def loose(value: Value) -> bool:
    """Whether a word in doubt may be none, or several."""
    return any(not piece.quoted for piece in outside_in(value))


def bare(value: Value) -> str:
    """The known text of a value."""
    return "".join(piece for piece in pieces(value) if isinstance(piece, str))


def size(value: Value) -> int:
    """Characters of a value; each part that is not known counts as one."""
    return sum(len(piece) if isinstance(piece, str) else 1 for piece in pieces(value))


def vanishes(value: Value) -> bool:
    """Whether a word is nothing but variables that nothing sets, without quotes: no word for bash."""
    return not isinstance(value, str) and all(
        isinstance(piece, Unknown) and piece.is_unset and not piece.quoted for piece in value
    )


def present(words: Iterable[Value]) -> list[Value]:
    """The words that a command gets: those that vanish are none."""
    return [word for word in words if not vanishes(word)]


def quoted(value: Value) -> Value:
    """The value as inside quotes: each part that is not known is one word, be it empty."""
    return altered(value, lambda piece: dataclasses.replace(piece, quoted=True))


def unquoted(value: Value) -> Value:
    """The value as outside quotes: what an assignment stores."""
    return altered(value, lambda piece: dataclasses.replace(piece, quoted=False))


def readable(value: Value) -> str:
    """The value as it may be shown: $NAME for a variable that nothing sets, (unknown) for what comes from outside."""
    return "".join(
        piece if isinstance(piece, str) else f"${piece.name}" if piece.is_unset else "(unknown)"
        for piece in pieces(value)
    )


def words_of(held: Held | None) -> tuple[Value, ...]:
    """The words that a variable holds, split at blanks."""
    return tuple(held.values() if isinstance(held, Array) else split(held or ""))


def partition(value: Value, separator: str) -> tuple[Value, str, Value]:
    """A value in front of the first `separator` in its known text, the separator, and what stands behind it."""
    if isinstance(value, str):
        return value.partition(separator)
    for at, piece in enumerate(value):
        if isinstance(piece, str) and separator in piece:
            before, _, after = piece.partition(separator)
            return joined((*((one,) for one in value[:at]), before)), separator, joined((after, value[at + 1 :]))
    return value, "", ""


def split(value: Value) -> list[Value]:
    """The words of a value, cut at blanks of its known text."""
    found: list[list[Value]] = [[]]
    for piece in pieces(value):
        if isinstance(piece, Unknown):
            found[-1].append((piece,))
            continue
        first, *others = re.split(r"\s+", piece)
        found[-1].append(first)
        found += [[one] for one in others]
    return [word for word in map(joined, found) if word]


def head(value: Value) -> str:
    """The known text that a value begins with."""
    first = pieces(value)[0]
    return first if isinstance(first, str) else ""


def behind(value: Value, count: int) -> Value:
    """A value without the first `count` characters of its known text."""
    return joined((head(value)[count:], pieces(value)[1:]))


def base(value: Value) -> str:
    """The name of a program, without its folder."""
    return readable(value).split("/")[-1]


def with_blanks(values: Sequence[Value]) -> Value:
    """Words as one text, with a blank between them."""
    return joined((*values[:1], *(one for value in values[1:] for one in (" ", value))))
