"""Megatron-LM arguments as words of a command line, read as Megatron-LM's own parser reads them.

Source: Megatron-LM `megatron/training/arguments.py` (argparse, allow_abbrev=False: no prefixes, the last occurrence wins).

What memory does not depend on never stops the reading, whatever follows it; what is missing elsewhere becomes a question.

What each argument sets: destinations with their values, from flags, older names and parsed namespaces.

Source: Megatron-LM `megatron/training/arguments.py` (parser).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from ...wording import dashed, plain, shown, signed
from ..questions import Question, settle
from ..setting_names import current_name, known_settings
from ..shell.values import (
    Value,
    bare,
    head,
    loose,
    outside_in,
    partition,
    present,
    readable,
    unknowns,
    unset_in,
    vanishes,
)
from .choices import choices, chooses_flags, compared_in, sources
from .classes import passes_over
from .forks import Others, fork_arguments
from .table import Argument, arguments


@dataclass
class Parsed:
    """Values by destination, arguments that Megatron-LM does not have, what is open by destination, and what is said."""

    others: Others = field(default_factory=Others)
    values: dict[str, Any] = field(default_factory=dict)
    empty: dict[str, None] = field(default_factory=dict)
    odd: dict[str, None] = field(default_factory=dict)
    problems: dict[str, Question] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Variables that were taken as empty, and words that have no effect but would stop Megatron-LM."""
        notes = []
        if self.empty:
            notes.append(f"variables that nothing sets, taken as empty: {', '.join('$' + name for name in self.empty)}")
        if self.odd:
            notes.append(
                f"Megatron's parser would stop at these words, which have no effect here: {', '.join(self.odd)}"
            )
        return tuple(notes)

    def questions(self, overridden: Collection[str] = ()) -> list[Question]:
        """What is open, without what is set elsewhere: `overridden` are destinations or names of settings."""
        return [
            one
            for dest, one in self.problems.items()
            if dest not in overridden and current_name(dest) not in overridden
        ] + list(self.others.questions())

    def settled(self, overridden: Collection[str] = ()) -> Parsed:
        """The same, where nothing is open or refused. Raises QuestionsError for all that is."""
        settle(self.questions(overridden), list(self.others.refusals()))
        return self


def parse_words(words: Sequence[Value], *, ignore_unknown: bool = False) -> Parsed:
    """The arguments that words say, and what they leave open.

    Raises ConfigError where which arguments there are is not known.
    """
    if (odd := next((bare(word) for word in words if "\0" in bare(word)), None)) is not None:
        raise ConfigError(f"{shown(odd)} holds a null byte, which no argument does")
    reading = Parsed(Others(ignore_unknown))
    read_words(reading, words)
    return reading


def read_words(reading: Parsed, words: Sequence[Value]) -> None:
    """Reads words into what has been read so far; a problem of one destination ends when a later word sets it."""
    by_flag, _ = arguments()
    for flag, values in _groups(words, reading):
        if not flag:
            _choice(reading, values[0])
            continue
        if not isinstance(flag, str):
            reading.problems[readable(flag)] = Question(
                f"the argument {shown(readable(flag))} takes part of its name from {sources([flag])}"
            )
            continue
        argument = by_flag.get(flag[2:].replace("-", "_"))
        if argument is not None:
            _one(reading, flag, argument, values)
        else:
            reading.others.take(flag, tuple(readable(value) for value in values if not vanishes(value)))


def _groups(words: Iterable[Value], reading: Parsed) -> Iterator[tuple[Value, list[Value]]]:
    """Each flag with the words behind it; a word that may be arguments or not, by itself without a flag."""
    flag: Value = ""
    values = list[Value]()
    for word in words:
        if re.match(r"--[A-Za-z]", head(word)):
            if flag:
                yield flag, values
            flag, equals, value = partition(word, "=")
            values = [value] if equals else []
        elif chooses_flags(word):
            if flag:
                yield flag, values
            yield "", [word]
            flag, values = "", []
        elif flag:
            values.append(word)
        elif vanishes(word) or (not bare(word).strip() and not outside_in(word)):
            _stray(reading, word)
        else:
            reading.problems.setdefault(f"word {readable(word)}", _before_the_first(word))
    if flag:
        yield flag, values


def _stray(reading: Parsed, word: Value) -> None:
    """An empty word where none belongs: bash passes it if it is quoted, and Megatron-LM's parser stops at it."""
    names = unset_in(word)
    reading.empty.update(dict.fromkeys(names))
    if not vanishes(word) and not names:
        reading.odd["an empty word"] = None


ARGUMENTS = "arguments, which may be any"
"""The subject of words that are not known and hold whole arguments."""


def _before_the_first(word: Value) -> Question:
    if unknowns(word):
        what, semicolon, option = sources([word]).rpartition("; give --set ")
        if semicolon:
            option = f"--set {option.partition('=')[0]}='--num-layers N ...'"
            return Question(f"arguments are taken from {what}", option, ARGUMENTS)
        return Question(f"the word {shown(readable(word))} is taken from {sources([word])}", "", ARGUMENTS)
    return Question(f"{shown(word)} stands before the first Megatron argument; arguments begin with --")


def _choice(reading: Parsed, word: Value) -> None:
    """Arguments that are passed or not: what all choices agree in holds; what they differ in must not matter."""
    doubt = outside_in(word)[0]
    by_flag, by_dest = arguments()
    read = [_choice_values(reading, one, word) for one in choices(word) or []]
    for dest in {dest: None for inner in read for dest in (*inner.values, *inner.problems)}:
        if dest in by_dest and passes_over(by_dest[dest]):
            continue
        held = [inner.values[dest] for inner in read if dest in inner.values]
        if len(held) == len(read) and all(value == held[0] for value in held):
            reading.values[dest] = held[0]
            reading.problems.pop(dest, None)
            continue
        flag = dest if dest in by_flag else next((f for f, one in by_flag.items() if one.dest == dest), dest)
        option = f"--set {doubt.option}=VALUE" if doubt.option else f"-- {dashed(flag)}, or its opposite"
        reading.problems[dest] = Question(
            f"whether {dashed(flag)} is passed is not known: {doubt.why}", option, dashed(flag), doubt.compared
        )
    for name in {name: None for inner in read for name in inner.others.read}:
        if len({inner.others.read.get(name) for inner in read}) > 1:
            option = f"--set {doubt.option}=VALUE" if doubt.option else ""
            reading.problems[name] = Question(
                f"whether {dashed(name)} is passed is not known: {doubt.why}", option, dashed(name), doubt.compared
            )


def _choice_values(reading: Parsed, words: tuple[Value, ...], whole: Value) -> Parsed:
    """What one of several lists of arguments says by itself."""
    inner = Parsed(Others(reading.others.ignore_unknown))
    words = tuple(present(words))
    if words and not head(words[0]).startswith("--"):
        text = " ".join(map(readable, words))
        raise ConfigError(f"the words {shown(text)} may be passed or not: {sources([whole])}")
    read_words(inner, words)
    reading.empty.update(inner.empty)
    reading.odd.update(inner.odd)
    reading.others.merge(inner.others)
    return inner


def _one(reading: Parsed, flag: str, argument: Argument, values: list[Value]) -> None:
    """The value of one flag, or its problem where it depends on what is not known."""
    dest = argument.dest
    for key in (dest, f"words behind {dest}"):
        reading.problems.pop(key, None)
    takes = argument.kind == "Store"
    may_hold_arguments = any(map(loose, values)) and not (takes and (argument.nargs or len(values) == 1))
    if passes_over(argument) and not may_hold_arguments:
        _without_effect(reading, flag, argument, values)
        return
    if any(not bare(value).strip() for value in values):
        values = _filled(reading, argument, values)
    if unclear := [value for value in values if unknowns(value)]:
        one = takes and len(values) == 1
        name = f"{flag} takes its value from" if one else f"what follows {flag} is taken from"
        why, option = source_and_option(unclear, argument)
        reading.problems[dest if one else f"words behind {dest}"] = Question(
            f"{name} {why}", option, flag, compared_in(unclear)
        )
        return
    value, problem = _value(flag, argument, [bare(value) for value in values])
    if problem:
        reading.problems[dest] = Question(problem, option_for(argument))
    else:
        reading.values[dest] = value


def source_and_option(words: Sequence[Value], argument: Argument) -> tuple[str, str]:
    """Where unknown words come from, and the option that gives them."""
    text = sources(words)
    what, semicolon, option = text.rpartition("; give --set ")
    if semicolon:
        return what, f"--set {option}"
    return text.removesuffix("; give the argument after --"), option_for(argument)


def option_for(argument: Argument) -> str:
    """The option of the command line that gives a value to an argument; behind -- where only Megatron-LM has it."""
    flag = dashed(argument.flag)
    value = " VALUE" if argument.kind == "Store" else ""
    name = current_name(argument.dest)
    owner = known_settings().get(name)
    if owner is not None and argument.kind == "Store":
        return f"{dashed(name)}{value}"
    return f"-- {flag}{value}"


def _without_effect(reading: Parsed, flag: str, argument: Argument, values: list[Value]) -> None:
    """An argument that memory does not depend on: kept as far as it can be read, whatever follows it."""
    known = [readable(value) for value in values if not vanishes(value)]
    value, problem = _value(flag, argument, known)
    if not problem:
        reading.values[argument.dest] = value
        return
    if argument.kind == "Store" and not argument.type:
        reading.values[argument.dest] = " ".join(known) or None
    elif argument.kind != "Store":
        reading.values[argument.dest] = argument.kind == "StoreTrue"
    if known and not any(unknowns(one) for one in values):
        reading.odd[shown(" ".join([flag, *known]))[1:-1]] = None
    elif not values:
        reading.odd[f"{flag} without a value"] = None


def _filled(reading: Parsed, argument: Argument, values: list[Value]) -> list[Value]:
    """The words behind a flag without those that vanish, as in bash, and without empty words that nothing takes; the last stays
    where the flag would have no value."""
    takes = argument.kind == "Store"
    kept = [value for value in values if bare(value).strip() or outside_in(value)]
    gone = [value for value in values if not (bare(value).strip() or outside_in(value))]
    if not kept and takes and argument.nargs != "*":
        kept, gone = gone[:1], gone[1:]
    for value in gone:
        _stray(reading, value)
    return kept


def _value(flag: str, argument: Argument, values: Sequence[str]) -> tuple[Any, str]:
    """The value of one flag in its type, or what is wrong with it."""
    if argument.kind != "Store":
        wrong = f"{flag} takes no value, but {shown(values[0])} follows it" if values else ""
        return argument.kind == "StoreTrue", wrong
    many = bool(argument.nargs)
    if (not values and argument.nargs != "*") or (not many and not values[0].strip()):
        return None, f"{flag} needs a value"
    if not many and len(values) > 1:
        return None, f"{flag} takes one value, but {shown(values[1])} follows it"
    typed = [_typed(flag, argument.type, value) for value in values]
    wrong = next((problem for _, problem in typed if problem), "")
    found = [value for value, _ in typed]
    return (found if many else found[0]), wrong


def _typed(flag: str, kind: str, word: str) -> tuple[Any, str]:
    """A word in the type of an argument, or what is wrong with it."""
    if kind == "int":
        plain = re.fullmatch(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*", word)
        number = signed(word.strip().replace("_", "").removeprefix("+")) if plain else None
        return number, "" if number is not None else f"{flag}={shown(word)} must be a whole number"
    if kind == "float":
        try:
            return float(word), ""
        except ValueError:
            return None, f"{flag}={shown(word)} must be a number"
    if kind == "bool":
        return word.lower() in ("true", "1", "yes"), ""
    return word, ""


OLD_NAMES = {
    "num_moe_experts": "num_experts",
    "use_mcore_models": "",
    "use_dist_ckpt": "",
    "cross_entropy_fusion_implementation": "cross_entropy_fusion_impl",
}
"""Arguments of older versions: the new destination, or nothing where they no longer do anything."""


def normalised(args: Mapping[str, Any], *, ignore_unknown: bool = False) -> Parsed:
    """Argument destinations with the values given. Raises ConfigError for a key that is no word, or given twice."""
    found = Parsed(others=Others(ignore_unknown))
    parsed = _destinations_only(args)
    for key, value in args.items():
        if not isinstance(key, str):
            raise ConfigError(f"the Megatron argument {shown(key)} must be a word")
        name = key.lstrip("-").replace("-", "_")
        name = OLD_NAMES.get(name, name)
        if not name:
            continue
        if name not in arguments()[0] and name not in arguments()[1]:
            _other(found, key, name, value)
            continue
        dest, meant = (name, value) if name in parsed else destination(key, name, value)
        if dest in found.values and found.values[dest] != meant:
            raise ConfigError(f"Megatron argument {key} is given twice with different values; give one")
        found.values[dest] = meant
    return found


def _other(found: Parsed, key: str, name: str, value: Any) -> None:
    """An argument that Megatron-LM does not have, unless it is off."""
    if value in (None, False) and name in fork_arguments():
        return
    values = value if isinstance(value, list | tuple) else [] if value is True else [value]
    found.others.take(key, tuple(plain(str(one)) for one in values))


def _destinations_only(args: Mapping[str, Any]) -> set[str]:
    """Names that are a flag of another destination, which is given too: then `args` is a parsed namespace."""
    by_flag, by_dest = arguments()
    other = {name: by_flag[name].dest for name in by_flag.keys() & by_dest.keys() & args.keys()}
    return {name for name, dest in other.items() if dest != name and dest in args}


def destination(key: str, name: str, value: Any) -> tuple[str, Any]:
    """What one argument sets, and to what; a flag that turns something off sets it to the opposite of its value."""
    by_flag, _ = arguments()
    argument = by_flag.get(name)
    if argument is None:
        return name, value
    if argument.kind not in ("StoreTrue", "StoreFalse"):
        return argument.dest, value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r} must be true or false")
    return argument.dest, value if argument.kind == "StoreTrue" or argument.flag == argument.dest else not value
