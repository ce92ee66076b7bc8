"""Which of the runs that a script starts is meant, and what is said where there is none, or none that can be chosen."""

from __future__ import annotations

import re

from ...errors import ConfigError
from ...wording import plain
from .doubts import MARK, marks, readable
from .launches import Launch
from .state import Shell

WITHOUT_EFFECT = frozenset(
    [
        "seed", "save", "load", "lr", "min-lr", "data-path", "tensorboard-dir", "log-interval", "save-interval", "eval-interval",
        "train-iters", "train-samples", "exit-interval", "wandb-project", "wandb-exp-name", "wandb-save-dir", "output-dir", "dataset",
        "learning-rate", "weight-decay", "lr-warmup-iters", "lr-decay-iters", "clip-grad", "init-method-std", "split", "run-name",
    ]
)  # fmt: skip
"""Options whose values change no byte, in every framework: runs that differ in them alone are one."""

KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w@/-]*(?:\.[\w@/-]+)*")
"""Key of an override (`model.seq_length=4096`), which is no value of the option before it."""


def chosen(shell: Shell) -> Launch:
    """The last training; what else could run is said, and asked for or refused where that is a guess."""
    if not shell.launches:
        raise ConfigError(_nothing(shell))
    launch = shell.launches[-1]
    others = [other for other in shell.launches[:-1] if not _same(other, launch)]
    _refuse_rounds([*others, launch])
    for other in others:
        apart = next(((a, b) for a, b in zip(other.branch, launch.branch, strict=False) if a != b), None)
        if apart is not None and apart[0].why == apart[1].why:
            raise ConfigError(
                f"which of two runs the script starts, at line {other.line} or at line {launch.line}, depends on {apart[0].why}, "
                "which cannot be decided; give a script with the one that you mean"
            )
    if others:
        launch.notes.append(
            f"{len(others) + 1} different runs are started; the last one (line {launch.line}) is read, "
            f"not the one at line {others[-1].line}"
        )
    for branch in launch.branch:
        if not branch.follows:  # `cd run && torchrun ...` is the run that is meant
            launch.notes.append(f"line {launch.line}: the run depends on {branch.why}, and is taken as started")
    launch.notes = [*shell.notes, *launch.notes]
    launch.lost = tuple(shell.lost)
    _lose(shell, launch)
    launch.doubts = shell.doubts
    launch.compared = {name: tuple(values) for name, values in shell.compared.items() if values}
    return launch


def _same(one: Launch, other: Launch) -> bool:
    """Whether two launches are the same run: words that differ are values that change no byte."""
    if (one.entry, one.num_gpus, len(one.words)) != (other.entry, other.num_gpus, len(other.words)):
        return False
    flag = ""
    for left, right in zip(one.words, other.words, strict=True):
        named, equals, _ = left.partition("=")
        is_override = KEY.fullmatch(named) is not None and bool(equals)
        is_flag = left.startswith("--") or is_override
        flag = named.rsplit(".", 1)[-1] if is_override else named if is_flag else flag
        if left == right:
            continue
        if is_flag and (not equals or not right.startswith(named + "=")):
            return False
        if flag.lstrip("-").replace("_", "-") not in WITHOUT_EFFECT or (right.startswith("--") and not is_flag):
            return False
    return True


def _refuse_rounds(launches: list[Launch]) -> None:
    """Ask for the round of a loop that starts different runs. Raises ConfigError."""
    last = launches[-1]
    same = [one for one in launches if _loops(one) == _loops(last)]
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
    options = " ".join(f"--set {_quoted(f'{name}={found[0]}')}" for name, found in named.items())
    raise ConfigError(
        f"the loop at line {line} starts {len(same)} different runs, for {values}; choose one, such as {options}"
    )


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w=.,:/@%+-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _loops(launch: Launch) -> list[tuple[int, str]]:
    return [(one.line, one.name) for one in launch.rounds]


def _lose(shell: Shell, launch: Launch) -> None:
    """What nothing sets may be set by a file that is sourced and not there: those words are in doubt, and name the file."""
    if not shell.lost:
        return
    path, line = next(iter(shell.lost.items()))
    why = f"{plain(path, 120)}, which {line} sources, is not there or not beside the script (--follow opens files elsewhere)"

    def lost(word: str) -> str:
        for kind, name in dict.fromkeys(marks(word)):
            if kind in "?!" or name.isdigit():
                continue
            mark = shell.doubt(why, name)
            if kind == '"':
                mark = mark.replace(f"{MARK}?", f"{MARK}!")
            word = word.replace(f"{MARK}{kind}{name}{MARK}", mark)
        return word

    launch.words = [lost(word) for word in launch.words]


def _nothing(shell: Shell) -> str:
    """Why there is no launch."""
    if shell.others:
        return (
            f"{plain(', '.join(shell.others), 120)} serves, evaluates, converts or prepares; it is not a training run"
        )
    if shell.stopped is not None:
        where, said = shell.stopped
        text = f"the script stops at {where}, before it starts a training"
        text += f": {plain(readable(said), 200)}" if said else ""
        if shell.takes_numbers and not shell.state.positionals:
            text += "; it reads words of its caller, which are not given: put them behind its name"
        return text
    notes = "; ".join(list(shell.notes)[-3:])
    text = "the script starts no training script such as pretrain_gpt.py"
    if shell.lost:
        text += f"; it sources {plain(', '.join(shell.lost), 200)}, which is not there or not beside the script"
    return text + (f" ({plain(readable(notes), 300)})" if notes else "")
