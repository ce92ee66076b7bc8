"""What parameters hold, and the operators of `${...}`. Source: the Bash Reference Manual 5.2, 3.4 and 3.5.3."""

from __future__ import annotations

import re

from ...wording import plain
from . import glob
from .arithmetic import settled
from .doubts import MARK, bare, in_doubt, loose, quoted, unquoted, unset, vanishes
from .expand import Found, Segment, pattern_of, segments, text_of
from .grammar import Opaque, Param, Text, Word
from .state import Array, Shell, Value, uncertain

ALWAYS_SET = frozenset(
    [
        "BASH", "BASHOPTS", "BASHPID", "BASH_SOURCE", "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK",
        "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HOME", "HOSTNAME", "HOSTTYPE", "LINENO",
        "MACHTYPE", "OLDPWD", "OPTERR", "OPTIND", "OSTYPE", "PATH", "PIPESTATUS", "PPID", "PS4", "PWD", "RANDOM",
        "SECONDS", "SHELL", "SHELLOPTS", "SHLVL", "SRANDOM", "TERM", "UID", "USER", "LOGNAME", "_",
    ]
)  # fmt: skip
"""Set by bash itself, or on every machine."""


def variable(shell: Shell, name: str) -> Value | None:
    """The value of a variable, or None where nothing sets it."""
    found = shell.state.variables.get(name)
    if found is None and name in shell.given:
        return shell.given[name]
    if found is None and name in ALWAYS_SET:
        return shell.doubt(f"${name} is known on the machine only", name)
    return found


def lookup(shell: Shell, name: str, index: Word | None) -> Found:
    """What a parameter holds."""
    state = shell.state
    if name in ("@", "*"):
        return Found(list(state.positionals), name, bool(state.positionals))
    if name == "#":
        if any(map(loose, state.positionals)):
            return Found([shell.doubt("the number of words is not known")], "", True)
        return Found([str(len(state.positionals))], "", True)
    if name == "?":
        return Found(
            [shell.doubt("the status of a command is not known") if state.status is None else str(state.status)],
            "",
            True,
        )
    if name == "0":
        return Found([shell.doubt("$0 is known when the script runs only")], "", True)
    if name in ("$", "!", "-"):
        return Found([shell.doubt(f"${name} is known when the script runs only")], "", True)
    if name.isdigit():
        at = int(name[:9]) - 1
        if any(loose(word) for word in state.positionals[: at + 1]):
            return Found([shell.doubt(f"how many words stand before ${name} is not known")], "", True)
        is_set = at < len(state.positionals)
        return Found([state.positionals[at]] if is_set else [unset(name)], "", is_set)
    value = variable(shell, name)
    if index is not None and index.source in ("@", "*"):
        if isinstance(value, Array) and value.keyed and len(value.items) > 1:
            raise shell.refuse(f"the order of the associative array {name} is bash's own")
        values = value.values() if isinstance(value, Array) else [] if value is None else [value]
        if value is None:
            return Found([], index.source, False)
        return Found(values, index.source, bool(values))
    if index is not None or isinstance(value, Array):
        value = element(shell, name, value, index)
    if value is None and "nounset" in shell.state.options and not shell.lenient:
        shell.note(f"set -u: {name} is set nowhere, at which bash stops unless the environment has it")
    return Found([unset(name) if value is None else value], "", value is not None)


def element(shell: Shell, name: str, value: Value | None, index: Word | None) -> str | None:
    """One element of an array; without an index the first."""
    if not isinstance(value, Array):
        value = Array({} if value is None else {0: value})
    if value.keyed:
        key = text_of(shell, index) if index is not None else "0"
        if in_doubt(key):
            return shell.doubt(f"the element of {name} is not known")
        return value.items.get(bare(key))
    at = settled(shell, text_of(shell, index)) if index is not None else 0
    if isinstance(at, str) or uncertain(value):
        return shell.doubt(f"the element of {name} is not known", name)
    if at < 0:
        at += max((int(key) for key in value.items), default=-1) + 1
    return value.items.get(at)


def segments_of(shell: Shell, piece: Param, *, whole: bool) -> list[Segment]:
    """The segments of a parameter."""
    if piece.operator.lstrip(":") in ("-", "=", "?", "+"):
        chosen = _alternative(shell, piece)
        if isinstance(chosen, Word):
            return _of_word(shell, piece, chosen, whole=whole)
        held = chosen
    else:
        held = _operated(shell, piece)
    if not held.many:
        text = held.values[0]
        shell.spend(len(text))
        return [Segment(quoted(text) if piece.quoted else unquoted(text), splits=not piece.quoted)]
    joiner = shell.state.variables.get("IFS", " \t\n")
    if not isinstance(joiner, str) or MARK in joiner:
        raise shell.refuse("IFS is not known, so words cannot be joined")
    shell.spend(sum(map(len, held.values)) + len(held.values))
    if not held.is_set and not held.values and piece.operator == "" and piece.name not in ("@", "*"):
        mark = unset(piece.name)
        if held.many == "*" and piece.quoted:
            return [Segment(quoted(mark))]
        return [Segment(mark, not piece.quoted)]  # no word in bash, and asked for where one is needed
    if (held.many == "*" and (piece.quoted or whole)) or (whole and piece.quoted and piece.operator == "keys"):
        return [Segment(quoted(joiner[:1].join(held.values)))]
    if whole:
        return [Segment(" ".join(held.values))]
    if piece.quoted:  # an element of unset variables alone is no element in bash, and stays to be asked for
        return [Segment(value, breaks=at > 0) for at, value in enumerate(held.values)]
    return [Segment(unquoted(value), splits=True, breaks=at > 0) for at, value in enumerate(held.values)]


def _operated(shell: Shell, piece: Param) -> Found:
    """What a parameter gives with its operator."""
    operator = piece.operator
    if operator == "keys":
        value = variable(shell, piece.name)
        if isinstance(value, Array) and value.keyed and len(value.items) > 1:
            raise shell.refuse(f"the order of the associative array {piece.name} is bash's own")
        if isinstance(value, Array) and uncertain(value):
            return Found([shell.doubt(f"the elements of {piece.name} are not known", piece.name)], "", True)
        keys = [str(key) for key in sorted(value.items)] if isinstance(value, Array) else [] if value is None else ["0"]
        return Found(keys, piece.index.source if piece.index else "@", bool(keys))
    if operator == "@":
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    held = lookup(shell, piece.name, piece.index)
    if operator == "indirect":
        return _indirect(shell, piece, held)
    if operator == "length":
        return _length(shell, piece, held)
    if not operator:
        return held
    if operator == ":" and held.many:
        return _slice(shell, piece, held)
    return held._replace(values=[_on_text(shell, piece, value) for value in held.values])


def _alternative(shell: Shell, piece: Param) -> Found | Word:
    """`:-`, `-`, `:=`, `=`, `:?`, `?`, `:+`, `+`: what the parameter holds, or the word behind the operator."""
    operator, word = piece.operator, piece.words[0]
    outer, shell.lenient = shell.lenient, True
    held = lookup(shell, piece.name, piece.index)
    shell.lenient = outer
    text = " ".join(held.values)
    doubted = held.is_set and in_doubt(text) and not bare(text)
    is_set = held.is_set and (bool(bare(text)) or doubted if operator[0] == ":" else True)
    if operator.endswith("+"):
        if doubted:
            words = tuple(text_of(shell, word).split())
            return Found([shell.doubt(f"whether {piece.name} is empty is not known", "", ((), words))], "", True)
        if is_set:
            return word
        return Found([], "@", True) if held.many == "@" and piece.quoted else Found([""], "", True)
    if is_set:
        return held
    if operator.endswith("?"):
        return Found([unset(piece.name)], "", True)
    if operator.endswith("="):
        if piece.index is not None or not piece.name.isidentifier():
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        shell.assign(piece.name, text_of(shell, word))
        return lookup(shell, piece.name, None)
    return word


def _of_word(shell: Shell, piece: Param, word: Word, *, whole: bool) -> list[Segment]:
    """The segments of the word behind an operator: its unquoted text splits, as all that an expansion gives."""
    found = []
    for part in word.pieces:
        for one in segments(shell, part, whole=whole):
            splits = (one.splits or (isinstance(part, Text) and not part.quoted)) and not piece.quoted
            fixed = one.fixed or (not isinstance(part, Opaque) and part.quoted)
            text = one.text if vanishes(one.text) or not piece.quoted else quoted(one.text)
            found.append(one._replace(text=text, splits=splits, fixed=fixed))
    if not found and word.pieces:
        return []  # "${A[@]+"${A[@]}"}" of no elements
    return found or [Segment("", splits=not piece.quoted)]


def _indirect(shell: Shell, piece: Param, found: Found) -> Found:
    name = found.values[0] if not found.many else ""
    if MARK in name:
        return Found([shell.doubt(f"{plain(piece.source, 60)}: the name is not known")], "", True)
    if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", name):
        return lookup(shell, name, None)
    raise shell.refuse(f"{plain(piece.source, 60)} is not read")


def _length(shell: Shell, piece: Param, found: Found) -> Found:
    if found.many:
        if any(map(loose, found.values)):
            return Found([shell.doubt(f"the number of words of {piece.name} is not known")], "", True)
        return Found([str(sum(not vanishes(value) for value in found.values))], "", True)
    value = found.values[0]
    if in_doubt(value):
        return Found([shell.doubt(f"the length of {piece.name} is not known")], "", True)
    return Found([str(len(bare(value)))], "", True)


def _slice(shell: Shell, piece: Param, found: Found) -> Found:
    """`${@:2}`, `${A[@]:1:2}`."""
    numbers = [settled(shell, text_of(shell, word)) for word in piece.words]
    value = variable(shell, piece.name)
    if any(isinstance(n, str) or n < 0 for n in numbers) or (isinstance(value, Array) and value.keyed):
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    if any(loose(one) or vanishes(one) for one in found.values):
        return Found([shell.doubt(f"the words of {piece.name} are not known")], "", True)
    start = int(numbers[0])
    if piece.name in ("@", "*"):
        if start == 0:
            raise shell.refuse(f"{plain(piece.source, 60)} is not read")
        start -= 1
    values = found.values
    if isinstance(value, Array):
        values = [value.items[key] for key in sorted(value.items, key=int) if int(key) >= start]
        start = 0
    end = None if len(numbers) < 2 else start + int(numbers[1])
    return Found(values[start:end], found.many, found.is_set)


def _on_text(shell: Shell, piece: Param, value: str) -> str:
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
