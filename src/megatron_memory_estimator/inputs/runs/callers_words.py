"""Words of a script's caller that decide what it trains: asked for, never taken as empty.

A condition of a script (`[ "$1" = bf16 ]`, `case $3 in 8B)`) compares what nothing sets with values. The script is read again with each
of them; where the job is another one, the word decides. A variable of the environment that nothing sets is empty, as it is for bash, and
said to be where it decides.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import ConfigError, EstimatorError, QuestionsError
from ...wording import counted, plain, whole
from ..questions import Question, settle

if TYPE_CHECKING:
    from ..shell.launches import Launch

MOST_READINGS = 40
"""Readings of one script, for all that its conditions compare."""
MOST_TOGETHER = 3
"""Words that decide together: a condition inside a condition."""
MOST_SHOWN = 6
WORD = re.compile(r"--set [0-9]+=")
"""The option that gives a positional parameter."""
Values = Mapping[str, str]
Job = TypeVar("Job", bound=Any)


def with_words(
    launched: Callable[[Values], Launch],
    read: Callable[[Launch], Job],
    alike: Callable[[Job, Job], bool],
) -> Job:
    """The job of a script: `launched` reads it with values of the caller, `read` makes the job of a launch, `alike` says of two jobs
    whether they are one.

    Raises QuestionsError that asks for the words that decide and are not given, before what follows from them, and what both raise.
    """
    launch = launched({})

    def decides(other: Launch) -> bool:
        """Whether another launch is another job, or one that is refused; where this one is no job yet, whether it is another launch."""
        if _same(launch, other) or job is None:
            return not _same(launch, other)
        try:
            return not alike(read(other), job)
        except EstimatorError:
            return True

    job = None
    try:
        job = read(launch)
    except QuestionsError as error:
        words = [
            _question(name, values, launch) for name, values in _deciding(launch, launched, decides) if _is_word(name)
        ]
        if words:
            asked = {one.option.partition("=")[0] for one in words}
            own = [
                one for one in error.questions if WORD.match(one.option) and one.option.partition("=")[0] not in asked
            ]
            settle([*words, *own])
        raise
    deciding = _deciding(launch, launched, decides)
    settle([_question(name, values, launch) for name, values in deciding if _is_word(name)])
    said = [
        f"${name} is set nowhere and taken as empty; {_compared(values)} changes the run" for name, values in deciding
    ]
    return dataclasses.replace(job, warnings=(*job.warnings, *map(plain, said))) if said else job


def _is_word(name: str) -> bool:
    """Whether a name is a positional parameter."""
    return whole(name) is not None


def _deciding(
    launch: Launch, launched: Callable[[Values], Launch], decides: Callable[[Launch], bool]
) -> list[tuple[str, tuple[str, ...]]]:
    """What nothing sets and what decides, with the values that it is compared with."""
    known: dict[str, tuple[str, ...]] = dict(launch.compared)
    deciding: dict[str, None] = {}
    waiting = [{name: value} for name, values in known.items() for value in values]
    for _ in range(MOST_READINGS):
        if not waiting:
            break
        values = waiting.pop(0)
        if deciding.keys() >= values.keys():
            continue
        try:
            other = launched(values)
        except ConfigError:
            continue
        found = {name: these for name, these in other.compared.items() if name not in known}
        known.update(found)
        if len(values) < MOST_TOGETHER:
            waiting += [{**values, name: value} for name, these in found.items() for value in these]
        if decides(other):
            deciding.update(dict.fromkeys(values))
    return [(name, known[name]) for name in deciding]


def _same(one: Launch, other: Launch) -> bool:
    """Whether two launches start the same."""
    return (one.entry, one.words, one.num_gpus, one.env) == (other.entry, other.words, other.num_gpus, other.env)


def _question(name: str, values: Sequence[str], launch: Launch) -> Question:
    """A word of the caller; one that is compared as a number may be any."""
    taker = f" ({launch.takers[name]})" if name in launch.takers else ""
    limit = _limit(values)
    said = f"a number, above, at or below {limit}" if limit else _compared(values)
    what = f"word {name}{taker} of the script's caller decides the run: {said}"
    return Question(what, f"--set {name}={'N' if limit else values[0]}")


def _limit(values: Sequence[str]) -> str:
    """The number that a word is above, at or below, where that is what it is compared with."""
    numbers = [whole(value) for value in values]
    if len(numbers) != 3 or None in numbers:
        return ""
    first, middle, last = (number or 0 for number in numbers)
    return str(middle) if (first + 1, last - 1) == (middle, middle) else ""


def _compared(values: Sequence[str]) -> str:
    """The values that a script compares something with."""
    more = f" or {counted(len(values) - MOST_SHOWN, 'other')}" if len(values) > MOST_SHOWN else ""
    return " or ".join(plain(value, 40) for value in values[:MOST_SHOWN]) + more
