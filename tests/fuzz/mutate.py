"""Mutations of texts, trees and words; the same generator of random numbers gives the same ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

LONGEST = 10_000
"""Characters of a case: what is short must be quick."""
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 8, 64, 4096, 10**5, 10**9, 2**40, 10**18, 10**30, -(2**63), 0.0, -0.0, 0.5, 1.5, 1e-320, 1e308,
    float("nan"), float("inf"), "", " ", "0", "8", "-1", "--5", "\u00b2", "9" * 30, "9" * 5000, "1e5", "0x10", "1_0", "none", "null",
    "true", "x", "x" * 2000, "\0", "\x1b[31mx", "[/red]x", "\ud800", "\u202ex", "\u00e9", "$A", "a,b", "a=b", "../x", "-", "--", "[", "{",
    "([0]*3+[1]*5)", "[0]*99999", "Et*3|t*3L", "block:2", "2.5", "bf16", "full", "selective", [], [1], [[]], [None], ["x"], [0] * 50, {},
    {"a": 1}, {"": {}},
)  # fmt: skip
PAIRS = (
    ("(", ")"),
    ("{", "}"),
    ("[", "]"),
    ("$(", ")"),
    ("${", "}"),
    ('"', '"'),
    ("'", "'"),
    ("((", "))"),
    ("`", "`"),
    ("$((", "))"),
)
GLUE = (
    "",
    " ",
    "\n",
    "\t",
    ";",
    ",",
    "=",
    ":",
    "|",
    "&",
    "#",
    "\\",
    "\r\n",
    "\0",
    "\u00b2",
    "\u2028",
    "-",
    "+",
    "*",
    "/",
    "%",
    "<",
    ">",
    "!",
)


@dataclass(frozen=True)
class Words:
    """What a reader's mutations may put in: pieces of text, and names of keys."""

    pieces: Sequence[str] = ()
    names: Sequence[str] = ()


def text(random: Random, given: str, other: str, words: Words) -> str:
    """A text with one to four changes; `other` is another text of the same kind."""
    changes: tuple[Callable[[Random, str, str, Words], str], ...] = (
        _cut, _insert, _insert, _double, _repeat, _nest, _swap_lines, _splice, _number, _token, _token,
    )  # fmt: skip
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        given = random.choice(changes)(random, given, other, words)[:LONGEST]
    return given


def _span(random: Random, given: str) -> tuple[int, int]:
    """A stretch of a text, mostly a short one."""
    start = random.randint(0, len(given))
    return start, min(len(given), start + random.choice((0, 1, 1, 2, 4, 8, 20, 80)))


def _cut(random: Random, given: str, other: str, words: Words) -> str:
    start, end = _span(random, given)
    return given[:start] + given[end:]


def _insert(random: Random, given: str, other: str, words: Words) -> str:
    at = random.randint(0, len(given))
    return given[:at] + _piece(random, words) + given[at:]


def _piece(random: Random, words: Words) -> str:
    kind = random.randint(0, 4)
    if words.pieces and kind:
        return random.choice(words.pieces)
    if kind == 1:
        return chr(random.choice((random.randint(0, 127), random.randint(0, 0x2FFF))))
    return random.choice(GLUE) if kind % 2 else as_text(random.choice(ODD))


def _double(random: Random, given: str, other: str, words: Words) -> str:
    start, end = _span(random, given)
    at = random.randint(0, len(given))
    return given[:at] + given[start:end] + given[at:]


def _repeat(random: Random, given: str, other: str, words: Words) -> str:
    start, end = _span(random, given)
    return given[:start] + given[start:end] * random.choice((2, 3, 10, 100, 1000)) + given[end:]


def _nest(random: Random, given: str, other: str, words: Words) -> str:
    start, end = _span(random, given)
    (left, right), times = random.choice(PAIRS), random.choice((1, 1, 2, 3, 30, 1000))
    return given[:start] + left * times + given[start:end] + right * random.choice((times, times, 0)) + given[end:]


def _swap_lines(random: Random, given: str, other: str, words: Words) -> str:
    lines = given.split("\n")
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a] if random.random() < 0.7 else lines[b]
    return "\n".join(lines)


def _splice(random: Random, given: str, other: str, words: Words) -> str:
    at, start = random.randint(0, len(given)), random.randint(0, len(other))
    return (
        given[:at]
        + other[start : start + random.choice((10, 50, LONGEST))]
        + given[at if random.random() < 0.5 else -1 :]
    )


def _number(random: Random, given: str, other: str, words: Words) -> str:
    places = [at for at, letter in enumerate(given) if letter.isdigit()]
    if not places:
        return given
    at = random.choice(places)
    return given[:at] + as_text(random.choice(ODD)) + given[at + 1 :]


def _token(random: Random, given: str, other: str, words: Words) -> str:
    tokens = given.split(" ")
    tokens[random.randrange(len(tokens))] = random.choice((_piece(random, words), random.choice(other.split(" "))))
    return " ".join(tokens)


def as_text(value: Any) -> str:
    """A value as it stands in a file."""
    return value if isinstance(value, str) else json.dumps(value)


def tree(random: Random, given: Any, other: Any, words: Words) -> Any:
    """A tree with one to four changes at random places."""
    root: dict[str, Any] = {"": copy.deepcopy(given)}
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        places = list(_places(root))
        donors = [holder[key] for holder, key in _places({"": other})]
        holder, key = random.choice(places)
        change = random.randint(0, 9)
        if change < 4:
            holder[key] = copy.deepcopy(random.choice(ODD))
        elif change == 4 and (holder is not root or key):
            del holder[key]
        elif change == 5 and isinstance(holder, dict) and words.names:
            name = random.choice(words.names) if random.random() < 0.9 else as_text(random.choice(ODD))[:50]
            holder[name] = copy.deepcopy(random.choice((random.choice(ODD), random.choice(donors), holder[key])))
        elif change == 6:
            holder[key] = copy.deepcopy(random.choice(donors))
        elif change == 7:
            holder[key] = random.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * random.choice((2, 30))))
        elif isinstance(holder[key], str):
            holder[key] = text(random, holder[key], as_text(random.choice(donors)), words)
        elif isinstance(holder[key], int | float):
            holder[key] = random.choice(
                (holder[key] * 2, holder[key] + 1, -holder[key], str(holder[key]), holder[key] * 1.0)
            )
        root = root if "" in root else {"": None}
    return root[""] if len(json.dumps(root)) <= 2 * LONGEST else given


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every key of every mapping and list in a tree."""
    for key in range(len(value)) if isinstance(value, list) else list(value):
        yield value, key
        if isinstance(value[key], list | dict):
            yield from _places(value[key])


def argv(random: Random, given: list[str], other: list[str], words: Words) -> list[str]:
    """Words of a command line with one to four changes."""
    found = list(given)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4))):
        at = random.randint(0, len(found))
        change = random.randint(0, 6)
        if change == 0 and at < len(found):
            del found[at]
        elif change == 1:
            found.insert(at, random.choice(found) if found else "x")
        elif change == 2 and at < len(found):
            found[at] = text(random, found[at], random.choice(other or ["x"]), words)
        elif change == 3 and at < len(found):
            found[at] = as_text(random.choice(ODD))
        elif change == 4 and other:
            start = random.randrange(len(other))
            found[at:at] = other[start : start + random.randint(1, 3)]
        elif words.names:
            value = random.choice((*words.pieces, as_text(random.choice(ODD)), *(["8", "1", "true"] if found else [])))
            found[at:at] = random.choice(([random.choice(words.names), value], [random.choice(words.names)]))
    return found


def smaller(case: Any) -> Iterator[Any]:
    """Smaller cases than this one, the smallest first."""
    if isinstance(case, str):
        size = len(case) // 2
        while size:
            for at in range(0, len(case), size):
                yield case[:at] + case[at + size :]
            size //= 2
    elif isinstance(case, list):
        size = max(len(case) // 2, 1) if case else 0
        while size:
            for at in range(0, len(case), size):
                yield case[:at] + case[at + size :]
            size //= 2
        for at, item in enumerate(case):
            yield from ([*case[:at], less, *case[at + 1 :]] for less in smaller(item))
    elif isinstance(case, dict):
        for key in case:
            yield {name: value for name, value in case.items() if name != key}
        for key, item in case.items():
            yield from ({**case, key: less} for less in smaller(item))
