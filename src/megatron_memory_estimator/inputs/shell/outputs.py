"""What a few programs print, where it follows from their words and from what they read: `cat` of a here-document, `seq`, `expr`,
`basename`, `dirname`, the filters `tr`, `cut`, `wc`, `head`, `tail`; and arithmetic of `python -c`, `awk`, `bc`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ...errors import ConfigError
from .arithmetic import evaluated
from .grammar import Simple
from .input_output import document
from .state import Shell
from .values import Value, bare, in_doubt, present

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def output_of(shell: Shell, name: str, words: list[Value], node: Simple) -> Value | None:
    """What a program prints, for those whose output follows from their words; None for all others."""
    is_fed = any(one.feeds for one in node.redirects)
    if name == "cat" and not words and sum(one.feeds for one in node.redirects) <= 1:
        return document(shell, node)
    words = present(words)
    texts = [bare(word) for word in words]
    if any(map(in_doubt, words)) or len(words) > 50:
        return None
    if name in FILTERS:
        text = document(shell, node)
        return FILTERS[name](texts, text) if isinstance(text, str) and text.isascii() else None
    if name == "bc":
        text = document(shell, node)
        return _summed(shell, _exact(text, division="/")) if isinstance(text, str) and not words else None
    if is_fed:
        return None
    if texts[:1] == ["--"] and name in ("basename", "dirname", "realpath", "readlink"):
        texts = texts[1:]
    if name in ("realpath", "readlink"):
        return _place(shell, texts if name == "realpath" else texts[1:] if texts[:1] in (["-f"], ["-e"]) else [])
    if name in OF_WORDS:
        return OF_WORDS[name](texts)
    return _summed(shell, _expr(texts) if name == "expr" else plain_sum(name, texts))


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


def _summed(shell: Shell, expression: str | None) -> str | None:
    """The number that a sum of whole numbers is."""
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
    if not 1 <= len(words) <= 3 or not all(_WHOLE.fullmatch(word) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, last = numbers[0] if len(numbers) > 1 else 1, numbers[-1]
    step = numbers[1] if len(numbers) > 2 else 1
    if not step or abs(last - first) // abs(step) > 5000:
        return None
    return "".join(f"{n}\n" for n in range(first, last + (1 if step > 0 else -1), step))


def _expr(words: list[str]) -> str | None:
    """The sum of `expr`: whole numbers with + - * / %."""
    is_sum = len(words) % 2 and all(map(_WHOLE.fullmatch, words[::2])) and {*words[1::2]} <= set("+-*/%")
    return " ".join(words) if is_sum and sum(map(len, words[::2])) <= MOST_DIGITS else None


# -- filters --------------------------------------------------------------------------------------------------------------
MOST_DIGITS = 18
"""Of all numbers of an expression together: their product fits 64 bits."""
CLASSES = {
    "[:lower:]": "abcdefghijklmnopqrstuvwxyz", "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "[:digit:]": "0123456789",
    "[:space:]": " \t\n\v\f\r",
    "[:blank:]": " \t",
}  # fmt: skip


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
    return "".join((parts[0] if len(parts) == 1 else "".join(parts[field - 1 : field])) + "\n" for parts in lines)


def _wc(words: Sequence[str], text: str) -> str | None:
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text)}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


def _ends(words: Sequence[str], text: str, *, at_end: bool) -> str | None:
    match = re.fullmatch(r"(?:-n ?)?-?([0-9]{1,6})|", " ".join(words))
    if match is None or (words and words[0][:1] != "-"):
        return None
    count = int(match.group(1) or 10)
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(0, len(lines) - count) :] if at_end else lines[:count])


Text = Callable[[Sequence[str], str], str | None]
FILTERS: dict[str, Text] = {
    "tr": _tr,
    "cut": _cut,
    "wc": _wc,
    "head": partial(_ends, at_end=False),
    "tail": partial(_ends, at_end=True),
}
"""What a program makes of its words and of the text that it reads."""
OF_WORDS = {"seq": _seq, "basename": _basename, "dirname": _dirname}
"""What a program makes of its words."""


def plain_sum(name: str, words: Sequence[str]) -> str | None:
    """The expression of whole numbers that `python -c 'print(...)'` and `awk 'BEGIN {print ...}'` print, in the shell's own signs;
    None for anything else, and for what is not exact."""
    if name.startswith("python") and len(words) == 2 and words[0] == "-c":
        match = re.fullmatch(r"\s*print\s*\((?:\s*int\s*\((.*)\)\s*|(.*))\)\s*;?\s*", words[1], re.DOTALL)
        return _exact(match.group(1) or match.group(2), division="//") if match else None
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
    return text.replace("//", "/") if {*re.findall("/+", text)} <= {division} else None
