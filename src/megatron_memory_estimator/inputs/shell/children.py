"""Shells that a script starts: they see their environment only."""

from __future__ import annotations

import re

from ...errors import ConfigError
from . import slurm
from .doubts import unquoted
from .files import plain_path
from .leaving import forgotten
from .parameters import variable
from .parser import parsed
from .state import Shell, State


def environment(shell: Shell, words: list[str], env: dict[str, str]) -> dict[str, str]:
    """The variables of a program: those exported, those in front of it, and those that `env`, mpirun and srun give it."""
    values = {name: variable(shell, name) for name in sorted(shell.state.exported)}
    exported = {name: value for name, value in values.items() if isinstance(value, str)} | env
    for name in shell.state.unsure & exported.keys() - env.keys():
        exported[name] = shell.doubt(f"whether {name} is exported is not known", name)
    inside = False
    for index, word in enumerate(words):
        if word.split("/")[-1] == "env":
            inside = True
        elif inside and word in ("-i", "-"):
            exported = {}
        elif inside and words[index - 1] == "-u":
            exported.pop(word, None)
        elif (inside or words[index - 1] in ("-x", "-e", "--env")) and (
            match := re.match(r"([A-Za-z_]\w*)=", word)
        ) is not None:
            exported[match.group(1)] = unquoted(word[match.end() :])
        elif word.startswith("--export="):
            pairs = [pair.partition("=") for pair in word.removeprefix("--export=").split(",")]
            exported.update({name: unquoted(value) for name, equals, value in pairs if equals})
        elif inside and not word.startswith("-"):
            inside = False
    return {name: shell.given.get(name, value) for name, value in exported.items()}


def child(
    shell: Shell,
    text: str,
    env: dict[str, str],
    launcher: list[str],
    rest: list[str],
    *,
    header: bool = False,
    options: frozenset[str] = frozenset(),
    place: str = "",
) -> None:
    """Reads a text that a program would give to a shell of its own, with a `header` of Slurm perhaps; `place` is its file."""
    before, line, loops, output = shell.state, shell.line, shell.loops, shell.output
    outer, held, places, launches = shell.outer, shell.header, shell.places, len(shell.launches)
    functions = {name: body for name, body in before.functions.items() if name in shell.exported_functions}
    own = {**slurm.header(text), **slurm.asked_for(shell.given)} if header else {}
    if launcher and launcher[0].split("/")[-1] == "sbatch":
        own |= slurm.options(launcher[1:])
    shell.header = {**held, **own}
    env = {
        **env,
        **({name: value for name, value in slurm.variables(own).items() if name not in shell.given} if own else {}),
    }
    shell.state = State(
        {**env}, {*env}, functions=functions, positionals=tuple(rest[1:]), files=dict(before.files), options=options,
        folder=before.folder,
    )  # fmt: skip
    shell.loops, shell.output, shell.outer = 0, None, (*outer, *launcher)
    shell.places = (place,) if place else ()
    shell.depth += 1
    shell.spend(10 * len(text))
    try:
        if shell.depth > 20:
            raise shell.refuse("shells are nested too deeply")
        forgotten(shell, lambda: _run(shell, text, place, line))
    finally:
        shell.state, shell.line, shell.loops, shell.output = before, line, loops, output
        shell.outer, shell.header, shell.places = outer, held, places
        shell.depth -= 1
    for launch in shell.launches[launches:]:
        launch.line = line


def _run(shell: Shell, text: str, place: str, line: int) -> None:
    """The commands of a text, or of a file, which errors name."""
    from .commands import run

    if not place:
        run(shell, parsed(unquoted(text), line))
        return
    name = shell.beside.shown(place) if shell.beside is not None else plain_path(place)
    try:
        run(shell, parsed(text))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
