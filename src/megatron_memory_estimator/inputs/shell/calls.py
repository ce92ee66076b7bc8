"""Calls of functions, and variables that hold for one command alone. Source: the Bash Reference Manual 5.2, 3.3 and 3.7.4."""

from __future__ import annotations

from collections.abc import Callable

from .assign import assign
from .commands import command
from .doubts import present
from .grammar import Assignment
from .leaving import until_return
from .state import Frame, Shell, State, Value, restore


def environment(shell: Shell, assignments: tuple[Assignment, ...]) -> dict[str, str]:
    """What `name=value` in front of a program gives it."""
    given: dict[str, str] = {}
    before: dict[str, tuple[Value | None, bool]] = {}
    for name in (assignment.name for assignment in assignments):
        before[name] = shell.state.variables.get(name), name in shell.state.exported
    for assignment in assignments:
        if assignment.elements is not None or assignment.index is not None or assignment.name in shell.state.integers:
            raise shell.refuse(f"an array in front of a command ({assignment.name}) is not read")
        assign(shell, assignment)
        held = shell.given.get(assignment.name, shell.state.variables.get(assignment.name, ""))
        given[assignment.name] = held if isinstance(held, str) else held.items.get(0, "")
    for name, (value, was_exported) in before.items():
        restore(shell.state, name, value, exported=was_exported)
    return given


def with_environment(
    shell: Shell, assignments: tuple[Assignment, ...], body: Callable[[], None], *, is_call: bool = False
) -> None:
    """Runs a function or a builtin with variables that hold for it alone."""
    if not assignments:
        body()
        return
    frame = Frame(temporary=is_call)
    for assignment in assignments:
        frame.saved.setdefault(
            assignment.name, (shell.state.variables.get(assignment.name), assignment.name in shell.state.exported)
        )
        assign(shell, assignment)
        shell.state.exported.add(assignment.name)
    shell.state.frames = (*shell.state.frames, frame) if is_call else shell.state.frames
    try:
        body()
    finally:
        if is_call:
            frame, shell.state.frames = shell.state.frames[-1], shell.state.frames[:-1]
        for name, (value, was_exported) in frame.saved.items():
            restore(shell.state, name, value, exported=was_exported)


def call(shell: Shell, name: str, arguments: list[str]) -> None:
    """A call of a function."""
    body = shell.state.functions[name]
    if body is None:
        raise shell.refuse(f"the function {name} depends on a condition that cannot be decided")
    outer, loops, line = shell.state.positionals, shell.loops, shell.line
    shell.state.positionals = tuple(present(arguments))
    shell.state.frames = (*shell.state.frames, Frame())
    shell.loops = 0
    places = shell.places
    if name in shell.homes:
        shell.places = (shell.homes[name], *shell.places)

    def ends(state: State) -> None:
        frame, state.frames = state.frames[-1], state.frames[:-1]
        for local, (value, was_exported) in frame.saved.items():
            restore(state, local, value, exported=was_exported)
        state.positionals = outer

    try:
        until_return(shell, lambda: command(shell, body), ends)
    finally:
        shell.places, shell.loops, shell.line = places, loops, line
