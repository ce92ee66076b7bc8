"""The operators of `${...}` on texts: lengths, stretches, patterns, case. Source: the Bash Reference Manual 5.2, 3.5.3."""

from __future__ import annotations

from ...wording import plain
from . import glob
from .arithmetic import settled
from .doubts import bare, in_doubt, loose, unquoted, vanishes
from .expand import Found, pattern_of, text_of
from .grammar import Param, Text
from .state import Array, Shell, Value


def length(shell: Shell, piece: Param, found: Found) -> Found:
    """`${#name}`."""
    if found.many:
        if any(map(loose, found.values)):
            return Found([shell.doubt(f"the number of words of {piece.name} is not known")], "", True)
        return Found([str(sum(not vanishes(value) for value in found.values))], "", True)
    value = found.values[0]
    if in_doubt(value):
        return Found([shell.doubt(f"the length of {piece.name} is not known")], "", True)
    return Found([str(len(bare(value)))], "", True)


def stretch(shell: Shell, piece: Param, found: Found, value: Value | None) -> Found:
    """`${@:2}`, `${A[@]:1:2}`."""
    numbers = [settled(shell, text_of(shell, word)) for word in piece.words]
    if any(isinstance(n, str) for n in numbers) or (len(numbers) > 1 and int(numbers[1]) < 0):
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    if isinstance(value, Array) and value.keyed:
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    if any(loose(one) or vanishes(one) for one in found.values):
        return Found([shell.doubt(f"the words of {piece.name} are not known")], "", True)
    start = int(numbers[0])
    if piece.name in ("@", "*"):
        start += len(found.values) + 1 if start < 0 else 0
        if start < 0:
            return Found([], found.many, False)
        if start == 0:
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        start -= 1
    values = found.values
    if start < 0:
        highest = max((int(key) for key in value.items), default=-1) if isinstance(value, Array) else 0
        start += highest + 1
        if start < 0:
            return Found([], found.many, False)
    if isinstance(value, Array):
        values = [value.items[key] for key in sorted(value.items, key=int) if int(key) >= start]
        start = 0
    end = None if len(numbers) < 2 else start + int(numbers[1])
    return Found(values[start:end], found.many, found.is_set)


def on_text(shell: Shell, piece: Param, value: str) -> str:
    """A value with a prefix, suffix, part or case changed."""
    if in_doubt(value):
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    if vanishes(unquoted(value)):
        return value
    value, operator = bare(value), piece.operator
    if operator in ("^", "^^", ",", ",,"):
        if piece.words[0].pieces or not value.isascii():
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        change = str.upper if operator[0] == "^" else str.lower
        return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
    if operator == ":":
        numbers = [settled(shell, text_of(shell, word)) for word in piece.words]
        start, length = numbers[0], numbers[1] if len(numbers) > 1 else len(value)
        if isinstance(start, str) or isinstance(length, str):
            return shell.doubt(f"{plain(piece.source, 60)} is not known")
        start = start + len(value) if start < 0 else start
        if start < 0 or start > len(value):
            return ""
        end = start + length if length >= 0 else len(value) + length
        if end < start:
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        return value[start:end]
    units = pattern_of(shell, piece.words[0])
    if units is None:
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    shell.spend(len(value) * (len(units) + 1))
    first = piece.words[0].pieces[:1]
    if operator == "/" and first and not isinstance(first[0], Text) and units and any(map(units[0].takes, "#%")):
        raise shell.refuse(f"{plain(piece.source, 60)}, whose pattern may be anchored, is not read")
    if operator in ("#", "##"):
        ends = glob.ends(units, value)
        return value[ends[0 if operator == "#" else -1] :] if ends else value
    if operator in ("%", "%%"):
        ends = glob.ends(units[::-1], value[::-1])
        return value[: len(value) - ends[0 if operator == "%" else -1]] if ends else value
    return _replaced(shell, piece, value, units)


def _replaced(shell: Shell, piece: Param, value: str, units: tuple[glob.Unit, ...]) -> str:
    """`${name/pattern/text}` and its kin: the longest match, once or throughout, or only at the beginning or the end."""
    text = text_of(shell, piece.words[1]) if len(piece.words) > 1 else ""
    if "&" in text or "\\" in text:
        raise shell.refuse(f"{plain(piece.source, 60)} with & in what replaces is not read")
    if not units or in_doubt(text):
        return value if not units else shell.doubt(f"{plain(piece.source, 60)} is not known")
    if piece.operator == "/#":
        ends = glob.ends(units, value)
        return text + value[ends[-1] :] if ends else value
    if piece.operator == "/%":
        ends = glob.ends(units[::-1], value[::-1])
        return value[: len(value) - ends[-1]] + text if ends else value
    out, at = [], 0
    while at < len(value):
        shell.spend(5 * (len(value) - at) * min(len(units), 8))
        ends = glob.ends(units, value[at:])
        if ends and ends[-1]:
            out.append(text)
            at += ends[-1]
            if piece.operator == "/":
                break
        else:
            out.append(value[at])
            at += 1
    return "".join(out) + value[at:]
