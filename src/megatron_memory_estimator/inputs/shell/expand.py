"""Expansion of words: braces, parameters, substitutions, arithmetic, splitting. Source: the Bash Reference Manual 5.2, 3.5.

Variables that nothing sets give marks (`doubts.py`), so that what depends on them can be asked for; nothing is executed.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from ...wording import plain, signed
from . import glob
from .arithmetic import settled
from .doubts import MARK, bare, in_doubt, quoted, readable, spread, stands_apart, unquoted
from .grammar import Arithmetic, Opaque, Param, Piece, Substitution, Text, Word
from .state import Shell

MOST_FIELDS = 20_000


class Segment(NamedTuple):
    """A stretch of an expanded word: whether blanks split it, and whether a new word begins with it."""

    text: str
    splits: bool = False
    breaks: bool = False
    fixed: bool = False
    """Whether it stands for itself in a pattern."""


class Found(NamedTuple):
    """What a parameter holds: its values (one, but for @ and *), and which of the two it is."""

    values: list[str]
    many: str
    is_set: bool


# -- words -----------------------------------------------------------------------------------------------------------
def fields(shell: Shell, word: Word) -> list[str]:
    """The words that one word of the script becomes; words of unset variables alone stay, as marks."""
    found: list[str] = []
    for one in braces(shell, word):
        found += _split(shell, [segment for piece in one.pieces for segment in segments(shell, piece)])
    if len(found) > MOST_FIELDS:
        raise shell.refuse(f"{plain(word.source, 60)} becomes more than {MOST_FIELDS} words")
    return found


def text_of(shell: Shell, word: Word) -> str:
    """A word as one text, as an assignment stores it."""
    parts = []
    for piece in word.pieces:
        found = segments(shell, piece, whole=True)
        parts.append("".join((" " if one.breaks and at else "") + one.text for at, one in enumerate(found)))
        shell.spend(len(parts[-1]) + 1)
    return unquoted("".join(parts))


def pattern_of(shell: Shell, word: Word) -> tuple[glob.Unit, ...] | None:
    """A word as a pattern, or None where a part of it is in doubt."""
    pieces = []
    for piece in word.pieces:
        is_quoted = not isinstance(piece, Opaque) and piece.quoted
        for one in segments(shell, piece, whole=True):
            if in_doubt(one.text):
                return None
            pieces.append((bare(one.text), is_quoted or one.fixed))
    shell.spend(sum(len(text) for text, _ in pieces))
    return glob.pattern(pieces)


def segments(shell: Shell, piece: Piece, *, whole: bool = False) -> list[Segment]:
    """What a piece becomes; `whole` where it will not be split (an assignment, a pattern, `[[ ]]`)."""
    if isinstance(piece, Text):
        return [Segment(quoted(piece.text) if piece.quoted else piece.text)]
    if isinstance(piece, Opaque):
        what = (
            "stands for a value that is not written yet"
            if piece.source.endswith(">")
            else "is known on the machine only"
        )
        if piece.source.endswith(">"):
            shell.note(f"{plain(piece.source, 60)} {what}; to bash it is a file to read")
        return [Segment(quoted(shell.doubt(f"{plain(piece.source, 60)} {what}")))]
    if isinstance(piece, Param):
        from .parameters import segments_of

        return segments_of(shell, piece, whole=whole)
    if isinstance(piece, Arithmetic):
        found = str(settled(shell, text_of(shell, piece.expression)))
    else:
        found = _substituted(shell, piece)
    return [Segment(quoted(found) if piece.quoted else found, splits=not piece.quoted)]


def _split(shell: Shell, parts: list[Segment]) -> list[str]:
    """Words of segments: text that splits is cut at the characters of IFS."""
    value = shell.state.variables.get("IFS", " \t\n")
    if not isinstance(value, str) or MARK in value:
        raise shell.refuse("IFS is not known, so words cannot be split")
    pieces = re.compile(rf"{MARK}[^{MARK}]*{MARK}|[{re.escape(value)}]|[^{re.escape(value)}{MARK}]+" if value else ".")
    found: list[str] = []
    current: str | None = None
    is_quoted = False  # a word with quotes in it stays, be it empty
    ended = False  # by a blank of IFS, which a following separator belongs to

    def finish() -> None:
        nonlocal current, is_quoted
        found.append(quoted(current or "") if is_quoted else current or "")
        current, is_quoted = None, False

    for part in parts:
        shell.spend(len(part.text) + 1)
        if part.breaks and current is not None:
            finish()
        if not part.splits or not value:
            if part.text or not part.splits:
                current, ended = (current or "") + part.text, False
                is_quoted = is_quoted or not part.text
            continue
        for stretch in pieces.findall(part.text):
            if stands_apart(stretch):
                if current is not None:
                    finish()
                current, ended = spread(stretch).strip(), False
                finish()
            elif stretch not in value or len(stretch) > 1:  # a run of other characters, or a mark
                current, ended = (current or "") + stretch, False
            elif stretch in " \t\n":
                if current is not None:
                    finish()
                    ended = True
            elif ended and current is None:
                ended = False
            else:
                finish()
    if current is not None:
        finish()
    return found


# -- braces ----------------------------------------------------------------------------------------------------------
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


# -- substitutions ---------------------------------------------------------------------------------------------------
def _substituted(shell: Shell, piece: Substitution) -> str:
    """What a substitution prints, where it is text that can be known; else a doubt."""
    from .commands import captured

    found = captured(shell, piece.body)
    if found is None:
        return shell.doubt(f"{plain(readable(piece.source), 80)} is a command, and nothing is executed")
    return found
