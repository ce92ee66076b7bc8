"""What a few programs print, where it follows from their words: `cat` of a here-document, `seq`, `expr`, `basename`, `dirname`."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from ...errors import ConfigError
from ...wording import signed
from .arithmetic import evaluated
from .doubts import MARK, bare, in_doubt, present
from .files import document
from .filters import filtered, plain_sum
from .grammar import Simple
from .state import Shell

FILTERS = frozenset({"tr", "cut", "wc", "head", "tail", "bc"})


def output_of(shell: Shell, name: str, words: list[str], node: Simple) -> str | None:
    """What a program prints, for those whose output follows from their words; None for all others."""
    if name == "cat" and not words and sum(one.feeds for one in node.redirects) <= 1:
        return document(shell, node)
    words = present(words)
    if name.split("/")[-1] in FILTERS:
        text = document(shell, node)
        known_words = text is not None and MARK not in text and not any(in_doubt(word) for word in words)
        if not known_words or text is None:
            return None
        texts = [bare(word) for word in words]
        return _summed(shell, name, texts, text) if name == "bc" else filtered(name, texts, text)
    if any(one.feeds for one in node.redirects) or any(in_doubt(word) for word in words) or len(words) > 50:
        return None
    texts = [bare(word) for word in words]
    if texts[:1] == ["--"] and name in ("basename", "dirname", "realpath", "readlink"):
        texts = texts[1:]
    if name == "seq":
        return _seq(texts)
    if name == "expr":
        return _expr(texts)
    if name == "basename" and len(texts) in (1, 2) and not texts[0].startswith("-"):
        base = texts[0].rstrip("/").split("/")[-1]
        suffix = texts[1] if len(texts) == 2 else ""
        return (base.removesuffix(suffix) if base != suffix else base) + "\n" if base else None
    if name == "dirname" and len(texts) == 1 and re.fullmatch(r"[^-/][^/]*(/[^/]+)*|(/[^/]+)+", texts[0]):
        head = texts[0].rsplit("/", 1)[0] if "/" in texts[0] else "."
        return (head or "/") + "\n"
    if name in ("realpath", "readlink"):
        return _place(shell, texts if name == "realpath" else texts[1:] if texts[:1] in (["-f"], ["-e"]) else [])
    return _summed(shell, name, texts, None)


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
