"""Megatron-LM arguments as words of a command line, read as Megatron-LM's own parser reads them.

Source: Megatron-LM `megatron/training/arguments.py` (argparse, allow_abbrev=False: no prefixes, the last occurrence wins).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...job.settings import nearest
from ...wording import shown, signed
from ..shell.doubts import Doubt, bare, doubts_in, loose, marks, readable, unset_in, vanishes
from .harmless import is_harmless
from .table import Argument, arguments, decides_memory, fork_arguments

GONE = frozenset({"use_mcore_models", "legacy_tokenizer", "use_dist_ckpt", "tokenizer_hf_include_special_tokens"})
"""Flags of older versions that never took part in memory."""


class Parsed(NamedTuple):
    """Values by destination, unknown flags that were passed over, and what is said about variables without a value."""

    values: dict[str, Any]
    unknown: list[str]
    notes: tuple[str, ...] = ()


@dataclass
class _Reading:
    """What has been read so far; a problem of one destination ends when a later word sets it."""

    doubts: Mapping[str, Doubt]
    ignore_unknown: bool
    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    empty: dict[str, None] = field(default_factory=dict)
    taken: dict[str, None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def parse_words(
    words: Sequence[str],
    *,
    ignore_unknown: bool = False,
    doubts: Mapping[str, Doubt] | None = None,
    overridden: Collection[str] = (),
) -> Parsed:
    """The arguments that words say. `doubts` explain the marks of a launch script; `overridden` destinations are set elsewhere.

    Raises ConfigError for unknown flags (unless `ignore_unknown`), missing values and values of the wrong type.
    """
    reading = _Reading(doubts or {}, ignore_unknown)
    _read(reading, words)
    for dest, problem in reading.problems.items():
        if dest not in overridden:
            raise ConfigError(problem)
    notes = (
        (f"set nowhere, taken as empty: {', '.join('$' + name for name in reading.empty)}",) if reading.empty else ()
    )
    return Parsed(reading.values, reading.unknown, notes)


def _read(reading: _Reading, words: Sequence[str]) -> None:
    by_flag, _ = arguments()
    for flag, values in _groups(words, reading):
        if not flag:
            _choice(reading, values[0])
            continue
        name = flag[2:].replace("-", "_")
        argument = by_flag.get(name)
        if argument is not None:
            _one(reading, flag, argument, values)
        elif marks(flag):
            raise ConfigError(
                f"the argument {shown(readable(flag))} takes part of its name from {_sources(reading, [flag])}"
            )
        elif name not in GONE:
            fork = decides_memory(name, values) if reading.ignore_unknown or name in fork_arguments() else ""
            if fork:
                reading.problems[name] = (
                    f"{shown(flag)[1:-1]} of {fork} decides memory and is not modelled; take it out if it is off"
                )
                continue
            if not reading.ignore_unknown:
                raise ConfigError(f"unknown Megatron argument {shown(flag)[1:-1]}.{nearest(name, by_flag)}")
            reading.unknown.append(flag)


def _groups(words: Iterable[str], reading: _Reading) -> Iterable[tuple[str, list[str]]]:
    """Each flag with the words behind it; a word that may be arguments or not, by itself without a flag."""
    flag, values = "", list[str]()
    for word in words:
        if re.match(r"--[A-Za-z]", word):
            if flag:
                yield flag, values
            flag, equals, value = word.partition("=")
            values = [value] if equals else []
        elif _chooses_flags(reading, word):
            if flag:
                yield flag, values
            yield "", [word]
            flag, values = "", []
        elif not flag and vanishes(word):
            reading.empty.update(dict.fromkeys(unset_in(word)))
        elif not flag:
            raise ConfigError(
                f"{shown(readable(word))} stands before the first Megatron argument; arguments begin with --"
                if not marks(word)
                else f"the word {shown(readable(word))} is taken from {_sources(reading, [word])}"
            )
        else:
            values.append(word)
    if flag:
        yield flag, values


MOST_CHOICES = 64


def _choices(reading: _Reading, word: str) -> list[tuple[str, ...]] | None:
    """The lists of words that a word in doubt may be, doubts inside doubts written out; None where they are not known.

    Raises ConfigError where there are too many.
    """
    keys = doubts_in(word)
    if bare(word) or len(keys) != 1 or unset_in(word):
        return None
    written_out: list[tuple[str, ...]] = []
    for choice in reading.doubts[keys[0]].choices:
        lists: list[tuple[str, ...]] = [()]
        for inner_word in choice:
            inner = _choices(reading, inner_word) if loose(inner_word) else [(inner_word,)]
            if inner is None:
                return None
            lists = [(*begun, *more) for begun in lists for more in inner]
            if len(lists) + len(written_out) > MOST_CHOICES:
                raise ConfigError(
                    f"more than {MOST_CHOICES} lists of arguments are possible; {_sources(reading, [word])}"
                )
        written_out += lists
    return written_out or None


def _flags_in(reading: _Reading, word: str) -> bool:
    """Whether a doubt in a word may hold an argument."""
    return any(
        one.startswith("--") or _flags_in(reading, one)
        for key in doubts_in(word)
        for choice in reading.doubts[key].choices
        for one in choice
    )


def _chooses_flags(reading: _Reading, word: str) -> bool:
    """Whether a word is in doubt between lists of arguments. Raises ConfigError where arguments stand in it in another way."""
    if not loose(word) or not _flags_in(reading, word):
        return False
    if _choices(reading, word) is None:
        raise ConfigError(
            f"which arguments {shown(readable(word))} holds is not known; they are taken from {_sources(reading, [word])}"
        )
    return True


def _choice(reading: _Reading, word: str) -> None:
    """Arguments that are passed or not: what all choices agree in holds; what they differ in must not matter."""
    key = doubts_in(word)[0]
    doubt = reading.doubts[key]
    by_flag, by_dest = arguments()
    read = [_choice_values(reading, choice, word) for choice in _choices(reading, word) or []]
    for dest in {dest: None for values, problems in read for dest in (*values, *problems)}:
        if dest in by_dest and is_harmless(by_dest[dest]):
            continue
        held = [values[dest] for values, _ in read if dest in values]
        if len(held) == len(read) and all(value == held[0] for value in held):
            reading.values[dest] = held[0]
            reading.problems.pop(dest, None)
            continue
        flag = dest if dest in by_flag else next((f for f, one in by_flag.items() if one.dest == dest), dest)
        reading.problems[dest] = (
            f"whether --{flag.replace('_', '-')} is passed is not known: {doubt.why}; give it, or its opposite, behind --"
        )


def _choice_values(reading: _Reading, words: tuple[str, ...], whole: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and problems by destination of one of several lists of arguments."""
    inner = _Reading(reading.doubts, reading.ignore_unknown)
    if words and not words[0].startswith("--"):
        raise ConfigError(
            f"the words {shown(readable(' '.join(words)))} may be passed or not: {_sources(reading, [whole])}"
        )
    _read(inner, words)
    reading.empty.update(inner.empty)
    reading.taken.update(inner.taken)
    reading.unknown.extend(inner.unknown)
    return inner.values, inner.problems


def _one(reading: _Reading, flag: str, argument: Argument, values: list[str]) -> None:
    """The value of one flag, or its problem where it depends on what is not known."""
    dest = argument.dest
    reading.problems.pop(dest, None)
    if any(marks(value) for value in values):
        values = _filled(reading, argument, values)
        unclear = [value for value in values if marks(value)]
        takes = argument.kind == "Store"
        if values and takes and is_harmless(argument) and (argument.nargs or len(values) == 1):
            if argument.nargs and any(map(loose, values)):
                reading.taken[flag] = None
            return
        if unclear:
            name = (
                f"{flag} takes its value from" if takes and len(values) == 1 else f"what follows {flag} is taken from"
            )
            reading.problems[dest if len(values) == 1 and takes else f"words behind {dest}"] = (
                f"{name} {_sources(reading, unclear)}"
            )
            return
    reading.values[dest] = _value(flag, argument, values)


def _filled(reading: _Reading, argument: Argument, values: list[str]) -> list[str]:
    """The words behind a flag without those that vanish, as in bash; the last stays where the flag would have no value."""
    takes = argument.kind == "Store"
    kept = [value for value in values if not vanishes(value)]
    gone = [value for value in values if vanishes(value)]
    if not kept and takes and argument.nargs != "*":
        kept, gone = gone[:1], gone[1:]
    reading.empty.update(dict.fromkeys(name for value in gone for name in unset_in(value)))
    return kept


def _sources(reading: _Reading, words: list[str]) -> str:
    """Where unknown words come from, and what gives them."""
    word = next(word for word in words if marks(word))
    if not doubts_in(word):
        name = unset_in(word)[0]
        return f"${name}, which has none; give --set {name}=VALUE"
    doubt = reading.doubts[doubts_in(word)[0]]
    choices = (
        f" ({readable(' or '.join(' '.join(choice) or 'nothing' for choice in doubt.choices))})"
        if doubt.choices
        else ""
    )
    where = f"${doubt.name}{choices}" if doubt.name else f"what is not known{choices}"
    return f"{where}: {doubt.why}" + (
        f"; give --set {doubt.name}=VALUE" if doubt.name else "; give the argument behind --"
    )


def _value(flag: str, argument: Argument, values: list[str]) -> Any:
    """The value of one flag in its type."""
    if argument.kind != "Store":
        if values:
            raise ConfigError(f"{flag} takes no value, but {shown(values[0])} follows it")
        return argument.kind == "StoreTrue"
    many = bool(argument.nargs)
    if not values and argument.nargs != "*":
        raise ConfigError(f"{flag} needs a value")
    if not many and len(values) > 1:
        raise ConfigError(f"{flag} takes one value, but {shown(values[1])} follows it")
    typed = [_typed(flag, argument.type, value) for value in values]
    return typed if many else typed[0]


def _typed(flag: str, kind: str, word: str) -> Any:
    if kind == "int":
        number = signed(word.strip().replace("_", "")) if re.fullmatch(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*", word) else None
        if number is None:
            raise ConfigError(f"{flag}={shown(word)} must be a whole number")
        return number
    if kind == "float":
        try:
            return float(word)
        except ValueError:
            raise ConfigError(f"{flag}={shown(word)} must be a number") from None
    if kind == "bool":
        return word.lower() in ("true", "1", "yes")
    return word
