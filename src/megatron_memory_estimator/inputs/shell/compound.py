"""Compound commands: groups, `if`, `case`, loops, definitions, `(( ))` and `[[ ]]`. Source: the Bash Reference Manual 5.2, 3.2.5."""

from __future__ import annotations

from collections.abc import Callable

from ...wording import plain
from .arithmetic import assigns, settled
from .commands import apart, either, redirected, run, shown, targets
from .conditions import decided
from .doubts import bare, in_doubt, readable
from .expand import pattern_of, text_of
from .files import document
from .glob import matches
from .grammar import (
    ArithmeticCommand,
    ArithmeticFor,
    Case,
    Clause,
    Command,
    For,
    Function,
    Group,
    If,
    List,
    Test,
    While,
)
from .loops import arithmetic_for, for_, while_
from .state import Shell


def _group(shell: Shell, node: Group) -> None:
    fed = any(one.feeds for one in node.redirects)
    was, shell.piped, before = shell.piped, shell.piped or fed, shell.state.fed
    targets(shell, node.redirects)
    if fed:
        shell.state.fed = document(shell, node)
    try:
        with redirected(shell, node.redirects):
            if node.is_subshell:
                apart(shell, lambda: run(shell, node.body))
            else:
                run(shell, node.body)
    finally:
        shell.piped = was
        if fed:
            shell.state.fed = before


def _if(shell: Shell, node: If) -> None:
    _branches(shell, node, 0)


def _branches(shell: Shell, node: If, at: int) -> None:
    """The branch whose condition holds, from the one at `at` on."""
    if at == len(node.branches):
        if node.otherwise is None:
            shell.state.status = 0
        else:
            run(shell, node.otherwise)
        return
    condition, body = node.branches[at]
    tested(shell, condition)
    status, line = shell.state.status, condition.items[0].line if condition.items else shell.line
    if status is None:
        why = f"{shown(condition)} (line {line})"
        either(shell, [lambda: run(shell, body), lambda: _branches(shell, node, at + 1)], why)
    elif status == 0:
        run(shell, body)
    else:
        _branches(shell, node, at + 1)


def tested(shell: Shell, condition: List) -> None:
    """Runs commands whose failure ends nothing."""
    shell.tested += 1
    try:
        run(shell, condition)
    finally:
        shell.tested -= 1


def _case(shell: Shell, node: Case) -> None:
    subject = text_of(shell, node.word)
    shell.state.status = 0
    _clauses(shell, node, subject, 0, falls=False)


def _clauses(shell: Shell, node: Case, subject: str, at: int, *, falls: bool) -> None:
    """The clauses from `at` on, with the first that matches."""
    if at >= len(node.clauses):
        return
    clause = node.clauses[at]
    truth = True if falls else _fits(shell, clause, subject)
    if truth is None:
        why = f"which case {plain(readable(node.word.source), 40)} is (line {node.line})"
        taken = lambda: _clause(shell, node, subject, at)  # noqa: E731
        either(shell, [taken, lambda: _clauses(shell, node, subject, at + 1, falls=False)], why)
    elif truth:
        _clause(shell, node, subject, at)
    else:
        _clauses(shell, node, subject, at + 1, falls=False)


def _clause(shell: Shell, node: Case, subject: str, at: int) -> None:
    run(shell, node.clauses[at].body)
    ending = node.clauses[at].ending
    if ending != ";;":
        _clauses(shell, node, subject, at + 1, falls=ending == ";&")


def _fits(shell: Shell, clause: Clause, subject: str) -> bool | None:
    """Whether one of the patterns matches."""
    result: bool | None = False
    for word in clause.patterns:
        if word.literal() == "*":
            return True
        units = pattern_of(shell, word)
        shell.compare(subject, text_of(shell, word))
        if units is None or in_doubt(subject):
            result = None
        else:
            shell.spend(len(subject) * (len(units) + 1))
            if matches(units, bare(subject)):
                return True if result is False else None
    return result


def _function(shell: Shell, node: Function) -> None:
    shell.state.functions[node.name] = node.body
    if shell.places:
        shell.homes[node.name] = shell.places[0]
    shell.state.status = 0


def _arithmetic(shell: Shell, node: ArithmeticCommand) -> None:
    text = text_of(shell, node.expression)
    value = settled(shell, text, lenient=not assigns(bare(text)))
    shell.state.status = None if isinstance(value, str) else int(value == 0)


def _test(shell: Shell, node: Test) -> None:
    truth = decided(shell, node.condition)
    shell.state.status = None if truth is None else int(not truth)


COMPOUND: dict[type[Command], Callable[..., None]] = {
    Group: _group, If: _if, Case: _case, For: for_, While: while_, ArithmeticFor: arithmetic_for, Function: _function,
    ArithmeticCommand: _arithmetic, Test: _test,
}  # fmt: skip
"""What each kind of command does."""
