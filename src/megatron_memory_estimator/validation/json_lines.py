"""Files of records: one JSON object per line, read strictly, each field held against its declared kind."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..inputs.text_files import read_text
from ..job.settings import nearest
from ..wording import LONGEST_SHOWN, MOST_DIGITS, plain, shown, signed

DEEPEST = 32
"""Levels of objects and lists in a record; the sections of a recipe have 4."""
MOST_GPUS = 10**9


class Line(NamedTuple):
    """A record, and where it stands, for messages."""

    where: str
    number: int
    record: dict[str, Any]


class Kind(NamedTuple):
    """What the value of a field may be: the rule in words, and in code."""

    rule: str
    holds: Callable[[Any], bool]


def is_whole(value: Any, most: int, least: int = 1) -> bool:
    """Whether a value is a whole number from `least` to `most`; true and false are none."""
    return type(value) is int and least <= value <= most


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


TEXT = Kind("text", lambda value: isinstance(value, str))
NAME = Kind("text that is not empty", lambda value: isinstance(value, str) and bool(value.strip()))
TEXTS = Kind("a list of text", _texts)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
TEXT_BY_NAME = Kind("an object of text", lambda value: isinstance(value, dict) and _texts(list(value.values())))
GPUS = Kind(f"a whole number from 1 to {MOST_GPUS}", lambda value: is_whole(value, MOST_GPUS))
OBJECT_OR_NAME = Kind("an object, or text that is not empty", lambda value: OBJECT.holds(value) or NAME.holds(value))
ARGUMENTS = Kind("an object, a list of text, or a path", lambda value: OBJECT_OR_NAME.holds(value) or _texts(value))


def one_of(*words: str) -> Kind:
    """One of these words."""
    return Kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def lines(path: str, kinds: Mapping[str, Kind], needed: tuple[str, ...] = ()) -> Iterator[Line]:
    """The records of a file, each value of its key's kind, with their line numbers; blank lines count, but hold none."""
    name = plain(os.path.basename(path), LONGEST_SHOWN)
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if text.strip():
            where = f"{name} line {number}"
            line = Line(where, number, strict_object(text, where, kinds))
            hold(line, kinds, needed)
            yield line


def strict_object(text: str, where: str, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The JSON object of a text: no key stands twice, every number is finite, whole ones have at most 18 digits."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{where}: the key {shown(key)} stands twice in one object")
            found[key] = value
        return found

    try:
        record = json.loads(text, object_pairs_hook=unique, parse_constant=float, parse_int=_whole_or_infinite)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not valid JSON: {error.msg} at character {error.colno}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested more than {DEEPEST} levels deep") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{where} must be a JSON object")
    _refuse_odd_values(record, where, kinds)
    return record


def _whole_or_infinite(text: str) -> int | float:
    """A whole number; one that is too long to be a figure becomes infinite, so that its field is named when it is refused."""
    value = signed(text)
    return math.inf if value is None else value


def _refuse_odd_values(record: dict[str, Any], where: str, kinds: Mapping[str, Kind]) -> None:
    """Refuse numbers without a value, with the path of their field, and depth."""
    stack: list[tuple[str, Any, int]] = [("", record, 0)]
    while stack:
        path, value, depth = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            rule = f"; it must be {kinds[path].rule}" if path in kinds else ""
            raise ConfigError(
                f"{where}: {plain(path, LONGEST_SHOWN)} is not finite, or a whole number of more than {MOST_DIGITS} digits{rule}"
            )
        if depth > DEEPEST:
            raise ConfigError(f"{where} is nested more than {DEEPEST} levels deep")
        if isinstance(value, dict):
            stack += [(f"{path}.{key}" if path else key, item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", item, depth + 1) for index, item in enumerate(value)]


def hold(line: Line, kinds: Mapping[str, Kind], needed: tuple[str, ...], what: str = "key") -> None:
    """Refuse a record with an unknown key, a missing one, or a value that is not of its kind."""
    for name in line.record:
        if name not in kinds:
            raise ConfigError(f'{line.where}: unknown {what} "{plain(name, LONGEST_SHOWN)}".{nearest(name, kinds)}')
    for name in needed:
        if name not in line.record:
            raise ConfigError(f"{line.where}: the {what} {name} is missing; it must be {kinds[name].rule}")
    for name, value in line.record.items():
        if not kinds[name].holds(value):
            raise ConfigError(f"{line.where}: {name} must be {kinds[name].rule}, not {shown(value)}")


OF_PYTHON = frozenset(("cls", "self", "args", "config", "model"))
"""Parameters of TrainingJob's constructors, which are no settings."""
OF_FILES = frozenset(("set_variables", "words", "follow", "ignore_unknown", "without_unmodelled", "more_arguments"))
"""Settings of the readers of launch scripts."""


def refuse_taken(line: Line, taken: frozenset[str]) -> None:
    """Refuse settings that are no settings, and those that the record says under a key of its own."""
    for name in line.record.get("settings", {}):
        word = name.replace("-", "_")
        if word in taken:
            raise ConfigError(f"{line.where}: settings must not hold {word}; it is a key of the record itself")
        if word in OF_PYTHON | OF_FILES:
            raise ConfigError(f'{line.where}: settings: "{word}" is no setting')
