"""What parameters hold, and the operators of `${...}`. Source: the Bash Reference Manual 5.2, 3.4 and 3.5.3."""

from __future__ import annotations

import re
from dataclasses import replace

from ...wording import plain
from .arithmetic import settled
from .doubts import MARK, apart, bare, in_doubt, loose, quoted, unquoted, unset, unset_in, vanishes
from .expand import Found, Segment, segments, text_of
from .grammar import Opaque, Param, Text, Word
from .state import Array, Shell, Value, uncertain
from .texts import length, on_text, stretch

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
    if found is None and name == "BASH_SOURCE" and shell.places:
        return Array(dict(enumerate(shell.places)))
    if found is None and name == "PWD" and shell.state.folder:
        return shell.state.folder
    if found is None and name == "OPTIND":
        return "1"
    if found is None and name in ALWAYS_SET:
        return shell.doubt(f"${name} is known on the machine only", name)
    return found


def lookup(shell: Shell, name: str, index: Word | None) -> Found:
    """What a parameter holds."""
    state = shell.state
    _words_are_read(shell, name)
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
    if name == "0" and shell.places:
        return Found([shell.places[-1]], "", True)
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
    if value is None and "nounset" in shell.state.options and not shell.lenient and not _of_slurm(shell, name):
        shell.note(f"set -u: {plain(name, 60)} is set nowhere, at which bash stops unless the environment has it")
    return Found([unset(name) if value is None else value], "", value is not None)


def _of_slurm(shell: Shell, name: str) -> bool:
    """Whether Slurm sets a variable, to something that the options of a job do not say."""
    return name.startswith("SLURM_") and variable(shell, "SLURM_JOB_NUM_NODES") is not None


def _words_are_read(shell: Shell, name: str) -> None:
    """Remember whether the script reads the caller's words, all of them or those at a place."""
    if not shell.state.frames and not shell.outer:
        shell.takes_words = shell.takes_words or name in ("@", "*")
        shell.takes_numbers = shell.takes_numbers or (name.isdigit() and name != "0") or name == "#"


def element(shell: Shell, name: str, value: Value | None, index: Word | None) -> str | None:
    """One element of an array; without an index the first."""
    if not isinstance(value, Array):
        value = Array({} if value is None else {0: value})
    if value.keyed:
        key = text_of(shell, index) if index is not None else "0"
        if in_doubt(key):
            return shell.doubt(f"the element of {name} is not known")
        return value.items.get(bare(key))
    asked = text_of(shell, index) if index is not None else "0"
    at = settled(shell, asked)
    if isinstance(at, str):
        return shell.doubt(f"the element of {name} is not known", next(iter(unset_in(asked)), name))
    if uncertain(value):
        return shell.doubt(f"the element of {name} is not known", name)
    if at < 0:
        at += max((int(key) for key in value.items), default=-1) + 1
    return value.items.get(at)


def segments_of(shell: Shell, piece: Param, *, whole: bool) -> list[Segment]:
    """The segments of a parameter."""
    if piece.indirect:
        resolved = _resolved(shell, piece)
        if isinstance(resolved, Found):
            return [Segment(quoted(resolved.values[0]) if piece.quoted else resolved.values[0])]
        piece = resolved
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
    is_nowhere = not held.values and piece.name not in ("@", "*") and variable(shell, piece.name) is None
    if is_nowhere and not held.is_set and piece.operator == "":
        mark = unset(piece.name)
        if held.many == "*" and piece.quoted:
            return [Segment(quoted(mark))]
        return [Segment(mark, not piece.quoted)]  # no word in bash, and asked for where one is needed
    if (held.many == "*" and (piece.quoted or whole)) or (whole and piece.quoted and piece.operator == "keys"):
        return [Segment(quoted(_joined(held.values, joiner[:1])))]
    if whole:
        return [Segment(_joined(held.values, " "))]
    if piece.quoted:  # an element of unset variables alone is no element in bash, and stays to be asked for
        return [Segment(value, breaks=at > 0) for at, value in enumerate(held.values)]
    return [Segment(unquoted(value), splits=True, breaks=at > 0) for at, value in enumerate(held.values)]


def _joined(values: list[str], separator: str) -> str:
    """Elements as one text; those of unset variables alone are none, and stay to be asked for."""
    text, several = "", False
    for value in values:
        blank = separator if several and not vanishes(value) else ""
        text += blank + (apart(value) if separator == " " and vanishes(value) else value)
        several = several or not vanishes(value)
    return text


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
    if operator == "names":
        known = {**shell.state.variables, **shell.given}
        return Found(
            sorted(name for name in known if name.startswith(piece.name)),
            piece.index.source if piece.index else "@",
            True,
        )
    if operator == "@":
        raise shell.refuse(f"{plain(piece.source, 60)} is not read")
    value = variable(shell, piece.name) if operator == "length" else None
    if isinstance(value, Array) and value.keyed and piece.index is not None and piece.index.source in ("@", "*"):
        return Found([str(len(value.items))], "", True)
    held = lookup(shell, piece.name, piece.index)
    if operator == "indirect":
        return _indirect(shell, piece, held)
    if operator == "length":
        return length(shell, piece, held)
    if not operator:
        return held
    if operator == ":" and held.many:
        return stretch(shell, piece, held, variable(shell, piece.name))
    return held._replace(values=[on_text(shell, piece, value) for value in held.values])


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
    match = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+)(?:\[([@*]|[0-9]+)\])?", name)
    if match is not None:
        index = Word((Text(match.group(2)),), 0, match.group(2)) if match.group(2) else None
        return lookup(shell, match.group(1), index)
    raise shell.refuse(f"{plain(piece.source, 60)} is not read")


def _resolved(shell: Shell, piece: Param) -> Param | Found:
    """`${!name:-word}` as the expansion of the variable that name holds."""
    outer, shell.lenient = shell.lenient, True
    name = lookup(shell, piece.name, piece.index).values[0]
    shell.lenient = outer
    if vanishes(unquoted(name)):
        raise shell.refuse(f"{plain(piece.source, 60)}: {piece.name} is set nowhere, at which bash stops the command")
    if in_doubt(name):
        return Found([shell.doubt(f"{plain(piece.source, 60)}: the name is not known")], "", True)
    name = bare(name)
    if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", name):
        return replace(piece, name=name, index=None, indirect=False)
    raise shell.refuse(f"{plain(piece.source, 60)} is not read")
