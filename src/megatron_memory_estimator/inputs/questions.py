"""What a run's file leaves open, asked all at once, with the options that answer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from ..errors import Question, QuestionsError
from ..wording import LONGEST_QUESTIONS, all_of, any_of, counted, plain

__all__ = ["Question", "of_gpus", "settle"]
OF_VARIABLE = re.compile(r"--set ([A-Za-z_]\w*|[0-9]+)=")
"""The option that gives a variable, or a word of the caller."""
GPUS_OPTION = "--num-gpus N"
"""The option that gives the number of GPUs."""
MOST_NAMED = 5
"""Subjects of one cause that are named."""


LOST = "is not there or not beside the script (--follow opens files elsewhere)"
"""What is said of a sourced file that no variable can be read from."""
OF_FILE = re.compile(rf"(?:^|: )(?P<file>[^:]+, which [^:]+ sources), {re.escape(LOST)}")


def settle(questions: Iterable[Question], refused: Sequence[str] = ()) -> None:
    """Nothing, where nothing is open. Raises QuestionsError with all that is refused, or else with everything that is asked."""
    if refused:
        raise QuestionsError(_as_many(list(dict.fromkeys(refused)), LONGEST_QUESTIONS - 40))
    asked = _by_cause(list(dict.fromkeys(questions)))
    if not asked:
        return
    given = dict.fromkeys(one.option for one in asked if one.option)
    options = " ".join(sorted(given, key=lambda option: option.startswith("-- ")))  # arguments behind -- come last
    if len(asked) == 1:
        raise QuestionsError(asked[0].what + (f"; give {options}" if options else ""), asked)
    what = _as_many([one.what for one in asked], LONGEST_QUESTIONS - len(options) - 80)
    raise QuestionsError(
        f"{len(asked)} things must be settled: {what}" + (f". Give: {options}" if options else ""), asked
    )


def of_gpus(why: str) -> Question:
    """The question for the number of GPUs: `why` a launcher's is not known, and how to give it."""
    said, _, option = why.removeprefix("the number of GPUs is not known: ").partition("; give ")
    found = OF_VARIABLE.match(option)
    what = f"the number of GPUs is not known: {said}"
    return Question(what, GPUS_OPTION, "the number of GPUs", cause=found[1] if found else "")


def _by_cause(asked: Sequence[Question]) -> list[Question]:
    """The questions, those that one variable answers as one: it is the cause, and what waits for it are its consequences."""
    causes: dict[str, list[Question]] = {}
    for at, one in enumerate(asked):
        named = OF_VARIABLE.match(one.option)
        lost = OF_FILE.search(one.what)
        name = lost["file"] if lost else one.cause or (named[1] if named else "")
        causes.setdefault(name if name and one.subject else f" {at}", []).append(one)
    return [ones[0] if len(ones) == 1 else _of_cause(name, ones) for name, ones in causes.items()]


def _of_lost(file: str, ones: Sequence[Question], subjects: str) -> Question:
    """The question for a file that several variables come from: put it there, or give each."""
    names = dict.fromkeys(found[1] for one in ones if (found := OF_VARIABLE.match(one.option)))
    what = f"{file}, {LOST}; it decides {subjects}: put it there, or give {all_of(list(names))}"
    return Question(what, " ".join(f"--set {name}=VALUE" for name in names), subjects)


def _of_cause(name: str, ones: Sequence[Question]) -> Question:
    """The question for a variable that several things wait for."""
    subjects = list(dict.fromkeys(one.subject for one in ones))
    values = next((one.values for one in ones if one.values), ())
    more = [counted(len(subjects) - MOST_NAMED, "more value")] if len(subjects) > MOST_NAMED else []
    if OF_FILE.search(f"{name}, {LOST}"):
        return _of_lost(name, ones, all_of([*subjects[:MOST_NAMED], *more]))
    may_be = f"; the script compares it with {any_of(values)}" if values else ""
    whose = f"word {name} of the script's caller" if name.isdigit() else name
    what = f"{whose} is not known, and decides {all_of([*subjects[:MOST_NAMED], *more])}{may_be}"
    return Question(what, f"--set {name}={shlex.quote(values[0]) if values else 'VALUE'}", all_of(subjects), values)


def _as_many(sentences: list[str], most: int) -> str:
    """As many sentences as there is room for, and how many more there are."""
    kept = list(sentences)
    while len("; ".join(kept)) > most and len(kept) > 1:
        kept.pop()
    left = len(sentences) - len(kept)
    return plain("; ".join(kept), max(most, 100)) + (f"; and {left} more" if left else "")
