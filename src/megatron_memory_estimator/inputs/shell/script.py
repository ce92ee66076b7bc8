"""The launch command of a shell script: the training's words, GPUs and environment, without executing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import ConfigError
from ...wording import whole
from . import gpus
from .beside import Beside
from .choosing import chosen
from .commands import run
from .launches import Launch
from .parser import parsed
from .paths import ends
from .state import MOST_PATHS, Crowded, Shell, State, TooManyWays
from .values import Held, Value, unset

__all__ = ["Beside", "Launch", "read_script"]
MOST_WORDS = 1000
MOST_LINES = 50_000
"""Lines of a script; those that are run are far fewer."""


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
    commands = parsed(text)
    for most_paths in MOST_PATHS:
        shell = _shell(text, given, words, beside, most_paths)
        try:
            found = ends(shell, lambda shell=shell: run(shell, commands))  # type: ignore[misc]
            break
        except TooManyWays:
            continue
        except Crowded:
            raise shell.refuse("too many ways lead through it, by conditions that cannot be decided") from None
    launch = chosen(shell, found, has_words=bool(shell.state.positionals))
    option = next((word for word in words if word.startswith("-")), None)
    if option is not None and not shell.takes_words:
        raise ConfigError(
            f'No such option "{option[:80]}", and the script takes no words of its own ("$@", shift, getopts)'
        )
    if words and not shell.takes_words and not shell.takes_numbers:
        launch.notes.append(f"the script reads no words of its caller; {' '.join(words)[:80]} is passed over")
    return launch


def _shell(text: str, given: Mapping[str, str], words: Sequence[str], beside: Beside | None, most_paths: int) -> Shell:
    """A shell before its first command."""
    header = {**gpus.header_options(text), **gpus.asked_for(given)}
    variables: dict[str, Held] = dict(gpus.job_variables(header))
    return Shell(
        {name: value for name, value in given.items() if whole(name) is None},
        run,
        State(variables, set(variables), positionals=_positionals(given, words)),
        most_paths=most_paths,
        beside=beside,
        places=() if beside is None else (beside.script,),
        header=header,
    )


def _positionals(given: Mapping[str, str], words: Sequence[str]) -> tuple[Value, ...]:
    """Positional parameters: words, and those by number; one that is not given before one that is, is set nowhere."""
    numbers = dict(enumerate(words, 1)) | {
        whole(name) or 0: value for name, value in given.items() if whole(name) is not None
    }
    last = max(numbers, default=0)
    if last > MOST_WORDS:
        raise ConfigError(f"a script has at most {MOST_WORDS:,} positional parameters here")
    return tuple(numbers.get(at, unset(str(at))) for at in range(1, last + 1))
