"""What the arguments of a tool must be: JSON from anyone is checked here, without pydantic.

`arguments.json` has the arguments of every tool; scripts/docs_tools.py makes it from the models of `schema.py`, and a test holds it to
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from ..errors import ConfigError
from ..job.settings import nearest
from ..wording import LONGEST_SHOWN, plain, shown

Is = Callable[[Any], bool]


@cache
def arguments() -> dict[str, dict[str, str]]:
    """For every tool the kind of each argument, in words."""
    found: dict[str, dict[str, str]] = json.loads(files(__package__).joinpath("arguments.json").read_text("utf-8"))
    return found


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _several(one: Is) -> Is:
    return lambda value: isinstance(value, list) and all(map(one, value))


KINDS: dict[str, Is] = {
    "a word": _word,
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    "an object": _object,
    "a list of words": _several(_word),
    "a list of objects": _several(_object),
}
"""The test of each kind, for what is not null."""


def checked(tool: str, given: Any) -> dict[str, Any]:
    """The arguments of a tool, a config.json that is an object as its text. Raises ConfigError for what is none of them."""
    if not _object(given):
        raise ConfigError(f"the arguments of {tool} must be an object")
    known = arguments()[tool]
    for name in given:
        if name not in known:
            raise ConfigError(plain(unknown_argument(name, tool, known)))
    return of_kinds(given, known)


def unknown_argument(word: str, tool: str, known: Iterable[str]) -> str:
    """The sentence that refuses an argument that a tool does not have."""
    word = word[:LONGEST_SHOWN]
    settings = '; settings go under "settings"' if "settings" in known else ""
    return f'unknown argument "{word}" of {tool}{settings}.{nearest(word, known)}'


def of_kinds(given: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """The same of arguments whose names are known."""
    found = dict(given)
    if isinstance(found.get("text"), dict):
        found["text"] = json.dumps(found["text"])
    for name, value in found.items():
        if value is not None and name in known and not KINDS[known[name]](value):
            raise ConfigError(f"{name}={shown(value)} must be {known[name]}")
    return found
