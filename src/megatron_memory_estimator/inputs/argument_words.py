"""Megatron-LM arguments as words of a command line, read as Megatron-LM's own parser reads them.

Source: Megatron-LM `megatron/training/arguments.py` (argparse, allow_abbrev=False: no prefixes, the last occurrence wins).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ConfigError
from ..settings import nearest
from .megatron_arguments import Argument, arguments

UNSET = "\0"
"""Before the name of a shell variable that has no value: `\\0NAME\\0`."""

GONE = frozenset({"use_mcore_models", "legacy_tokenizer", "use_dist_ckpt", "tokenizer_hf_include_special_tokens"})
"""Flags of older versions that never took part in memory."""


def parse_words(words: Sequence[str], *, ignore_unknown: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Values by destination, and the unknown flags that were passed over.

    Raises ConfigError for unknown flags (unless `ignore_unknown`), missing values and values of the wrong type.
    """
    by_flag, _ = arguments()
    found: dict[str, Any] = {}
    unknown: list[str] = []
    groups = list(_groups(words))
    for flag, values in groups:
        name = flag[2:].replace("-", "_")
        argument = by_flag.get(name)
        if argument is not None:
            found[argument.dest] = _value(flag, argument, values)
        elif name not in GONE:
            if not ignore_unknown:
                raise ConfigError(f"unknown Megatron argument {flag}.{nearest(name, by_flag)}")
            unknown.append(flag)
    return {dest: value for dest, value in found.items() if value is not UNSET}, unknown


def _groups(words: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    """Each flag with the words behind it."""
    flag, values = "", list[str]()
    for word in words:
        if re.match(r"--[A-Za-z]", word):
            if flag:
                yield flag, values
            flag, equals, value = word.partition("=")
            values = [value] if equals else []
        elif not flag:
            raise ConfigError(f"{_shown(word)} stands before the first Megatron argument; arguments begin with --")
        else:
            values.append(word)
    if flag:
        yield flag, values


def _value(flag: str, argument: Argument, values: list[str]) -> Any:
    """The value of one flag in its type."""
    if argument.kind != "Store":
        if values:
            raise ConfigError(f"{flag} takes no value, but {_shown(values[0])} follows it")
        return argument.kind == "StoreTrue"
    unset = [name for value in values for name in re.findall(rf"{UNSET}(.*?){UNSET}", value)]
    if unset:
        if argument.category in ("irrelevant", "out_of_scope"):
            return UNSET
        raise ConfigError(f"{flag} takes its value from ${unset[0]}, which has none; give --set {unset[0]}=VALUE")
    many = bool(argument.nargs)
    if not values and argument.nargs != "*":
        raise ConfigError(f"{flag} needs a value")
    if not many and len(values) > 1:
        raise ConfigError(f"{flag} takes one value, but {_shown(values[1])} follows it")
    typed = [_typed(flag, argument.type, value) for value in values]
    return typed if many else typed[0]


def _typed(flag: str, kind: str, word: str) -> Any:
    try:
        if kind == "int":
            return int(word)
        if kind == "float":
            return float(word)
    except ValueError:
        raise ConfigError(f"{flag}={word!r} must be {'a whole number' if kind == 'int' else 'a number'}") from None
    if kind == "bool":
        return word.lower() in ("true", "1", "yes")
    return word


def _shown(word: str) -> str:
    plain = re.sub(rf"{UNSET}(.*?){UNSET}", r"$\1", word)
    return repr(plain if len(plain) < 60 else plain[:57] + "...")
