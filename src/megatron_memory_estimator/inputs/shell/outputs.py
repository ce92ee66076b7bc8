"""What a few programs print, where it follows from their words and from what they read: `cat` of a here-document, `seq`, `expr`,
`basename`, `dirname`, the filters `tr`, `cut`, `wc`, `head`, `tail`; and arithmetic of `python -c`, `awk`, `bc`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...errors import ConfigError
from ...wording import signed
from .arithmetic import evaluated
from .files import document
from .grammar import Simple
from .state import Shell
from .values import Value, bare, in_doubt, present

FILTERS = frozenset({"tr", "cut", "wc", "head", "tail", "bc"})


def output_of(shell: Shell, name: str, words: list[Value], node: Simple) -> Value | None:
    """What a program prints, for those whose output follows from their words; None for all others."""
    if name == "cat" and not words and sum(one.feeds for one in node.redirects) <= 1:
        return document(shell, node)
    words = present(words)
    texts = [bare(word) for word in words]
    if name.split("/")[-1] in FILTERS:
        text = document(shell, node)
        if not isinstance(text, str) or any(map(in_doubt, words)):
            return None
        return _summed(shell, name, texts, text) if name == "bc" else filtered(name, texts, text)
    if any(one.feeds for one in node.redirects) or any(map(in_doubt, words)) or len(words) > 50:
        return None
    if texts[:1] == ["--"] and name in ("basename", "dirname", "realpath", "readlink"):
        texts = texts[1:]
    if name in ("seq", "expr"):
        return _seq(texts) if name == "seq" else _expr(texts)
    if name in ("basename", "dirname"):
        return _basename(texts) if name == "basename" else _dirname(texts)
    if name in ("realpath", "readlink"):
        return _place(shell, texts if name == "realpath" else texts[1:] if texts[:1] in (["-f"], ["-e"]) else [])
    return _summed(shell, name, texts, None)


def _basename(texts: list[str]) -> str | None:
    if len(texts) not in (1, 2) or texts[0].startswith("-"):
        return None
    base = texts[0].rstrip("/").split("/")[-1]
    suffix = texts[1] if len(texts) == 2 else ""
    return (base.removesuffix(suffix) if base != suffix else base) + "\n" if base else None


def _dirname(texts: list[str]) -> str | None:
    if len(texts) != 1 or not re.fullmatch(r"[^-/][^/]*(/[^/]+)*|(/[^/]+)+", texts[0]):
        return None
    head = texts[0].rsplit("/", 1)[0] if "/" in texts[0] else "."
    return (head or "/") + "\n"


def _summed(shell: Shell, name: str, texts: list[str], text: str | None) -> str | None:
    """The number that a sum of whole numbers is."""
    expression = plain_sum(name, texts, text)
    if expression is None:
        return None
    with suppress(ConfigError):
        return f"{evaluated(shell, expression)}\n"
    return None


def _place(shell: Shell, texts: list[str]) -> str | None:
    """The place of the script, of its folder, or of what stands below, links followed."""
    beside = shell.beside
    path = texts[0] if len(texts) == 1 else ""
    if beside is None or not path.startswith("/") or beside.resolved(path, None) is None:
        return None
    return os.path.realpath(path) + "\n"


def _seq(words: list[str]) -> str | None:
    numbers = [signed(word) for word in words]
    if not 1 <= len(words) <= 3 or any(
        n is None or (len(w) > 1 and w.lstrip("-")[0] == "0") for n, w in zip(numbers, words, strict=True)
    ):
        return None
    values = [n for n in numbers if n is not None]
    first, step, last = (
        (1, 1, values[0]) if len(values) == 1 else (values[0], 1, values[1]) if len(values) == 2 else tuple(values)
    )
    if not step or abs(last - first) // abs(step) > 5000:
        return None
    return "".join(f"{n}\n" for n in range(first, last + (1 if step > 0 else -1), step))


def _expr(words: list[str]) -> str | None:
    """`expr` of whole numbers with + - * / %, from left to right by precedence."""
    if len(words) % 2 == 0 or not words:
        return None
    values, signs = [signed(word) for word in words[::2]], words[1::2]
    if any(value is None for value in values) or any(sign not in ("+", "-", "*", "/", "%") for sign in signs):
        return None
    terms = [values[0] or 0]
    for sign, value in zip(signs, values[1:], strict=True):
        number = value or 0
        if sign in ("+", "-"):
            terms.append(number if sign == "+" else -number)
            continue
        if sign in ("/", "%") and not number:
            return None
        left = terms[-1]
        quotient = abs(left) // abs(number) * (1 if (left < 0) == (number < 0) else -1) if number else 0
        terms[-1] = left * number if sign == "*" else quotient if sign == "/" else left - number * quotient
        if sign != "*" and len(terms) > 1:
            return None  # a sign that has been folded into the term would be divided too
        if abs(terms[-1]) > 2**62:
            return None
    return f"{sum(terms)}\n" if abs(sum(terms)) < 2**62 else None


# -- filters --------------------------------------------------------------------------------------------------------------
MOST_DIGITS = 18
"""Of all numbers of an expression together: their product fits 64 bits."""
CLASSES = {
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz", "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "[:digit:]": "0123456789",
    "[:space:]": " \t\n\v\f\r",
    "[:blank:]": " \t",
}  # fmt: skip


def filtered(name: str, words: Sequence[str], text: str) -> str | None:
    """What a filter makes of a text; None where it is not one that is worked out."""
    made: dict[str, Callable[[], str | None]] = {
        "tr": lambda: _tr(words, text),
        "cut": lambda: _cut(words, text),
        "wc": lambda: _wc(words, text),
        "head": lambda: _ends(words, text, at_end=False),
        "tail": lambda: _ends(words, text, at_end=True),
    }
    return made[name]() if name in made and text.isascii() else None


def _tr(words: Sequence[str], text: str) -> str | None:
    if len(words) == 2 and words[0] == "-d":
        gone = _characters(words[1])
        return None if gone is None else "".join(c for c in text if c not in gone)
    if len(words) != 2 or words[0].startswith("-"):
        return None
    old, new = _characters(words[0]), _characters(words[1])
    if not old or not new:
        return None
    new += new[-1] * (len(old) - len(new))
    return text.translate({ord(a): b for a, b in reversed(list(zip(old, new, strict=False)))})


def _characters(text: str) -> str | None:
    """The characters of a set of `tr`; None for what is not read."""
    if text in CLASSES:
        return CLASSES[text]
    text = text.replace("\\n", "\n").replace("\\t", "\t")
    if "\\" in text or "[" in text:
        return None
    ranges = re.sub(r"([a-z])-([a-z])|([A-Z])-([A-Z])|([0-9])-([0-9])", _range, text)
    return None if re.search(r"(?<=.)-(?=.)", ranges) else ranges


def _range(match: re.Match[str]) -> str:
    first, last = (group for group in match.groups() if group)
    return "".join(map(chr, range(ord(first), ord(last) + 1)))


def _cut(words: Sequence[str], text: str) -> str | None:
    given = " ".join(words)
    match = re.fullmatch(r"-d ?(\S|)[ ]*-f ?([0-9]+)|-f ?([0-9]+) -d ?(\S|)", given.replace("-d  ", "-d "))
    if match is None:
        return None
    mark = match.group(1) or match.group(4) or " "
    field = int((match.group(2) or match.group(3))[:4])
    lines = [line.split(mark) for line in text.splitlines()]
    if field < 1:
        return None
    return "".join(
        (parts[0] if len(parts) == 1 else parts[field - 1] if field <= len(parts) else "") + "\n" for parts in lines
    )


def _wc(words: Sequence[str], text: str) -> str | None:
    counts: dict[str, Callable[[], int]] = {
        "-l": lambda: text.count("\n"),
        "-w": lambda: len(text.split()),
        "-c": lambda: len(text),
    }
    return f"{counts[words[0]]()}\n" if len(words) == 1 and words[0] in counts else None


def _ends(words: Sequence[str], text: str, *, at_end: bool) -> str | None:
    match = re.fullmatch(r"(?:-n ?)?-?([0-9]{1,6})|", " ".join(words))
    if match is None or (words and words[0][:1] != "-"):
        return None
    count = int(match.group(1) or 10)
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(0, len(lines) - count) :] if at_end else lines[:count])


def plain_sum(name: str, words: Sequence[str], text: str | None) -> str | None:
    """The expression of whole numbers that `bc` is fed, or that `python -c 'print(...)'` and `awk 'BEGIN {print ...}'` print, in the
    shell's own signs; None for anything else, and for what is not exact."""
    if name == "bc":
        return _exact(text or "", division="/") if not words else None
    if name.startswith("python") and len(words) == 2 and words[0] == "-c":
        match = re.fullmatch(r"\s*print\s*\((.*)\)\s*;?\s*", words[1], re.DOTALL)
        inner = match.group(1) if match else ""
        converted = re.fullmatch(r"\s*int\s*\((.*)\)\s*", inner, re.DOTALL)
        return _exact(converted.group(1) if converted else inner, division="//")
    if name in ("awk", "gawk", "mawk") and len(words) == 1:
        match = re.fullmatch(r"\s*BEGIN\s*\{\s*print\s+([^;}]*?)\s*;?\s*\}\s*", words[0])
        return _exact(match.group(1), division="") if match else None
    return None


def _exact(text: str, *, division: str) -> str | None:
    """An expression that cannot overflow, whose quotients are rounded alike everywhere."""
    text = text.strip()
    if len(text) > 200 or not re.fullmatch(r"[0-9+\-*/() ]+", text) or re.search(r"\*\*|\+\+|--|(?<!\d)0\d", text):
        return None
    if sum(map(str.isdigit, text)) > MOST_DIGITS or ("/" in text and "-" in text):
        return None
    if any(sign != division for sign in re.findall("/+", text)):
        return None
    return text.replace("//", "/")
