"""What leaves a function or a loop early where it cannot be known whether it does: the states of both ways meet behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from .control import Break, Return, Stop
from .joining import joined
from .state import Shell, State


def leave(shell: Shell, found: Return | Break, state: State, why: str) -> None:
    """Keep the state of a way that leaves, for the end of what it leaves."""
    if shell.output is not None:
        shell.opaque = True  # what is printed afterwards is printed on the other way only
    if isinstance(found, Return):
        shell.returned.append((state, why))
    else:
        shell.broken.append((found, state, why))


def settle(shell: Shell, states: list[State], why: str) -> None:
    """One state behind all the ways."""
    shell.state = states[0] if len(states) == 1 else joined(shell, states, why)


def until_return(shell: Shell, body: Callable[[], None], ends: Callable[[State], None] = lambda _: None) -> None:
    """Runs a function or a sourced file, up to `return`; each way's state then `ends` by itself."""
    outer, shell.returned = shell.returned, []
    ways: list[State] = []
    try:
        with suppress(Return):
            body()
        ways.append(shell.state)
    except Stop:
        if not shell.returned:
            raise
    finally:
        pending, shell.returned = shell.returned, outer
    ways += [state for state, _ in pending]
    for state in ways:
        ends(state)
    if pending:
        settle(shell, ways, pending[-1][1])


def forgotten(shell: Shell, body: Callable[[], None]) -> bool:
    """Runs a body in a shell of its own, out of which nothing leaves; whether a way may have left it early."""
    returned, broken = shell.returned, shell.broken
    shell.returned, shell.broken = [], []
    try:
        body()
    except (Stop, Return, Break):
        pass
    finally:
        may = bool(shell.returned or shell.broken)
        shell.returned, shell.broken = returned, broken
    return may


def once(shell: Shell, body: Callable[[], object], exits: list[State]) -> bool:
    """Runs what stands in a loop once; whether the loop goes on. States that leave the loop here go to `exits`."""
    outer, shell.broken = shell.broken, []
    goes, ends = list[State](), list[State]()
    shell.loops += 1
    try:
        try:
            body()
            goes.append(shell.state)
        except Break as found:
            if found.levels > 1:
                outer += [(Break(one.levels - 1, goes_on=one.goes_on), state, why) for one, state, why in shell.broken]
                raise Break(found.levels - 1, goes_on=found.goes_on) from None
            (goes if found.goes_on else ends).append(shell.state)
    except Stop:
        if not shell.broken:
            raise
    finally:
        shell.loops -= 1
        pending, shell.broken = shell.broken, outer
    for one, state, why in pending:
        if one.levels > 1:
            shell.broken.append((Break(one.levels - 1, goes_on=one.goes_on), state, why))
        else:
            (goes if one.goes_on else ends).append(state)
    why = pending[-1][2] if pending else ""
    if goes:
        settle(shell, goes, why)
        exits += ends
        return True
    if ends:
        settle(shell, ends, why)
        return False
    raise Stop  # every way leaves further out


def looped(shell: Shell, rounds: Callable[[list[State]], None], line: int) -> None:
    """Runs a loop; behind it the states of all its ends are one."""
    exits: list[State] = []
    try:
        rounds(exits)
        exits.insert(0, shell.state)
    except Stop:
        if not exits:
            raise
    settle(shell, exits, f"how the loop at line {line} ends")
