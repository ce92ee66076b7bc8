"""Words of Megatron-LM out of the arguments of a framework that adds its own to them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...wording import dashed, shown, whole
from ..megatron.table import arguments
from ..megatron.words import OLD_NAMES
from ..questions import Question
from .keys import DECIDES, patterns
from .launched import UNKNOWN

Found = Mapping[str, Sequence[str]]
"""Arguments by name (underscored), with the words behind each."""
OFF = ("false", "no", "0", "none")
"""Words behind a switch that turn it off."""
COUNT = re.compile(
    r"--[\w-]*[-_](?:size|nodes?|gpus?|len|length|layers|heads|groups|experts|topk|rank|tokens|prompt|rollout)"
)
"""Options whose value is a count in every framework."""
SPLITS = re.compile(
    r"parallel_size|extended_tp|extend_ep|schedules|dualpipe|zero_bubble|activations|pipeline_num|model_spec|^spec$"
)
"""In names of arguments that split the model, order its passes or replace its layers."""


def without(found: Found, keys: str) -> dict[str, Sequence[str]]:
    """The arguments without some, in one text with blanks; * stands for any ending."""
    exact, starts = patterns(keys)
    return {key: words for key, words in found.items() if key not in exact and not (starts and key.startswith(starts))}


def for_megatron(found: Found) -> tuple[tuple[str, ...], list[str]]:
    """The words that Megatron-LM's reader gets, and the arguments that it does not have.

    What its table does not have but decides memory by its name stays, and is refused there.
    """
    words: list[str] = []
    unknown: list[str] = []
    by_flag = arguments()[0]
    for key, values in found.items():
        if OLD_NAMES.get(key) == "":
            continue
        if key in by_flag and by_flag[key].kind != "Store" and all(map(UNKNOWN.fullmatch, values)):
            words.append(dashed(key))  # what follows a switch and is set nowhere is no word for bash
        elif key in by_flag or key in OLD_NAMES or DECIDES.search(key) or SPLITS.search(key):
            words += [dashed(key), *values]
        else:
            unknown.append(dashed(key))
    return tuple(words), unknown


def waiting(found: Found, args: Sequence[str]) -> list[Question]:
    """Questions for the counts among `args` whose values are variables that have none."""
    asked = []
    for key, words in found.items():
        name = UNKNOWN.fullmatch(words[-1]) if words and COUNT.fullmatch(dashed(key)) and dashed(key) in args else None
        if name:
            asked.append(
                Question(f"{dashed(key)} takes its value from ${name[1]}, which has none", f"--set {name[1]}=VALUE")
            )
    return asked


def number(found: Found, key: str, questions: list[Question], default: int | None = None) -> int | None:
    """The whole number behind an argument, `default` where it is not given; what is none becomes a question."""
    words = found.get(key)
    if words is None:
        return default
    value = whole(words[-1]) if words else None
    if value is None:
        word = words[-1] if words else ""
        names = UNKNOWN.findall(word)
        said = shown(word) if word else "nothing"
        questions.append(
            Question(f"{dashed(key)} must be a whole number, not {said}", f"--set {names[0]}=VALUE" if names else "")
        )
        return default
    return value


def positive(found: Found, key: str, questions: list[Question], default: int | None = None) -> int | None:
    """The same, where 0 stands for none."""
    return number(found, key, questions, default) or default


def real(found: Found, key: str, default: float) -> float:
    """The number behind an argument, or `default`. Raises ConfigError for what is none."""
    words = found.get(key)
    if words is None:
        return default
    try:
        value = float(words[-1]) if words else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{dashed(key)} must be a number, not {shown(words[-1]) if words else 'nothing'}")
    return value


def text(found: Found, key: str) -> str:
    """The words behind an argument as one, without marks of what is not known; "" where it is not given."""
    return " ".join(found.get(key, ()))


def on(found: Found, key: str) -> bool:
    """Whether a switch is given, and not turned off by the word behind it."""
    return key in found and text(found, key).lower() not in OFF


def words_of(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Arguments with their words from keys and values: true is the argument alone, false and null leave it out."""
    found: dict[str, list[str]] = {}
    for key, value in values.items():
        if value is None or value is False:
            found.pop(str(key), None)
        elif value is True:
            found[str(key)] = []
        else:
            found[str(key)] = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    return found
