"""The launch command of a shell script: the training's words, GPUs and environment, without executing anything."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from ...errors import ConfigError, QuestionsError
from ...wording import any_of, plain, whole
from ..questions import LOST, Question, settle
from . import gpus
from .beside import Beside
from .commands import run
from .grammar import List
from .launches import Launch
from .merging import KEY, deciding, merged, starts
from .parser import parsed
from .paths import End, ends
from .state import MOST_PATHS, Crowded, Shell, State, Stop, TooManyWays
from .values import Held, Unknown, Value, altered, head, outside_in, partition, readable, unset

__all__ = ["Beside", "Launch", "read_script"]
WITHOUT_EFFECT = frozenset([
    "clip-grad", "data-path", "dataset", "eval-interval", "exit-interval", "init-method-std", "learning-rate", "load", "log-interval",
    "lr", "lr-decay-iters", "lr-warmup-iters", "min-lr", "output-dir", "run-name", "save", "save-interval", "seed", "split",
    "tensorboard-dir", "train-iters", "train-samples", "wandb-exp-name", "wandb-project", "wandb-save-dir", "weight-decay",
])  # fmt: skip
"""Options whose values change no byte, in every framework: runs that differ in them alone are one."""
MOST_WORDS = 1000
TASK = "SLURM_ARRAY_TASK_ID"
MOST_READINGS = 12
"""Variables and words that a script stops without, one after the other."""
MOST_SHOWN = 6
MOST_LINES = 50_000
"""Lines of a script; those that are run are far fewer."""


TAKES = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=[\"']?\$\{?([0-9]+)(?![0-9])", re.MULTILINE)
"""A variable that is given a word of the caller."""


def read_script(
    text: str, given: Mapping[str, str] | None = None, words: Sequence[str] = (), beside: Beside | None = None
) -> Launch:
    """The training that `text` starts.

    `given` are variables set by the caller, or positional parameters by their numbers; they win. `words` stand behind the script on
    its command line. `beside` says where the script stands; without it no other file is opened.
    Raises ConfigError for a script that starts no training or cannot be read, and for words like options that it does not take.
    """
    given = dict(given or {})
    if "\0" in text or any("\0" in value for value in (*given.values(), *words)):
        raise ConfigError("the script has a null byte")
    if (lines := text.count("\n")) > MOST_LINES:
        raise ConfigError(f"a script has at most {MOST_LINES:,} lines here, and this one has {lines:,}")
    tasks = gpus.array_tasks(gpus.header_options(text)) if TASK not in given and TASK in text else ()
    if tasks:
        return _of_tasks(tasks, [read_script(text, {**given, TASK: task}, words, beside) for task in tasks])
    commands = parsed(text)

    def followed(more: Mapping[str, str]) -> tuple[Shell, list[End]]:
        return _followed(text, commands, {**given, **more}, words, beside)

    shell, found = followed({})
    if shell.stopped is not None and not _starts(found):
        settle(_lets_pass(shell, followed))
    launch = chosen(shell, found, has_words=bool(shell.state.positionals))
    launch.takers = {number: name for name, number in TAKES.findall(text)}
    option = next((word for word in words if word.startswith("-")), None)
    if option is not None and not shell.takes_words:
        takes_none = 'the script takes no words of its own ("$@", shift, getopts)'
        raise ConfigError(f'No such option "{option[:80]}", and {takes_none}')
    if words and not shell.takes_words and not shell.takes_numbers:
        launch.notes.append(f"the script reads no words of its caller; {' '.join(words)[:80]} is passed over")
    return launch


def _of_tasks(tasks: Sequence[str], launches: Sequence[Launch]) -> Launch:
    """The launch of an array of jobs. Raises QuestionsError that asks for the task where they start different runs."""
    if not all(_same(one, launches[0]) for one in launches):
        may_be = any_of([*tasks[:MOST_SHOWN], *(["another"] if len(tasks) > MOST_SHOWN else [])])
        what = f"each task of the array of jobs is a run of its own: {TASK} is {may_be}"
        settle([Question(what, f"--set {TASK}={tasks[0]}", "", tuple(tasks[:MOST_SHOWN]))])
    return launches[0]


Followed = Callable[[Mapping[str, str]], tuple[Shell, list[End]]]
"""A script followed to its ends, with more variables of the caller."""


def _followed(
    text: str, commands: List, given: Mapping[str, str], words: Sequence[str], beside: Beside | None
) -> tuple[Shell, list[End]]:
    """The shell behind a script, and the ends of the ways through it."""
    for most_paths in MOST_PATHS:
        shell = _shell(text, given, words, beside, most_paths)
        try:
            return shell, ends(shell, lambda shell=shell: run(shell, commands))  # type: ignore[misc]
        except TooManyWays:
            continue
        except Crowded:
            break
    raise shell.refuse("too many ways lead through it, by conditions that cannot be decided")


def _starts(found: Sequence[End]) -> bool:
    """Whether a training is started on a way."""
    return any(end.state.launches for end in found)


def _lets_pass(shell: Shell, followed: Followed) -> list[Question]:
    """Questions for the variables and words without which a script stops before it starts a training; none where no value lets it pass.

    Those that its conditions look at and that nothing sets are given one value after the other: one that is compared there, or any.
    """
    asked: list[Question] = []
    given: dict[str, str] = {}
    for _ in range(MOST_READINGS):
        where, said = shell.stopped or ("", "")
        for name, values in reversed([*shell.defaulted.items(), *shell.compared.items()]):
            value = next(iter(values), "x")
            if name in given:
                continue
            try:
                other, found = followed({**given, name: value})
            except ConfigError:
                continue
            if _starts(found) or other.stopped != shell.stopped:
                break
        else:
            return []
        given[name], shell = value, other
        what = f"the script stops at {where}, before it starts a training"
        what += f": {plain(readable(said).strip(), 200)}" if said else f": {name} is not given"
        whose = f"word {name}" if name.isdigit() else name
        named = f"; {whose} may be {any_of(list(values)[:MOST_SHOWN])}" if values else ""
        asked.append(Question(f"{what}{named}", f"--set {name}={shlex.quote(value)}"))
        if _starts(found):
            return asked
    return []


def _shell(text: str, given: Mapping[str, str], words: Sequence[str], beside: Beside | None, most_paths: int) -> Shell:
    """A shell before its first command."""
    header = {**gpus.header_options(text), **gpus.asked_for(given)}
    variables: dict[str, Held] = {"IFS": " \t\n", **gpus.job_variables(header)}
    return Shell(
        {name: value for name, value in given.items() if whole(name) is None},
        run,
        State(variables, {*variables} - {"IFS"}, positionals=_positionals(given, words)),
        most_paths=most_paths,
        beside=beside,
        places=() if beside is None else (beside.script,),
        header=header,
    )


def _positionals(given: Mapping[str, str], words: Sequence[str]) -> tuple[Value, ...]:
    """Positional parameters: words, and those by number; one that is not given before one that is, is set nowhere."""
    numbers = dict(enumerate(words, 1)) | {int(name): value for name, value in given.items() if whole(name) is not None}
    last = max(numbers, default=0)
    if last > MOST_WORDS:
        raise ConfigError(f"a script has at most {MOST_WORDS:,} positional parameters here")
    return tuple(numbers.get(at, unset(str(at))) for at in range(1, last + 1))


# -- which run is meant ----------------------------------------------------------------------------------------------------
def chosen(shell: Shell, ends: Sequence[End], *, has_words: bool) -> Launch:
    """The last training; what else could run is said, and asked for or refused where that is a guess."""
    states = [end.state for end in ends]
    places = starts(states)
    if not places:
        raise ConfigError(_nothing(shell, has_words=has_words))
    launches = [
        dataclasses.replace(merged(shell, [states[way] for way in by_way], list(by_way.values())))
        for _, by_way in places
    ]
    launch = launches[-1]
    others = [at for at, other in enumerate(launches[:-1]) if not _same(other, launch)]
    _refuse_rounds([*(launches[at] for at in others), launch])
    for at in others:
        other = launches[at]
        why = _between(shell, ends, places[at][1], places[-1][1])
        if why:
            raise ConfigError(
                f"which of two runs the script starts, at line {other.line} or at line {launch.line}, depends on {why}, "
                "which cannot be decided; give a script with the one that you mean"
            )
    launch.notes = [*shell.notes, *_notes(shell, ends, places[-1][1], [launches[at] for at in others], launch)]
    launch.lost = tuple(shell.lost)
    _lose(shell, launch)
    values = (*launch.words, *launch.launcher, *launch.env.values(), *launch.files.values())
    met = {**shell.doubts, **{one: None for value in values for one in outside_in(value)}}
    launch.doubts = tuple(met)
    launch.compared = {name: tuple(values) for name, values in shell.compared.items() if values}
    return launch


def _between(shell: Shell, ends: Sequence[End], one: dict[int, Launch], other: dict[int, Launch]) -> str:
    """The conditions that decide between two launches: they stand in its branches, or no way that goes to the end comes to both."""
    branches = (next(iter(launches.values())).branch for launches in (one, other))
    apart = next(((a, b) for a, b in zip(*branches, strict=False) if a != b), None)
    if apart is not None and apart[0].why == apart[1].why:
        return str(apart[0].why)
    going = [way for way, end in enumerate(ends) if not isinstance(end.control, Stop)]
    ours, theirs = [way for way in going if way in one], [way for way in going if way in other]
    if not ours or not theirs or set(ours) & set(theirs):
        return ""
    ways = [*ours, *theirs]
    return deciding(shell, [ends[way].state for way in ways], [way in one for way in ways])


def _notes(
    shell: Shell, ends: Sequence[End], last: dict[int, Launch], others: Sequence[Launch], launch: Launch
) -> list[str]:
    """What is said about the run that is read."""
    notes = list(launch.notes)
    if others:
        notes.append(
            f"{len(others) + 1} different runs are started; the last one (line {launch.line}) is read, "
            f"not the one at line {others[-1].line}"
        )
    # the part behind `&&` is meant to run: `cd run && torchrun ...`
    whys = [branch.why for branch in launch.branch if not branch.follows]
    going = [way for way, end in enumerate(ends) if not isinstance(end.control, Stop)]
    missing = [way not in last for way in going]
    if any(missing) and not launch.branch:
        whys.append(deciding(shell, [ends[way].state for way in going], missing))
    notes += [f"line {launch.line}: the run depends on {why}, and is taken as started" for why in whys]
    return notes


def _same(one: Launch, other: Launch) -> bool:
    """Whether two launches are the same run: words that differ are values that change no byte."""
    if (one.entry, one.num_gpus, len(one.words)) != (other.entry, other.num_gpus, len(other.words)):
        return False
    flag = ""
    for left, right in zip(one.words, other.words, strict=True):
        key, equals, _ = partition(left, "=")
        named = readable(key)
        is_override = KEY.fullmatch(named) is not None and bool(equals)
        is_flag = head(left).startswith("--") or is_override
        flag = named.rsplit(".", 1)[-1] if is_override else named if is_flag else flag
        if left == right:
            continue
        if is_flag and (not equals or partition(right, "=")[:2] != (key, equals)):
            return False
        if flag.lstrip("-").replace("_", "-") not in WITHOUT_EFFECT or (head(right).startswith("--") and not is_flag):
            return False
    return True


def _refuse_rounds(launches: list[Launch]) -> None:
    """Ask for the round of a loop that starts different runs. Raises QuestionsError, ConfigError where no variable tells them apart."""
    last = launches[-1]
    same = [one for one in launches if one.loops == last.loops]
    if not last.rounds or len(same) < 2:
        return
    names: dict[tuple[int, str], dict[str, None]] = {}
    for one in same:
        for found in one.rounds:
            names.setdefault((found.line, found.name), {})[found.value] = None
    differing = {key: values for key, values in names.items() if len(values) > 1}
    if not differing:
        return
    line = min(line for line, _ in differing)
    named = {name: list(values) for (_, name), values in differing.items() if name}
    if not named:
        raise ConfigError(
            f"the loop at line {line} starts {len(same)} different runs; give a script with the one that you mean"
        )
    values = " and ".join(
        f"{name} = {', '.join(plain(value, 60) for value in found[:20])}" for name, found in named.items()
    )
    options = " ".join(f"--set {shlex.quote(f'{name}={found[0]}')}" for name, found in named.items())
    what = f"the loop at line {line} starts {len(same)} different runs, for {values}"
    asked = [Question(what, f"--set {name}=VALUE", name, tuple(found)) for name, found in named.items()]
    raise QuestionsError(f"{what}; choose one, such as {options}", asked)


def _lose(shell: Shell, launch: Launch) -> None:
    """What nothing sets may be set by a file that is sourced and not there: those words are in doubt, and name the file."""
    if not shell.lost:
        return
    path, line = next(iter(shell.lost.items()))
    why = f"{plain(path, 120)}, which {line} sources, {LOST}"

    def lost(piece: Unknown) -> Unknown:
        if not piece.is_unset or piece.name.isdigit():
            return piece
        (found,) = shell.doubt(why, piece.name)
        return dataclasses.replace(found, quoted=piece.quoted)

    launch.words = [altered(word, lost) for word in launch.words]


def _nothing(shell: Shell, *, has_words: bool) -> str:
    """Why there is no launch."""
    if shell.others:
        return (
            f"{plain(', '.join(shell.others), 120)} serves, evaluates, converts or prepares; it is not a training run"
        )
    if shell.stopped is not None:
        where, said = shell.stopped
        text = f"the script stops at {where}, before it starts a training"
        text += f": {plain(readable(said).strip(), 200)}" if said else ""
        if shell.takes_numbers and not has_words:
            text += "; it reads positional arguments, which are not given: put them after its name"
        return text
    notes = "; ".join(list(shell.notes)[-3:])
    text = "the script starts no training script such as pretrain_gpt.py"
    if shell.strangers:
        text = (
            f"{plain(', '.join(shell.strangers), 120)} is Python of its own, which is not run; give Megatron's arguments behind --, or a "
            "recipe of Megatron-Bridge by name with its overrides"
        )
    if shell.lost:
        text += f"; it sources {plain(', '.join(shell.lost), 200)}, which is not there or not beside the script"
    return text + (f" ({plain(notes, 300)})" if notes else "")
