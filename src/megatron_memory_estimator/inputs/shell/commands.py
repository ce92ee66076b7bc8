"""Commands of a shell script in the order in which bash runs them, without running any program.

Source: the Bash Reference Manual 5.2, 3.2 and 3.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import ConfigError
from .assign import assign, declare
from .builtins import BUILTINS, builtin
from .compound import COMPOUND, shown
from .expand import fields
from .grammar import AndOr, Assignment, Command, List, Pipeline, Simple
from .input_output import redirected, targets
from .paths import DEEPEST, End, apart, either, through
from .programs import program
from .simple import DECLARING
from .state import FAILED, Fork, Frame, Shell, Stop
from .values import Array, Value, joined, present, vanishes


def run(shell: Shell, commands: List) -> None:
    """Commands one after the other."""
    for item in commands.items:
        shell.line = item.line
        if item.background:
            apart(shell, lambda item=item: _and_or(shell, item))  # type: ignore[misc]
            shell.state.status = 0
        else:
            _and_or(shell, item)


def _and_or(shell: Shell, item: AndOr) -> None:
    """Pipelines joined by && and ||, from left to right."""
    last = len(item.rest)
    _pipeline(shell, item.first, tested=last > 0)
    for at, (joint, other) in enumerate(item.rest, 1):
        status = shell.state.status
        if status is not None:
            if (status == 0) == (joint == "&&"):
                _pipeline(shell, other, tested=at < last)
            continue
        follows = joint == "&&"
        before = item.first if at == 1 else item.rest[at - 2][1]
        why = f"whether {_piped_shown(before)} {'succeeds' if follows else 'fails'} (line {shell.line})"

        def taken(other: Pipeline = other, is_tested: bool = at < last, status: int = 0 if follows else FAILED) -> None:
            shell.state.status = status
            _pipeline(shell, other, tested=is_tested)

        def left(status: int = FAILED if follows else 0) -> None:
            shell.state.status = status

        either(shell, [(None, taken)], left, [Fork(why, shell.state.cause)], follows=follows)


def _piped_shown(node: Pipeline) -> str:
    """A pipeline for a message."""
    first = shown(node.commands[0])
    return first if len(node.commands) == 1 else "a pipe that begins with " + first


def _pipeline(shell: Shell, node: Pipeline, *, tested: bool) -> None:
    """One pipeline; with `set -e` a failure that nothing tests ends the script."""
    with shell.during(tested=shell.tested or tested or node.negated):
        if len(node.commands) == 1:
            _command(shell, node.commands[0])
        else:
            statuses = _piped(shell, node.commands)
            if "pipefail" in shell.state.options:
                wrong = [status for status in statuses if status]
                shell.state.status = wrong[-1] if wrong else 0
                if None in statuses:
                    shell.undecided()
    status = shell.state.status
    if node.negated and status is not None:
        shell.state.status = int(status == 0)
    elif status and not tested and not shell.tested and "errexit" in shell.state.options:
        shell.note(f"set -e ends the script here: {_piped_shown(node)} fails")
        raise Stop


def _piped(shell: Shell, commands: Sequence[Command]) -> list[int | None]:
    """Commands each of which reads what the one before it prints; their statuses."""
    outer, hidden, fed = shell.state.output, shell.state.opaque, shell.state.fed
    statuses: list[int | None] = []
    for at, part in enumerate(commands):
        shell.state.output, shell.state.opaque = outer if at == len(commands) - 1 else [], False
        apart(shell, lambda part=part: _command(shell, part), piped=at > 0, fed=fed)  # type: ignore[misc]
        state = shell.state
        statuses.append(state.status)
        fed = None if state.opaque or state.output is None else joined(state.output)
    shell.state.opaque = hidden or (shell.state.opaque and outer is not None)
    return statuses


def _command(shell: Shell, node: Command) -> None:
    """One command of any kind."""
    shell.line = node.line
    shell.step()
    if shell.depth > DEEPEST:
        raise ConfigError(f"line {node.line} of the script is nested too deeply")
    with shell.during(depth=shell.depth + 1):
        if isinstance(node, Simple):
            _simple(shell, node)
        else:
            COMPOUND[type(node)](shell, node)


def _simple(shell: Shell, node: Simple) -> None:
    """Expands the words, then assigns, or calls a function, a builtin or a program."""
    words: list[Value] = []
    origins: list[tuple[int, str]] = []
    declared: list[Assignment] = []
    substituted = shell.substituted
    for at, word in enumerate(node.words):
        if isinstance(word, Assignment):
            declared.append(word)
        else:
            found = fields(shell, word)
            words += found
            origins += [(at, word.source)] * len(found)
    while words and vanishes(words[0]):
        words.pop(0)
    if not words:
        _assignments(shell, node, substituted)
        return
    name = words[0] if isinstance(words[0], str) else ""
    is_known = name in shell.state.functions or name in DECLARING or name in BUILTINS
    _expand_targets(shell, node, in_a_process=not is_known)
    shell.origins = tuple(origins[len(origins) - len(words) :])
    with redirected(shell, node.redirects):
        if name in shell.state.functions:
            _with_environment(shell, node.assignments, lambda: _call(shell, name, words[1:]), is_call=True)
        elif name in DECLARING:
            if node.assignments:
                raise shell.refuse(f"assignments in front of {name} are not read")
            declare(shell, name, words[1:], declared)
        elif is_known:
            _with_environment(shell, node.assignments, lambda: builtin(shell, name, words[1:], node))
        else:
            program(shell, words, _environment(shell, node.assignments), node)


def _assignments(shell: Shell, node: Simple, substituted: int) -> None:
    """A command without a name."""
    targets(shell, node.redirects)
    if shell.state.output is not None and any(redirect.operator == "<" for redirect in node.redirects):
        shell.state.opaque = True  # $(< file)
    for assignment in node.assignments:
        assign(shell, assignment)
    if shell.substituted == substituted:
        shell.state.status = 0
    elif shell.last_status is None:
        shell.undecided()
    else:
        shell.state.status = shell.last_status


def _expand_targets(shell: Shell, node: Simple, *, in_a_process: bool) -> None:
    """Expands what redirections name; those of a program in its own process."""
    if not node.redirects:
        return
    before = shell.state
    if in_a_process:
        shell.state = before.clone()
    targets(shell, node.redirects)
    if in_a_process:
        shell.state = before


# -- functions, and variables for one command ------------------------------------------------------------------------------
def _environment(shell: Shell, assignments: tuple[Assignment, ...]) -> dict[str, Value]:
    """What `name=value` in front of a program gives it."""
    given: dict[str, Value] = {}
    before = shell.state.kept(*(assignment.name for assignment in assignments))
    for assignment in assignments:
        if assignment.elements is not None or assignment.index is not None or assignment.name in shell.state.integers:
            raise shell.refuse(f"an array in front of a command ({assignment.name}) is not read")
        assign(shell, assignment)
        held = shell.given.get(assignment.name, shell.state.variables.get(assignment.name, ""))
        given[assignment.name] = held.items.get(0, "") if isinstance(held, Array) else held
    shell.state.restore(before)
    return given


def _with_environment(
    shell: Shell, assignments: tuple[Assignment, ...], body: Callable[[], None], *, is_call: bool = False
) -> None:
    """Runs a function or a builtin with variables that hold for it alone."""
    if not assignments:
        body()
        return
    frame = Frame(temporary=is_call)
    for assignment in assignments:
        frame.saved = {**shell.state.kept(assignment.name), **frame.saved}
        assign(shell, assignment)
        shell.state.exported.add(assignment.name)
    shell.state.frames = (*shell.state.frames, frame) if is_call else shell.state.frames
    try:
        body()
    finally:
        if is_call:
            frame, shell.state.frames = shell.state.frames[-1], shell.state.frames[:-1]
        shell.state.restore(frame.saved)


def _call(shell: Shell, name: str, arguments: list[Value]) -> None:
    """A call of a function."""
    known = shell.state.functions[name]
    if known is None:
        raise shell.refuse(f"the function {name} depends on a condition that cannot be decided")
    body, home = known
    outer, places = shell.state.positionals, (home, *shell.places) if home else shell.places

    def inside() -> None:
        shell.state.positionals = tuple(present(arguments))
        shell.state.frames = (*shell.state.frames, Frame())
        with shell.during(loops=0, line=shell.line, places=places):
            _command(shell, body)

    def behind(end: End) -> None:
        frame, end.state.frames, end.state.positionals = end.state.frames[-1], end.state.frames[:-1], outer
        end.state.restore(frame.saved)
        end.returned()

    through(shell, inside, behind)
