"""What a launch script leaves open, in a run of another framework: it may stay open where every value gives the same job.

Words, variables and files of a launch have parts that are not known (`shell/values.py`). The run is read with what may stand for
them: each of the choices where they are known, and the words of `probes` where they are not. Where the jobs differ, memory depends
on it, and it is asked for; no value is ever chosen.

A value without choices is read as every word that can matter: numbers, switches, the choices of the setting that its key names, and the
words that the dialect's reader tells apart (`Dialect.words`; a test walks the readers for words that are missing there).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...dataclass import dataclass
from ...errors import ConfigError, EstimatorError, QuestionsError
from ...wording import LONGEST_MESSAGE
from ..environment import VARIABLES
from ..megatron.choices import choices, source_of
from ..questions import Question, settle
from ..setting_names import full_name, known_settings
from ..shell.launches import Launch
from ..shell.values import (
    Unknown,
    Value,
    bare,
    head,
    in_doubt,
    joined,
    loose,
    outside_in,
    partition,
    unknowns,
    vanishes,
    with_blanks,
)
from ..spellings import BACKENDS
from .run import Run
from .table import dialect_of

Read = Callable[[Run], Any]
"""The job of a run. Jobs are told apart by their fields."""
One = TypeVar("One")
Values = Mapping[Unknown, tuple[Value, ...]]
"""Words that stand for what is not known."""
ENVIRONMENT = re.compile(r"\$\{(?:oc\.)?env:\s*([A-Za-z_]\w*)\s*\}")
"""A variable of the environment without a default, in a file."""
MOST = 60
"""Values in doubt that are looked at one by one."""


def job_of_launch(
    launch: Launch,
    run_of: Callable[[Launch], Run],
    read: Read,
    alike: Callable[[Any, Any], bool],
    *,
    settled: bool = False,
) -> Any:
    """The job of a launch of a dialect; `alike` says of two jobs whether they differ in words only, `settled` that what is open decides
    nothing.

    Raises QuestionsError for every value that is not known and that memory depends on, and what `read` raises.
    """
    open_ = list(dict.fromkeys(_identity(one) for text in _texts(launch) for one in unknowns(text)))
    if not open_:
        return read(run_of(launch))
    settle(_unread(launch))
    known = {one: found for one in open_ if (found := _choices(one))}
    first = {one: found[0] for one, found in known.items()}
    try:
        job = read(run_of(filled(launch, first)))
    except EstimatorError as error:
        raise _with_option(error, launch) from None
    if settled:
        return job
    reading = _Reading(launch, run_of, read, first, job, alike)
    asked = [one for one, found in known.items() if reading.depends_on(one, found[1:])]
    unknown = [one for one in open_ if one not in known]
    words = {one: probes(_keys(launch, one), run_of(launch)) for one in unknown}
    asked += _depending(words, lambda some: reading.same({one: (word,) for one, word in some.items()}))
    settle([_question(launch, one) for one in asked])
    return job


def filled(launch: Launch, values: Values) -> Launch:
    """The launch with words in the place of what is not known; the rest stays."""
    words = [one for word in launch.words for one in _spliced(word, values)]
    env = {name: _replaced(text, values) for name, text in launch.env.items()}
    files = {name: _replaced(text, values) for name, text in launch.files.items()}
    return dataclasses.replace(launch, words=words, env=env, files=files)


def _spliced(word: Value, values: Values) -> Sequence[Value]:
    """The words that a word becomes: as many as stand for what is not known and not quoted, and one otherwise."""
    if not bare(word) and len(unknowns(word)) == 1 and (loose(word) or vanishes(word)):
        return values.get(_identity(unknowns(word)[0]), (word,))
    return (_replaced(word, values),)


def _replaced(text: Value, values: Values) -> Value:
    if isinstance(text, str):
        return text
    return joined(
        piece if isinstance(piece, str) else with_blanks(values.get(_identity(piece), ((piece,),))) for piece in text
    )


def _identity(unknown: Unknown) -> Unknown:
    """What is not known, quoted or not."""
    return dataclasses.replace(unknown, quoted=False, apart=False)


def _texts(launch: Launch) -> Iterator[Value]:
    yield from launch.words
    yield from launch.env.values()
    yield from launch.files.values()


def _choices(unknown: Unknown) -> list[tuple[Value, ...]] | None:
    """What may stand for what is not known, where there is a list of that."""
    if unknown.is_unset:
        return None
    return choices((unknown,)) or list(unknown.choices) or None


def _unread(launch: Launch) -> list[Question]:
    """Questions about words that may be any arguments, and variables that memory depends on."""
    asked = []
    for at, word in enumerate(launch.words):
        before = launch.words[at - 1] if at else ""
        behind = head(before).startswith("-") and "=" not in bare(before)
        if not behind and loose(word) and not bare(word) and not all(map(_choices, outside_in(word))):
            asked.append(_asking(unknowns(word)[0], "which arguments the program is given:"))
    for name in VARIABLES:
        text = launch.env.get(name, "")
        if in_doubt(text) and not all(map(_choices, outside_in(text))):
            asked.append(Question(f"the environment variable {name} is not known", f"--set {name}=VALUE"))
    return asked


def _question(launch: Launch, unknown: Unknown) -> Question:
    """The question for a value: where it stands first, and where it comes from."""
    place = _place(launch, unknown)
    return _asking(unknown, f"memory depends on {place}:", place)


def _place(launch: Launch, unknown: Unknown) -> str:
    """What takes its value from what is not known: a key, an argument, a variable or a file."""

    def holds(text: Value) -> bool:
        return unknown in map(_identity, unknowns(text))

    for at, word in enumerate(launch.words):
        if holds(word):
            key, equals, _ = partition(word, "=")
            before = launch.words[at - 1] if at else ""
            if equals and isinstance(key, str):
                return key
            return before if isinstance(before, str) and before.startswith("-") else "which words are passed"
    named = next((name for name, text in launch.env.items() if holds(text)), None)
    if named is not None:
        return f"the variable {named}"
    return next((name for name, text in launch.files.items() if holds(text)), "a value")


def _asking(unknown: Unknown, what: str, subject: str = "") -> Question:
    where, _, option = source_of(unknown).rpartition("; give ")
    return Question(f"{what} taken from {where}", option if option.startswith("--") else "", subject, unknown.compared)


@dataclass(frozen=True)
class _Reading:
    """A launch that was read with the first choices for what is not known, and the job that it gave."""

    launch: Launch
    run_of: Callable[[Launch], Run]
    read: Read
    first: Values
    job: Any
    alike: Callable[[Any, Any], bool]

    def same(self, values: Values) -> bool | None:
        """Whether other words for what is not known give the same job; None where they give none."""
        try:
            return self.alike(self.read(self.run_of(filled(self.launch, {**self.first, **values}))), self.job)
        except EstimatorError:
            return None

    def depends_on(self, unknown: Unknown, others: Sequence[tuple[Value, ...]]) -> bool:
        """Whether another choice for what is not known gives another job, or none."""
        return not all(self.same({unknown: words}) for words in others)


def _keys(launch: Launch, unknown: Unknown) -> list[str]:
    """The keys and arguments that take their values from what is not known, and the beginnings of the lines of files that do."""
    lines = []
    for text in launch.files.values():
        line = ""
        for piece in (text,) if isinstance(text, str) else text:
            if isinstance(piece, str):
                line = (line + piece).rpartition("\n")[2]
            elif _identity(piece) == unknown:
                lines.append(line)
    return [_place(launch, unknown), *lines]


def _depending(unknown: Mapping[One, Sequence[str]], same: Callable[[Mapping[One, str]], bool | None]) -> list[One]:
    """What the job depends on, of values without choices, each with the words that it is read as: all are read as their first, second
    and further words together, and one by one where that differs.

    A word that cannot be read is none of the values that the run can have.
    """
    found: dict[One, None] = {}
    for at in range(max(map(len, unknown.values()), default=0)):
        words = {one: each[at] for one, each in unknown.items() if at < len(each)}
        if same(words):
            continue
        if len(unknown) > MOST:
            raise ConfigError(
                f"the run takes {len(unknown)} values from what is not known; give them with --set NAME=VALUE"
            )
        found.update({one: None for one, word in words.items() if one not in found and same({one: word}) is False})
    return list(found)


def job_of_environment(run: Run, read: Read, alike: Callable[[Any, Any], bool]) -> Any:
    """The job of a run whose files look into the environment, for variables that nobody gives and that have no default.

    Raises QuestionsError for those that memory depends on, and what `read` raises.
    """
    texts = [str(run.document).replace(", ", "\n")]
    named = dict.fromkeys(ENVIRONMENT.findall(texts[0]))

    def text_of(path: str) -> str | None:
        text = run.text_of(path)
        texts.append(text or "")
        named.update(dict.fromkeys(ENVIRONMENT.findall(texts[-1])))
        return text

    try:
        job = read(dataclasses.replace(run, text_of=text_of))
    except EstimatorError as error:
        raise _optioned(error, {name: name for name in named}) from None

    def same(words: Mapping[str, str]) -> bool | None:
        try:
            return alike(read(dataclasses.replace(run, variables={**run.variables, **words})), job)
        except EstimatorError:
            return None

    unset = [name for name in named if name not in run.env and name not in run.variables]
    lines = [line for text in texts for line in text.splitlines() if "${" in line]
    asked = _depending({name: probes((line for line in lines if name in line), run) for name in unset}, same)
    settle(
        [
            Question(f"memory depends on the variable {name}, which nothing sets", f"--set {name}=VALUE")
            for name in asked
        ]
    )
    return job


def _with_option(error: EstimatorError, launch: Launch) -> EstimatorError:
    """The error, with the option that gives a value which it shows as $NAME."""
    return _optioned(error, {one.name: one.option for text in _texts(launch) for one in unknowns(text)})


def _optioned(error: EstimatorError, names: Mapping[str, str]) -> EstimatorError:
    """The error, with the option for the first of these variables that it shows; the variable to give by each name."""
    shown = [name for name in re.findall(r"\$\{?(?:oc\.)?(?:env:)?([A-Za-z_]\w*)", str(error)) if name in names]
    if isinstance(error, QuestionsError) or not shown or "--set" in str(error):
        return error
    option = f"--set {names[shown[0]]}=VALUE"
    said = f"{str(error)[: LONGEST_MESSAGE - len(option) - 40]}; ${shown[0]} is not known: give {option}"
    return QuestionsError(said, (Question(str(error), option),))


KEY = re.compile(r"[-+~{\s'\"]*([A-Za-z_][\w./-]*)")
"""The key at the beginning of a word or of a line."""
NUMBERS = ("1", "2", "0.5")
SWITCHES = ("true", "false", "none")
TOLD_APART = ("recompute_granularity", "params_dtype", "peft")
"""Settings that dialects have other keys for."""


def choices_of(setting: str) -> tuple[str, ...]:
    """The words that a setting, or a field that is spelled as one, may have; none where it takes any."""
    if setting == "attention_backend":
        return BACKENDS
    owner = known_settings().get(setting)
    found = owner.__dataclass_fields__[setting].metadata.get("choices") if owner else ()
    return tuple(one for one in found or () if isinstance(one, str))


def probes(keys: Iterable[str], run: Run) -> tuple[str, ...]:
    """The words for a value of a run that stands behind these keys, each at the beginning of a word or of a line of a file."""
    dialect = dialect_of(run)
    names = [full_name(match[1].rpartition(".")[2]) for match in map(KEY.match, keys) if match]
    told_apart = [word for setting in TOLD_APART for word in choices_of(setting)]
    words = [word for name in names for word in choices_of(name)]
    own = dialect.words.split() if dialect else ()
    return tuple(dict.fromkeys((*NUMBERS, *SWITCHES, *told_apart, *own, "auto", *words)))
