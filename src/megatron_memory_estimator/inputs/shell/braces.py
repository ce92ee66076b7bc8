"""Brace expansion: `a{1,2}`, `{1..4}`. Source: the Bash Reference Manual 5.2, 3.5.1."""

from __future__ import annotations

import re
from itertools import pairwise

from ...wording import plain, signed
from .grammar import Param, Piece, Text, Word
from .state import Shell


def braces(shell: Shell, word: Word) -> list[Word]:
    """The words that braces make of one word: `a{1,2}`, `{1..4}`."""
    texts = [piece.text for piece in word.pieces if isinstance(piece, Text) and not piece.quoted]
    if not any("{" in text for text in texts):
        return [word]
    others: list[Piece] = []
    masked = ""
    for piece in word.pieces:
        if isinstance(piece, Text) and not piece.quoted:
            masked += piece.text
        else:
            masked += chr(0xE000 + len(others))
            others.append(piece)
    found = _braced(shell, masked, 0)
    if found == [masked]:
        return [word]
    for at, piece in enumerate(others):  # $A{x,y} is $Ax $Ay: braces come first
        source = piece.source if isinstance(piece, Param) and not piece.quoted else ""
        if source[:1] == "$" and source[1:].isidentifier() and chr(0xE000 + at) + "{" in masked:
            raise shell.refuse(f"{plain(source, 40)} right before braces is not read")
    words = []
    for text in found:
        pieces: list[Piece] = []
        for part in re.split("([\ue000-\uf8ff])", text):
            if part and 0xE000 <= ord(part[0]) < 0xE000 + len(others):
                pieces.append(others[ord(part) - 0xE000])
            elif part:
                pieces.append(Text(part))
        words.append(Word(tuple(pieces), word.line, word.source))
    return words


def _braced(shell: Shell, text: str, depth: int) -> list[str]:
    """The texts that braces make of one."""
    shell.spend(len(text) + 1)
    if depth > 12 or text.count("{") > 200:
        raise shell.refuse("braces are nested too deeply")
    start = text.find("{")
    while start >= 0:
        end, commas, level = -1, [], 0
        for at in range(start, len(text)):
            level += text[at] == "{"
            level -= text[at] == "}"
            if text[at] == "," and level == 1:
                commas.append(at)
            if level == 0:
                end = at
                break
        inside = text[start + 1 : end] if end > 0 else ""
        middle: list[str] | None = None
        if end > 0 and commas:
            cuts = [start, *commas, end]
            middle = [one for a, b in pairwise(cuts) for one in _braced(shell, text[a + 1 : b], depth + 1)]
        elif end > 0 and ".." in inside:
            middle = _range(shell, inside)
        if middle is not None:
            rest = _braced(shell, text[end + 1 :], depth)
            if len(middle) * len(rest) > 10_000:
                raise shell.refuse("braces give more than 10,000 words")
            return [text[:start] + one + other for one in middle for other in rest]
        start = text.find("{", start + 1)
    return [text]


def _range(shell: Shell, text: str) -> list[str] | None:
    """`1..4`, `a..e`, `0..8..2`."""
    parts = text.split("..")
    numbers = [signed(part) for part in parts]
    if any("\ue000" <= c <= "\uf8ff" for c in text):
        return None  # `{1..$N}` stays as it is
    if len(parts) not in (2, 3) or any(number is None for number in numbers):
        if len(parts) in (2, 3) and all(len(part) == 1 and part.isalpha() for part in parts[:2]):
            raise shell.refuse(f"{{{plain(text, 40)}}} is not read")
        return None
    if any(re.match(r"-?0\d", part) for part in parts[:2]):
        raise shell.refuse(f"{{{plain(text, 40)}}} with leading zeros is not read")
    first, last = numbers[0] or 0, numbers[1] or 0
    step = abs(numbers[2] or 1) if len(parts) == 3 else 1
    if abs(last - first) // step > 10_000:
        raise shell.refuse("braces give more than 10,000 words")
    return [str(n) for n in range(first, last + (1 if last >= first else -1), step if last >= first else -step)]
