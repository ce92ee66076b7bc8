"""The launch command of a shell script: Megatron-LM's arguments, GPUs and environment, without executing anything."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from ...errors import ConfigError
from ...wording import plain, whole
from .commands import run
from .control import Break, Return, Stop
from .doubts import MARK, readable
from .launcher import sbatch_gpus, slurm_variables
from .parser import parsed
from .state import Launch, Shell, State

__all__ = ["Launch", "read_script"]


def read_script(text: str, given: Mapping[str, str] | None = None) -> Launch:
    """The last launch of a training script in `text`. `given` are variables set by the caller, or positional parameters by
    their numbers; they win.

    Raises ConfigError for a script that starts no training script or cannot be read.
    """
    given = dict(given or {})
    if MARK in text or any(MARK in value for value in given.values()):
        raise ConfigError("the script has a null byte")
    header = slurm_variables(text)
    shell = Shell(
        {name: value for name, value in given.items() if whole(name) is None},
        State({**header}, set(header), positionals=_positionals(given)),
    )
    with suppress(Stop, Return, Break):
        run(shell, parsed(text))
    launch = _chosen(shell)
    launch.notes = [*shell.notes, *launch.notes]
    launch.doubts = shell.doubts
    if launch.num_gpus is None:
        launch.num_gpus = sbatch_gpus(text)
    if launch.num_gpus is None:
        launch.num_gpus = whole(launch.world) or None
    return launch


def _positionals(given: Mapping[str, str]) -> tuple[str, ...]:
    """Positional parameters by number; one that is not given before one that is, is set nowhere."""
    from .doubts import unset

    numbers = {whole(name) or 0: value for name, value in given.items() if whole(name) is not None}
    last = max(numbers, default=0)
    if last > 1000:
        raise ConfigError("a script has at most 1,000 positional parameters here")
    return tuple(numbers.get(at, unset(str(at))) for at in range(1, last + 1))


def _chosen(shell: Shell) -> Launch:
    """The last launch; what else could run is said, and refused where that is a guess."""
    if not shell.launches:
        raise ConfigError(_nothing(shell))
    launch = shell.launches[-1]
    others = [
        other for other in shell.launches[:-1] if (other.words, other.num_gpus) != (launch.words, launch.num_gpus)
    ]
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
    return launch


def _nothing(shell: Shell) -> str:
    """Why there is no launch."""
    if shell.others:
        return (
            f"{plain(', '.join(shell.others), 120)} serves, evaluates, converts or prepares; it is not a training run"
        )
    notes = "; ".join(list(shell.notes)[-3:])
    text = "the script starts no training script such as pretrain_gpt.py"
    return text + (f" ({plain(readable(notes), 300)})" if notes else "")
