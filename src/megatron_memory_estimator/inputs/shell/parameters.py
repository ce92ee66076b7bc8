"""What parameters hold, and the operators of `${...}` on it. Source: the Bash Reference Manual 5.2, 3.4 and 3.5.3.

The words behind a name (an index, a pattern, a number) are expanded already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...wording import plain
from . import glob
from .arithmetic import settled
from .grammar import Param, Text
from .state import Shell
from .values import Array, Held, Value, as_array, bare, in_doubt, loose, unknowns, unset, vanishes


class Found(NamedTuple):
    """What a parameter holds: its values (one, but for @ and *), and which of the two it is."""

    values: list[Value]
    many: str = ""
    is_set: bool = True


def lookup(shell: Shell, name: str, index: Value | None, many: str = "") -> Found:
    """What a parameter holds; `many` is @ or * where all elements of an array are meant."""
    state = shell.state
    if not state.frames and not shell.outer:
        shell.takes_words = shell.takes_words or name in ("@", "*")
        shell.takes_numbers = shell.takes_numbers or (name.isdigit() and name != "0") or name == "#"
    if name in ("@", "*"):
        return Found(list(state.positionals), name, bool(state.positionals))
    if name in ("#", "?", "0", "$", "!", "-"):
        return Found([_special(shell, name)])
    if name.isdigit():
        at = int(name[:9]) - 1
        if any(loose(word) for word in state.positionals[: at + 1]):
            return Found([shell.doubt(f"how many words stand before ${name} is not known")])
        is_set = at < len(state.positionals)
        return Found([state.positionals[at]] if is_set else [unset(name)], "", is_set)
    value = shell.variable(name)
    if many:
        values = _ordered(shell, name, value).values() if isinstance(value, Array) else [] if value is None else [value]
        return Found(values, many, bool(values))
    if index is not None or isinstance(value, Array):
        value = element(shell, name, value, index)
    # in ways no option says
    is_slurm_s = name.startswith("SLURM_") and shell.variable("SLURM_JOB_NUM_NODES") is not None
    if value is None and "nounset" in state.options and not shell.lenient and not is_slurm_s:
        shell.note(f"set -u: {plain(name, 60)} is set nowhere, at which bash stops unless the environment has it")
    return Found([unset(name) if value is None else value], "", value is not None)


def _special(shell: Shell, name: str) -> Value:
    """`$#`, `$?`, `$0` and others that have no name."""
    state = shell.state
    if name == "#":
        if any(map(loose, state.positionals)):
            return shell.doubt("the number of words is not known")
        return str(len(state.positionals))
    if name == "?":
        if state.status is None or state.status < 0:
            return shell.doubt("the status of a command is not known")
        return str(state.status)
    if name == "0" and shell.places:
        return shell.places[-1]
    return shell.doubt(f"${name} is known when the script runs only")


def element(shell: Shell, name: str, value: Held | None, index: Value | None) -> Value | None:
    """One element of an array; without an index the first."""
    value = as_array(value)
    asked: Value = "0" if index is None else index
    if value.keyed:
        return shell.doubt(f"the element of {name} is not known") if in_doubt(asked) else value.items.get(bare(asked))
    at = settled(shell, asked)
    if not isinstance(at, int):
        named = next((one.name for one in unknowns(asked) if one.is_unset), name)
        return shell.doubt(f"the element of {name} is not known", named)
    if value.uncertain:
        return shell.doubt(f"the element of {name} is not known", name)
    return value.items.get(at + value.highest + 1 if at < 0 else at)


def keys(shell: Shell, name: str, many: str) -> Found:
    """`${!name[@]}`."""
    value = shell.variable(name)
    if not isinstance(value, Array):
        return Found([] if value is None else ["0"], many, value is not None)
    if _ordered(shell, name, value).uncertain:
        return Found([shell.doubt(f"the elements of {name} are not known", name)])
    found: list[Value] = [str(key) for key in sorted(value.items, key=str if value.keyed else int)]
    return Found(found, many, bool(found))


def _ordered(shell: Shell, name: str, value: Array) -> Array:
    """An array whose elements have an order."""
    if value.keyed and len(value.items) > 1:
        raise shell.refuse(f"the order of the associative array {name} is bash's own")
    return value


def names(shell: Shell, start: str, many: str) -> Found:
    """`${!start*}`: variables whose names begin so."""
    known = {**shell.state.variables, **shell.given}
    return Found(sorted(name for name in known if name.startswith(start)), many, True)


# -- operators -------------------------------------------------------------------------------------------------------------
def length(shell: Shell, name: str, found: Found) -> Found:
    """`${#name}`."""
    if found.many:
        is_known, what = not any(map(loose, found.values)), f"the number of words of {name}"
        number = sum(not vanishes(value) for value in found.values)
    else:
        is_known, what, number = not in_doubt(found.values[0]), f"the length of {name}", len(bare(found.values[0]))
    return Found([str(number) if is_known else shell.doubt(f"{what} is not known")])


def stretch(shell: Shell, piece: Param, found: Found, numbers: Sequence[int | Value], value: Held | None) -> Found:
    """`${@:2}`, `${A[@]:1:2}`."""
    known = [number for number in numbers if isinstance(number, int)]
    is_keyed = isinstance(value, Array) and value.keyed
    if len(known) < len(numbers) or (len(known) > 1 and known[1] < 0) or is_keyed:
        raise shell.unread(piece.source)
    if any(loose(one) or vanishes(one) for one in found.values):
        return Found([shell.doubt(f"the words of {piece.name} are not known")])
    start, values = known[0], found.values
    if piece.name not in ("@", "*") and not isinstance(value, Array) and values:
        return _stretch_of_text(shell, piece, found, numbers)
    if piece.name in ("@", "*"):
        start += len(values) + 1 if start < 0 else 0
        if start < 0:
            return Found([], found.many, False)
        if start == 0:
            raise shell.unread(piece.source)
        start -= 1
    if start < 0:
        start += (value.highest if isinstance(value, Array) else 0) + 1
        if start < 0:
            return Found([], found.many, False)
    if isinstance(value, Array):
        values = [value.items[key] for key in sorted(value.items, key=int) if int(key) >= start]
        start = 0
    end = None if len(known) < 2 else start + known[1]
    return Found(values[start:end], found.many, found.is_set)


def _stretch_of_text(shell: Shell, piece: Param, found: Found, numbers: Sequence[int | Value]) -> Found:
    """`${A[@]:1}` of a text: the part of its letters, no word past its end."""
    if in_doubt(found.values[0]):
        return Found([shell.doubt(f"{plain(piece.source, 60)} is not known", piece.name)])
    text = bare(found.values[0])
    start = numbers[0]
    assert isinstance(start, int)
    if not 0 <= (start + len(text) if start < 0 else start) <= len(text):
        return Found([], found.many, False)
    return found._replace(values=[part(shell, piece, text, numbers)])


def in_case(shell: Shell, piece: Param, text: str) -> str:
    """`${name^^}` and its kin."""
    operator = piece.operator
    if piece.words[0].pieces or not text.isascii():
        raise shell.unread(piece.source)
    change = str.upper if operator[0] == "^" else str.lower
    return change(text) if len(operator) == 2 else change(text[:1]) + text[1:]


def part(shell: Shell, piece: Param, text: str, numbers: Sequence[int | Value]) -> Value:
    """`${name:1:2}` of a text."""
    start, count = numbers[0], numbers[1] if len(numbers) > 1 else len(text)
    if not isinstance(start, int) or not isinstance(count, int):
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    start = start + len(text) if start < 0 else start
    if start < 0 or start > len(text):
        return ""
    end = start + count if count >= 0 else len(text) + count
    if end < start:
        raise shell.unread(piece.source)
    return text[start:end]


def _cut(units: tuple[glob.Unit, ...], text: str, *, at_end: bool, longest: bool) -> tuple[str, bool]:
    """A text without the beginning or the end that a pattern matches, and whether it matches one."""
    lengths = glob.ends(units[::-1], text[::-1]) if at_end else glob.ends(units, text)
    if not lengths:
        return text, False
    length = lengths[-1 if longest else 0]
    return (text[: len(text) - length] if at_end else text[length:]), True


def by_pattern(piece: Param, text: str, units: tuple[glob.Unit, ...]) -> str:
    """`${name#pattern}` and its kin: a text without its beginning or its end."""
    return _cut(units, text, at_end=piece.operator[0] == "%", longest=len(piece.operator) == 2)[0]


def replaced(shell: Shell, piece: Param, value: str, units: tuple[glob.Unit, ...], new: Value) -> Value:
    """`${name/pattern/text}` and its kin: the longest match, once or throughout, or only at the beginning or the end."""
    first = piece.words[0].pieces[:1]
    if piece.operator == "/" and first and not isinstance(first[0], Text) and units and any(map(units[0].takes, "#%")):
        raise shell.refuse(f"{plain(piece.source, 60)}, whose pattern may be anchored, is not read")
    if "&" in bare(new) or "\\" in bare(new):
        raise shell.refuse(f"{plain(piece.source, 60)} with & in what replaces is not read")
    if not units:
        return value
    if in_doubt(new):
        return shell.doubt(f"{plain(piece.source, 60)} is not known")
    text, at_end = bare(new), piece.operator == "/%"
    if at_end or piece.operator == "/#":
        rest, fits = _cut(units, value, at_end=at_end, longest=True)
        return rest if not fits else rest + text if at_end else text + rest
    out, at = [], 0
    while at < len(value):
        shell.spend(5 * (len(value) - at) * min(len(units), 8))
        size = max(glob.ends(units, value[at:]), default=0)
        out.append(text if size else value[at])
        at += size or 1
        if size and piece.operator == "/":
            break
    return "".join(out) + value[at:]
