"""Expansion of words: braces, parameters, substitutions, arithmetic, splitting. Source: the Bash Reference Manual 5.2, 3.5.

Nothing is executed; what is not known stays in the words as `Unknown`, so that what depends on it can be asked for.
"""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from typing import NamedTuple

from ...wording import plain, signed
from . import glob
from .arithmetic import settled, worked_out
from .grammar import Arithmetic, Hole, Opaque, Param, Piece, Text, Word
from .parameters import (
    Found,
    by_pattern,
    in_case,
    keys,
    length,
    lookup,
    names,
    part,
    replaced,
    stretch,
)
from .paths import captured
from .state import Shell, decider
from .values import (
    Array,
    Value,
    altered,
    bare,
    in_doubt,
    joined,
    pieces,
    quoted,
    size,
    unquoted,
    unset,
    vanishes,
    with_blanks,
    words_of,
)
from .words import OF_EMPTINESS

MOST_FIELDS = 20_000


class Segment(NamedTuple):
    """A stretch of an expanded word: whether blanks split it, whether a new word begins with it, and whether it stands for itself in
    a pattern."""

    text: Value
    splits: bool = False
    breaks: bool = False
    fixed: bool = False


# -- words -----------------------------------------------------------------------------------------------------------
def fields(shell: Shell, word: Word) -> list[Value]:
    """The words that one word of the script becomes; words of unset variables alone stay, to be asked for."""
    found: list[Value] = []
    for one in braces(shell, word):
        found += _split(shell, [segment for piece in one.pieces for segment in segments(shell, piece)])
    if len(found) > MOST_FIELDS:
        raise shell.refuse(f"{plain(word.source, 60)} becomes more than {MOST_FIELDS} words")
    return found


def text_of(shell: Shell, word: Word) -> Value:
    """A word as one text, as an assignment stores it."""
    parts: list[Value] = []
    for piece in word.pieces:
        for at, one in enumerate(segments(shell, piece, whole=True)):
            parts += [" ", one.text] if one.breaks and at else [one.text]
            shell.spend(size(one.text) + 1)
    return unquoted(joined(parts))


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
        return [Segment(piece.text)]
    if isinstance(piece, Hole):
        return [Segment(quoted((piece.unknown,)) if piece.quoted else (piece.unknown,))]
    if isinstance(piece, Opaque):
        what = "is known on the machine only"
        if piece.source.endswith(">"):
            what = "stands for a value that is not written yet"
            shell.note(f"{plain(piece.source, 60)} {what}; to bash it is a file to read")
        return [Segment(quoted(shell.doubt(f"{plain(piece.source, 60)} {what}")))]
    if isinstance(piece, Param):
        return _parameter(shell, piece, whole=whole)
    if isinstance(piece, Arithmetic):
        found = worked_out(shell, text_of(shell, piece.expression))
    else:
        found = captured(shell, piece.body, piece.source)
    return [Segment(quoted(found) if piece.quoted else found, splits=not piece.quoted)]


class _Words:
    """Words that grow piece by piece. A word with quotes in it stays, be it empty."""

    def __init__(self, separators: str) -> None:
        self.found: list[Value] = []
        self.current: list[Value] = []
        self.begun = self.is_quoted = self.ended = False
        """Whether a word has begun, has quotes in it, and was ended by a blank of IFS, which a following separator belongs to."""
        self.separators = separators
        rest = f"[^{re.escape(separators)}]+"
        self.tokens = re.compile(f"[{re.escape(separators)}]|{rest}" if separators else "(?s:.+)")

    def add(self, value: Value) -> None:
        self.current.append(value)
        self.begun, self.ended = True, False

    def finish(self) -> None:
        value = joined(self.current)
        self.found.append(quoted(value) if self.is_quoted else value)
        self.current, self.begun, self.is_quoted = [], False, False

    def end(self) -> None:
        if self.begun:
            self.finish()

    def cut(self, text: str) -> None:
        """Adds a text that is cut at separators: blanks around them and between words are one."""
        for token in self.tokens.findall(text):
            if len(token) > 1 or token not in self.separators:
                self.add(token)
            elif token in " \t\n":
                self.ended = self.ended or self.begun
                self.end()
            elif self.ended and not self.begun:
                self.ended = False
            else:
                self.finish()


def _split(shell: Shell, parts: list[Segment]) -> list[Value]:
    """Words of segments: text that splits is cut at the characters of IFS."""
    words = _Words(shell.separators("split"))
    for one in parts:
        shell.spend(size(one.text) + 1)
        if one.breaks:
            words.end()
        if not one.splits or not words.separators:
            if one.text or not one.splits:
                words.is_quoted = words.is_quoted or not one.text
                words.add(one.text)
            continue
        for piece in pieces(one.text):
            if isinstance(piece, str):
                words.cut(piece)
            elif piece.apart:
                words.end()
                words.add((dataclasses.replace(piece, apart=False),))
                words.finish()
            else:
                words.add((piece,))
    words.end()
    return words.found


# -- parameters ------------------------------------------------------------------------------------------------------
def _parameter(shell: Shell, piece: Param, *, whole: bool) -> list[Segment]:
    """The segments of a parameter."""
    if piece.indirect:
        resolved = _resolved(shell, piece)
        if isinstance(resolved, Found):
            return [Segment(quoted(resolved.values[0]) if piece.quoted else resolved.values[0])]
        piece = resolved
    if piece.operator in OF_EMPTINESS:
        chosen = _alternative(shell, piece)
        if isinstance(chosen, Word):
            return _of_word(shell, piece, chosen, whole=whole)
        held = chosen
    else:
        held = _operated(shell, piece)
    if not held.many:
        text = held.values[0]
        shell.spend(size(text))
        return [Segment(quoted(text) if piece.quoted else unquoted(text), splits=not piece.quoted)]
    return _elements(shell, piece, held, whole=whole)


def _elements(shell: Shell, piece: Param, held: Found, *, whole: bool) -> list[Segment]:
    """The segments of `$@`, `${A[*]}` and their kin."""
    joiner = shell.separators("joined")[:1]
    shell.spend(sum(map(size, held.values)) + len(held.values))
    is_nowhere = not held.values and piece.name not in ("@", "*") and shell.variable(piece.name) is None
    if is_nowhere and not held.is_set and piece.operator == "":
        if held.many == "*" and piece.quoted:
            return [Segment(unset(piece.name, quoted=True))]
        return [Segment(unset(piece.name), not piece.quoted)]  # no word in bash, and asked for where one is needed
    if (held.many == "*" and (piece.quoted or whole)) or (whole and piece.quoted and piece.operator == "keys"):
        return [Segment(quoted(_joined(held.values, joiner)))]
    if whole:
        return [Segment(_joined(held.values, " "))]
    if piece.quoted:  # an element of unset variables alone is no element in bash, and stays to be asked for
        return [Segment(value, breaks=at > 0) for at, value in enumerate(held.values)]
    if joiner and joiner not in " \t\n":  # bash joins the elements by it and cuts the whole: an empty one stays a word
        return [Segment(unquoted(_joined(held.values, joiner)), splits=True)]
    return [Segment(unquoted(value), splits=True, breaks=at > 0) for at, value in enumerate(held.values)]


def _joined(values: list[Value], separator: str) -> Value:
    """Elements as one text; those of unset variables alone are none, and stay to be asked for."""
    parts: list[Value] = []
    several, is_apart = False, separator == " "
    for value in values:
        if vanishes(value):
            parts.append(altered(value, lambda piece: dataclasses.replace(piece, apart=is_apart)))
            continue
        parts += [separator, value] if several else [value]
        several = True
    return joined(parts)


def _held(shell: Shell, piece: Param) -> Found:
    """What a parameter holds, without its operator."""
    source = piece.index.source if piece.index is not None else ""
    if source in ("@", "*"):
        return lookup(shell, piece.name, None, source)
    return lookup(shell, piece.name, None if piece.index is None else text_of(shell, piece.index))


def _operated(shell: Shell, piece: Param) -> Found:
    """What a parameter gives with its operator."""
    operator, many = piece.operator, piece.index.source if piece.index else "@"
    if operator == "keys":
        return keys(shell, piece.name, many)
    if operator == "names":
        return names(shell, piece.name, many)
    if operator == "@":
        raise shell.unread(piece.source)
    value = shell.variable(piece.name) if operator == "length" else None
    if isinstance(value, Array) and value.keyed and piece.index is not None and many in ("@", "*"):
        return Found([str(len(value.items))])
    held = _held(shell, piece)
    if operator == "indirect":
        return _indirect(shell, piece, held)
    if operator == "length":
        return length(shell, piece.name, held)
    if not operator:
        return held
    if operator == ":" and held.many:
        numbers = [settled(shell, text_of(shell, word)) for word in piece.words]
        return stretch(shell, piece, held, numbers, shell.variable(piece.name))
    return held._replace(values=[_changed(shell, piece, one) for one in held.values])


def _changed(shell: Shell, piece: Param, value: Value) -> Value:
    """A value with a prefix, suffix, part or case changed."""
    if in_doubt(value):
        return shell.doubt(f"{plain(piece.source, 60)} is not known", cause=decider(value))
    if vanishes(unquoted(value)):
        return value
    text, operator = bare(value), piece.operator
    if operator in ("^", "^^", ",", ",,"):
        return in_case(shell, piece, text)
    if operator == ":":
        return part(shell, piece, text, [settled(shell, text_of(shell, word)) for word in piece.words])
    units = pattern_of(shell, piece.words[0])
    if units is None:
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    shell.spend(len(text) * (len(units) + 1))
    if operator[0] in "#%":
        return by_pattern(piece, text, units)
    return replaced(shell, piece, text, units, text_of(shell, piece.words[1]) if len(piece.words) > 1 else "")


def _alternative(shell: Shell, piece: Param) -> Found | Word:
    """`:-`, `-`, `:=`, `=`, `:?`, `?`, `:+`, `+`: what the parameter holds, or the word behind the operator."""
    operator, word = piece.operator, piece.words[0]
    with shell.during(lenient=True):
        held = _held(shell, piece)
    text = with_blanks(held.values)
    doubted = held.is_set and in_doubt(text) and not bare(text)
    is_set = held.is_set and (bool(bare(text)) or doubted if operator[0] == ":" else True)
    if operator.endswith("+"):
        if doubted:
            words = words_of(text_of(shell, word))
            why = f"whether {piece.name} is empty is not known"
            return Found([shell.doubt(why, "", ((), words), piece.name if piece.name.isidentifier() else "")])
        if is_set:
            return word
        return Found([], "@", True) if held.many == "@" and piece.quoted else Found([""])
    if is_set:
        return held
    if operator.endswith("?"):
        return Found([unset(piece.name)])
    if operator.endswith("="):
        if piece.index is not None or not piece.name.isidentifier():
            raise shell.unread(piece.source)
        shell.assign(piece.name, text_of(shell, word))
        return lookup(shell, piece.name, None)
    if operator == ":-" and not word.pieces and not held.is_set and not held.many and piece.index is None:
        return Found([unset(piece.name, by_default=True)])
    return word


def _of_word(shell: Shell, piece: Param, word: Word, *, whole: bool) -> list[Segment]:
    """The segments of the word behind an operator: its unquoted text splits, as all that an expansion gives."""
    found = []
    for one in word.pieces:
        for segment in segments(shell, one, whole=whole):
            splits = (segment.splits or (isinstance(one, Text | Hole) and not one.quoted)) and not piece.quoted
            fixed = segment.fixed or (not isinstance(one, Opaque) and one.quoted)
            text = segment.text if vanishes(segment.text) or not piece.quoted else quoted(segment.text)
            found.append(segment._replace(text=text, splits=splits, fixed=fixed))
    if not found and word.pieces:
        return []  # "${A[@]+"${A[@]}"}" of no elements
    return found or [Segment("", splits=not piece.quoted)]


def _named(shell: Shell, piece: Param, name: str | None) -> re.Match[str] | None:
    """The variable that `${!name}` means, with an index perhaps; None where it is not known."""
    if name is None:
        return None
    match = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+)(?:\[([@*]|[0-9]+)\])?", name)
    if match is None or (piece.indirect and match.group(2)):
        raise shell.unread(piece.source)
    return match


def _indirect(shell: Shell, piece: Param, found: Found) -> Found:
    """`${!name}`."""
    held = found.values[0] if not found.many else ""
    match = _named(shell, piece, held if isinstance(held, str) else None)
    if match is None:
        return Found([shell.doubt(f"{plain(piece.source, 60)}: the name is not known")])
    name, index = match.groups()
    return lookup(shell, name, None, index) if index in ("@", "*") else lookup(shell, name, index)


def _resolved(shell: Shell, piece: Param) -> Param | Found:
    """`${!name:-word}` as the expansion of the variable that name holds."""
    with shell.during(lenient=True):
        name = _held(shell, piece).values[0]
    if vanishes(unquoted(name)):
        raise shell.refuse(f"{plain(piece.source, 60)}: {piece.name} is set nowhere, at which bash stops the command")
    match = _named(shell, piece, None if in_doubt(name) else bare(name))
    if match is None:
        return Found([shell.doubt(f"{plain(piece.source, 60)}: the name is not known")])
    return dataclasses.replace(piece, name=match.group(1), index=None, indirect=False)


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
        for run in re.split("([\ue000-\uf8ff])", text):
            if run and 0xE000 <= ord(run[0]) < 0xE000 + len(others):
                pieces.append(others[ord(run) - 0xE000])
            elif run:
                pieces.append(Text(run))
        words.append(Word(tuple(pieces), word.line, word.source))
    return words


def _braced(shell: Shell, text: str, depth: int) -> list[str]:
    """The texts that braces make of one."""
    shell.spend(len(text) + 1)
    if depth > 12 or text.count("{") > 200:
        raise shell.refuse("braces are nested too deeply")
    for start in (match.start() for match in re.finditer("{", text)):
        cuts = _cuts(text, start)
        end, middle = cuts[-1], list[str]()
        if len(cuts) > 2:
            middle = [one for a, b in pairwise(cuts) for one in _braced(shell, text[a + 1 : b], depth + 1)]
        elif len(cuts) == 2:
            middle = _range(shell, text[start + 1 : end])
        if middle:
            rest = _braced(shell, text[end + 1 :], depth)
            if len(middle) * len(rest) > 10_000:
                raise shell.refuse("braces give more than 10,000 words")
            return [text[:start] + one + other for one in middle for other in rest]
    return [text]


def _cuts(text: str, start: int) -> list[int]:
    """The places of a brace, of the commas that belong to it, and of the brace that closes it; of the first one alone where none does."""
    found, level = [start], 0
    for at in range(start, len(text)):
        level += (text[at] == "{") - (text[at] == "}")
        if level == 0 or (level == 1 and text[at] == ","):
            found.append(at)
        if level == 0:
            return found
    return [start]


def _range(shell: Shell, text: str) -> list[str]:
    """`1..4`, `0..8..2`; nothing for a text that stays as it is, such as `1..$N`."""
    parts = text.split("..")
    if len(parts) not in (2, 3) or any("\ue000" <= c <= "\uf8ff" for c in text):
        return []
    numbers = [signed(part) for part in parts]
    is_lettered = all(len(part) == 1 and part.isalpha() for part in parts[:2])
    if is_lettered or (None not in numbers and any(re.match(r"-?0\d", part) for part in parts[:2])):
        raise shell.refuse(f"{{{plain(text, 40)}}} is not read")
    if None in numbers:
        return []
    first, last, step = (number or 0 for number in (*numbers, 1)[:3])
    step = abs(step) or 1
    if abs(last - first) // step > 10_000:
        raise shell.refuse("braces give more than 10,000 words")
    return [str(n) for n in range(first, last + (1 if last >= first else -1), step if last >= first else -step)]
