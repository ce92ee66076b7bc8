"""What filters print of a text that is known: `tr`, `cut`, `wc`, `head`, `tail`; and arithmetic of `python -c`, `awk`, `bc`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

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
