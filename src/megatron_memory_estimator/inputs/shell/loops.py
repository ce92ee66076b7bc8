"""Loops. Source: the Bash Reference Manual 5.2, 3.2.5.1."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...errors import ConfigError
from .arithmetic import assigns, settled
from .commands import run
from .control import Return, Stop
from .doubts import bare, loose, present, readable
from .expand import fields, text_of
from .grammar import ArithmeticFor, Command, For, List, While, Word
from .joining import joined
from .launches import Branch, Round
from .leaving import looped, once
from .state import Shell, State

MOST_ROUNDS = 2000
MOST_EXITS = 20
"""Ways out of a loop that are followed one by one."""


def for_(shell: Shell, node: For) -> None:
    """`for name in words`; a value of the caller for its variable picks one round."""
    if node.words is None:
        shell.takes_words = True
        values = list(shell.state.positionals)
    else:
        values = present(value for word in node.words for value in fields(shell, word))
    if any(map(loose, values)):
        _uncertain(shell, lambda exits: _round(shell, node, None, exits), node)
        return
    if values and node.name in shell.given:
        values = [shell.given[node.name]]
    shell.state.status = 0

    def rounds(exits: list[State]) -> None:
        for value in values:
            if not _round(shell, node, value, exits):
                return

    looped(shell, rounds, node.line)


def _round(shell: Shell, node: For, value: str | None, exits: list[State]) -> bool:
    """One pass of a for loop; whether another follows."""
    shell.step()
    if value is None:
        value = shell.doubt(f"it changes in the loop at line {node.line}", node.name)
    shell.assign(node.name, value)
    return _counted(shell, Round(node.line, node.name, readable(value)), node.body, exits)


def _counted(shell: Shell, one: Round, body: List, exits: list[State]) -> bool:
    """The body of a loop in one of its rounds; whether the loop goes on."""
    outer, shell.rounds = shell.rounds, (*shell.rounds, one)
    try:
        return once(shell, lambda: run(shell, body), exits)
    finally:
        shell.rounds = outer


def while_(shell: Shell, node: While) -> None:
    """`while` and `until`."""
    from .compound import tested

    def holds(exits: list[State]) -> bool | None:
        if not once(shell, lambda: tested(shell, node.condition), exits):
            return False
        status = shell.state.status
        return None if status is None else (status == 0) != node.until

    _loop(shell, node, "", holds, node.body, lambda: None)


Holds = Callable[[list[State]], bool | None]


def _loop(shell: Shell, node: Command, name: str, holds: Holds, body: List, after: Callable[[], None]) -> None:
    """A loop while its condition holds; one whose state does not change any more never ends."""

    def once_more(exits: list[State]) -> None:
        if _counted(shell, Round(node.line, name, "?"), body, exits):
            after()
            holds(exits)

    def rounds(exits: list[State]) -> None:
        last: int | None = 0
        for count in range(MOST_ROUNDS):
            before = shell.state.clone()
            shell.spend(len(before.variables))
            truth = holds(exits)
            if truth is None or (truth and len(exits) > MOST_EXITS):
                _uncertain(shell, once_more, node)
                return
            if not truth:
                shell.state.status = last
                return
            value = shell.state.variables.get(name) if name else str(count + 1)
            if not _counted(shell, Round(node.line, name, value if isinstance(value, str) else ""), body, exits):
                return
            last = shell.state.status
            after()
            if shell.state.same(before):
                if not exits:
                    shell.note("the loop never ends; what follows it is not read")
                raise Stop
        raise ConfigError(f"line {node.line} of the script: the loop runs more than {MOST_ROUNDS} times")

    looped(shell, rounds, node.line)


def _uncertain(shell: Shell, body: Callable[[list[State]], object], node: Command) -> None:
    """A loop that runs nobody knows how often: what its body changes is in doubt, inside and behind it."""
    why = f"the loop at line {node.line}"
    outer, launched, before = shell.branch, len(shell.launches), shell.state
    returned, broken = len(shell.returned), len(shell.broken)
    for _ in range(20):
        del shell.launches[launched:], shell.returned[returned:], shell.broken[broken:]
        shell.state, shell.branch = before.clone(), (*outer, Branch(why, 0))
        ways, exits = [before], list[State]()
        try:
            body(exits)
            ways.append(shell.state)
        except Return:
            shell.returned.append((shell.state, why))
        except Stop:
            pass
        finally:
            shell.state, shell.branch = before, outer
        ways += exits
        widened = joined(shell, ways, why, widen=True) if len(ways) > 1 else before
        if widened.same(before):
            shell.state = before
            shell.state.status = None
            return
        before = widened
    raise shell.refuse("the loop cannot be followed")


def arithmetic_for(shell: Shell, node: ArithmeticFor) -> None:
    """`for ((first; test; next))`."""

    def value_of(word: Word) -> bool | None:
        text = text_of(shell, word)
        if not text.strip():
            return True
        value = settled(shell, text, lenient=not assigns(bare(text)))
        return None if isinstance(value, str) else value != 0

    counter = re.match(r"\s*([A-Za-z_]\w*)\s*=(?!=)", node.first.source)
    name = counter.group(1) if counter else ""
    value_of(node.first)
    if name in shell.given:
        looped(shell, lambda exits: _once_given(shell, node, name, exits), node.line)
        return
    _loop(shell, node, name, lambda exits: value_of(node.test), node.body, lambda: (value_of(node.next), None)[1])


def _once_given(shell: Shell, node: ArithmeticFor, name: str, exits: list[State]) -> None:
    """The round of the value that the caller gives to the loop's variable."""
    _counted(shell, Round(node.line, name, shell.given[name]), node.body, exits)
