"""Axes of a space from words: lists, ranges and exclusions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import ConfigError
from ...job.training_job import TrainingJob
from ...wording import shown, whole
from .axes import WHOLE, Space, axis_name
from .defaults import completed

BOOLEAN = ("sequence_parallel", "use_distributed_optimizer", "use_precision_aware_optimizer")
WORDS = ("cp_comm_type", "split", "recompute", "precision", "features")
SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


def space_of(job: TrainingJob, words: dict[str, str], *, everything: bool = False) -> Space:
    """The space of a job with axes from words: `4`, `1,2,4`, `2-16`, `not:8`. What is not said takes the default.

    A range keeps the values in it that are tried at most, an exclusion the others; for num_gpus a range doubles from its beginning.
    Raises ConfigError.
    """
    named = {axis_name(name): text for name, text in words.items()}
    gpus: dict[str, Any] = {}
    if "num_gpus" in named:
        gpus["num_gpus"] = _worlds(named.pop("num_gpus"))

    def tried(name: str) -> tuple[Any, ...]:
        found: tuple[Any, ...] = getattr(completed(Space(**gpus), job, everything=everything or name in WHOLE), name)
        return found

    found = {name: _values(name, text, tried) for name, text in named.items()}
    return completed(Space(**gpus, **found), job, everything=everything)


def _worlds(text: str) -> tuple[int, ...]:
    if "-" not in text:
        return tuple(_whole("num_gpus", word) for word in _list("num_gpus", text))
    first, last = _range("num_gpus", text)
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return (*found, last)


def _values(name: str, text: str, tried: Callable[[str], tuple[Any, ...]]) -> tuple[Any, ...]:
    if text.startswith("not:"):
        known = tried(name)
        without = [_one(name, word) for word in _list(name, text[4:])]
        for value in without:
            if value not in known:
                raise ConfigError(
                    f"{name}: {value} is not among what is tried, {', '.join(map(str, known))}; nothing to exclude"
                )
        left = tuple(value for value in known if value not in without)
        if not left:
            raise ConfigError(f"{name}: nothing is left to try without {', '.join(map(str, without))}")
        return left
    if name not in (*BOOLEAN, *WORDS, "optimizer_offload_fraction") and "-" in text:
        first, last = _range(name, text)
        known = tried(name)
        left = tuple(value for value in known if first <= value <= last)
        if not left:
            raise ConfigError(
                f"{name}: no value of {', '.join(map(str, known))} lies in {text}; list the values instead"
            )
        return left
    return tuple(_one(name, word) for word in _list(name, text))


def _list(name: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError(f"{name} has no value to try")
    return words


def _range(name: str, text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    low, high = _whole(name, first), _whole(name, last)
    if low > high:
        raise ConfigError(f"{name}: {text} runs backwards; write {high}-{low}")
    return low, high


def _one(name: str, word: str) -> Any:
    if name in BOOLEAN:
        if word.lower() not in SWITCHES:
            raise ConfigError(f"{name}: {word!r} must be on or off")
        return SWITCHES[word.lower()]
    if name in WORDS:
        return word
    if name == "optimizer_offload_fraction":
        try:
            return float(word)
        except ValueError:
            raise ConfigError(f"{name}: {word!r} must be a number") from None
    return _whole(name, word)


def _whole(name: str, word: str) -> int:
    number = whole(word)
    if number is None or number >= 10**12:
        raise ConfigError(
            f"{name}: {shown(word)} must be a whole number, a list such as 1,2,4, a range such as 2-16, or not:8"
        )
    return number
