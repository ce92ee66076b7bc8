"""Commands of a shell script in the order in which bash runs them, without running any program.

Where a condition cannot be known, each branch is read on a state of its own, and what differs afterwards is in doubt
(`joining.joined`). Source: the Bash Reference Manual 5.2, 3.2 and 3.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...errors import ConfigError
from ...wording import plain
from .assign import assign
from .control import Break, Return, Stop
from .doubts import in_doubt, readable, vanishes
from .expand import fields, text_of
from .grammar import AndOr, Assignment, Command, List, Pipeline, Redirect, Simple
from .joining import joined
from .launches import Branch
from .leaving import forgotten, leave
from .state import Shell, State

DEEPEST = 60


def run(shell: Shell, commands: List) -> None:
    """Commands one after the other."""
    for item in commands.items:
        shell.line = item.line
        if item.background:
            apart(shell, lambda item=item: and_or(shell, item))  # type: ignore[misc]
            shell.state.status = 0
        else:
            and_or(shell, item)


def and_or(shell: Shell, item: AndOr) -> None:
    """Pipelines joined by && and ||, from left to right."""
    last = len(item.rest)
    pipeline(shell, item.first, tested=last > 0)
    for at, (joint, other) in enumerate(item.rest, 1):
        status = shell.state.status
        if status is None:
            follows = joint == "&&"
            verb = "succeeds" if follows else "fails"
            why = f"whether {shown(item.first if at == 1 else item.rest[at - 2][1])} {verb} (line {shell.line})"
            taken = lambda other=other, at=at: pipeline(shell, other, tested=at < last)  # noqa: E731
            either(shell, [taken, lambda: None], why, follows=follows)
        elif (status == 0) == (joint == "&&"):
            pipeline(shell, other, tested=at < last)


def shown(node: Pipeline | List | Command) -> str:
    """A condition for a message."""
    if isinstance(node, Pipeline):
        return (
            shown(node.commands[0]) if len(node.commands) == 1 else "a pipe that begins with " + shown(node.commands[0])
        )
    return f"`{plain(readable(node.source), 60)}`"


def pipeline(shell: Shell, node: Pipeline, *, tested: bool) -> None:
    """One pipeline; with `set -e` a failure that nothing tests ends the script."""
    shell.tested += tested or node.negated
    try:
        if len(node.commands) == 1:
            command(shell, node.commands[0])
        else:
            statuses = _piped(shell, node.commands)
            if "pipefail" in shell.state.options:
                wrong = [status for status in statuses if status]
                shell.state.status = None if None in statuses else wrong[-1] if wrong else 0
    finally:
        shell.tested -= tested or node.negated
    if node.negated:
        status = shell.state.status
        shell.state.status = None if status is None else int(status == 0)
    elif shell.state.status and not tested and not shell.tested and "errexit" in shell.state.options:
        shell.note(f"set -e ends the script here: {shown(node)} fails")
        raise Stop


def _piped(shell: Shell, commands: Sequence[Command]) -> list[int | None]:
    """Commands each of which reads what the one before it prints; their statuses."""
    outer, hidden, fed = shell.output, shell.opaque, shell.state.fed
    statuses: list[int | None] = []
    for at, part in enumerate(commands):
        shell.output, shell.opaque = outer if at == len(commands) - 1 else [], False
        apart(shell, lambda part=part: command(shell, part), piped=at > 0, fed=fed)  # type: ignore[misc]
        statuses.append(shell.state.status)
        fed = None if shell.opaque or shell.output is None else "".join(shell.output)
    shell.output, shell.opaque = outer, hidden or (shell.opaque and outer is not None)
    return statuses


def apart(shell: Shell, body: Callable[[], None], *, piped: bool = False, fed: str | None = None) -> None:
    """Runs in a subshell: what it changes is lost, its launches stay."""
    before, was = shell.state, shell.piped
    shell.spend(len(before.variables))
    shell.state, shell.piped = before.clone(), piped or was
    shell.state.fed = fed if piped else before.fed
    may_end = False
    try:
        may_end = forgotten(shell, body)
    finally:
        before.status = None if may_end else shell.state.status
        shell.state, shell.piped = before, was


def either(shell: Shell, branches: list[Callable[[], None]], why: str, *, follows: bool = False) -> None:
    """Runs each branch on a state of its own; afterwards whichever of the states is true."""
    before, alive = shell.state, list[State]()
    leaves: list[tuple[Return | Break, State]] = []
    outer = shell.branch
    printed = None if shell.output is None else len(shell.output)
    for at, branch in enumerate(branches):
        shell.spend(len(before.variables))
        shell.state, shell.branch = before.clone(), (*outer, Branch(why, at, follows))
        try:
            branch()
            alive.append(shell.state)
        except Stop:
            pass
        except (Return, Break) as found:
            leaves.append((found, shell.state))
        finally:
            shell.state, shell.branch = before, outer
    if printed is not None and shell.output is not None and len(shell.output) > printed:
        shell.opaque = True
    last = leaves.pop() if leaves and not alive else None
    for one, state in leaves:
        leave(shell, one, state, why)
    if last is not None:
        shell.state = last[1]
        raise last[0]
    if not alive:
        raise Stop
    shell.state = joined(shell, alive, why)
    shell.state.status = None if len(alive) > 1 else alive[0].status


def command(shell: Shell, node: Command) -> None:
    """One command of any kind."""
    shell.line = node.line
    shell.step()
    if shell.depth > DEEPEST:
        raise ConfigError(f"line {node.line} of the script is nested too deeply")
    shell.depth += 1
    try:
        if isinstance(node, Simple):
            simple(shell, node)
        else:
            from .compound import COMPOUND

            COMPOUND[type(node)](shell, node)
    finally:
        shell.depth -= 1


def simple(shell: Shell, node: Simple) -> None:
    """Expands the words, then assigns, or calls a function, a builtin or a program."""
    from .builtins import BUILTINS
    from .calls import call, environment, with_environment
    from .declare import DECLARING, declare
    from .programs import program

    words: list[str] = []
    declared: list[Assignment] = []
    substituted = shell.substituted
    for word in node.words:
        if isinstance(word, Assignment):
            declared.append(word)
        else:
            words += fields(shell, word)
    while words and vanishes(words[0]):
        words.pop(0)
    if not words:
        targets(shell, node.redirects)
        if shell.output is not None and any(redirect.operator == "<" for redirect in node.redirects):
            shell.opaque = True  # $(< file)
        for assignment in node.assignments:
            assign(shell, assignment)
        shell.state.status = 0 if shell.substituted == substituted else shell.last_status
        return
    name = words[0]
    is_known = not in_doubt(name) and (name in shell.state.functions or name in DECLARING or name in BUILTINS)
    before = shell.state
    if not is_known:
        shell.state = before.clone()  # a program's redirections are expanded in its own process
    targets(shell, node.redirects)
    shell.state = before
    with redirected(shell, node.redirects):
        if is_known and name in shell.state.functions:
            with_environment(shell, node.assignments, lambda: call(shell, name, words[1:]), is_call=True)
        elif is_known and name in DECLARING:
            if node.assignments:
                raise shell.refuse(f"assignments in front of {name} are not read")
            declare(shell, name, words[1:], declared)
        elif is_known:
            with_environment(shell, node.assignments, lambda: BUILTINS[name](shell, words[1:], node))
        else:
            program(shell, words, environment(shell, node.assignments), node)


def targets(shell: Shell, redirects: Sequence[Redirect]) -> None:
    """Expands what redirections name, once, in their order."""
    for one in redirects:
        shell.targets[id(one)] = text_of(shell, one.target)


@contextmanager
def redirected(shell: Shell, redirects: Sequence[Redirect]) -> Iterator[None]:
    """Inside a substitution, what a command prints elsewhere is not its output; files that it writes are not known any more."""
    from .files import written

    outer = shell.output
    if any(one.takes for one in redirects):
        shell.output = None
    try:
        yield
    finally:
        shell.output = outer
        written(shell, redirects)


def captured(shell: Shell, body: List) -> str | None:
    """What commands print, or None where it cannot be known; they change nothing outside."""
    before, outer, was, noted, hidden = shell.state, shell.output, shell.tested, shell.line, shell.opaque
    shell.state, shell.output, shell.tested, shell.opaque = before.clone(), [], 0, False
    shell.state.options = shell.state.options - {"errexit"}  # a substitution does not inherit set -e outside POSIX mode
    shell.spend(len(before.variables))
    shell.depth += 1
    shell.substituted += 1
    try:
        if shell.depth > DEEPEST:
            raise ConfigError(f"line {shell.line} of the script is nested too deeply")
        may_end = forgotten(shell, lambda: run(shell, body))
        found = None if shell.opaque or (may_end and shell.output) else "".join(shell.output or ())
    finally:
        before.status = shell.last_status = shell.state.status
        shell.state, shell.output, shell.tested, shell.line, shell.opaque = before, outer, was, noted, hidden
        shell.depth -= 1
    return None if found is None else found.rstrip("\n")
