"""Compound commands: groups, `if`, `case`, loops, definitions, `(( ))` and `[[ ]]`. Source: the Bash Reference Manual 5.2, 3.2.5."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import ConfigError
from ...wording import plain
from .arithmetic import assigns, settled
from .commands import apart, either, redirected, run, shown, targets
from .conditions import decided
from .control import Break, Return, Stop
from .doubts import bare, in_doubt, loose, present, readable
from .expand import fields, pattern_of, text_of
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
    Word,
)
from .joining import joined
from .state import Branch, Shell

MOST_ROUNDS = 2000


def _group(shell: Shell, node: Group) -> None:
    fed = any(one.feeds for one in node.redirects)
    was, shell.piped = shell.piped, shell.piped or fed
    targets(shell, node.redirects)
    try:
        with redirected(shell, node.redirects):
            if node.is_subshell:
                apart(shell, lambda: run(shell, node.body))
            else:
                run(shell, node.body)
    finally:
        shell.piped = was


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
        if units is None or in_doubt(subject):
            result = None
        else:
            shell.spend(len(subject) * (len(units) + 1))
            if matches(units, bare(subject)):
                return True if result is False else None
    return result


def _for(shell: Shell, node: For) -> None:
    if node.words is None:
        values = list(shell.state.positionals)
    else:
        values = present(value for word in node.words for value in fields(shell, word))
    if any(map(loose, values)):
        _uncertain_loop(shell, lambda: _round(shell, node, None), node)
        return
    shell.state.status = 0
    for value in values:
        if not _round(shell, node, value):
            return


def _round(shell: Shell, node: For, value: str | None) -> bool:
    """One pass of a for loop; whether another follows."""
    shell.step()
    shell.assign(
        node.name, shell.doubt(f"it changes in the loop at line {node.line}", node.name) if value is None else value
    )
    return _body(shell, node.body)


def _body(shell: Shell, body: List) -> bool:
    """The body of a loop once; whether the loop goes on."""
    return _within(shell, lambda: run(shell, body))


def _within(shell: Shell, body: Callable[[], None]) -> bool:
    """Runs what stands in a loop; whether the loop goes on."""
    shell.loops += 1
    try:
        body()
    except Break as found:
        if found.levels > 1:
            raise Break(found.levels - 1, goes_on=found.goes_on) from None
        return found.goes_on
    finally:
        shell.loops -= 1
    return True


def _while(shell: Shell, node: While) -> None:
    _loop(shell, node, lambda: _holds(shell, node), node.body, lambda: None)


def _holds(shell: Shell, node: While) -> bool | None:
    if not _within(shell, lambda: tested(shell, node.condition)):
        return False
    status = shell.state.status
    return None if status is None else (status == 0) != node.until


def _loop(shell: Shell, node: Command, holds: Callable[[], bool | None], body: List, after: Callable[[], None]) -> None:
    """A loop while its condition holds; one whose state does not change any more never ends."""
    last: int | None = 0
    for _ in range(MOST_ROUNDS):
        before = shell.state.clone()
        shell.spend(len(before.variables))
        truth = holds()
        if truth is None:
            _uncertain_loop(shell, lambda: _once_more(shell, body, after, holds), node)
            return
        if not truth:
            shell.state.status = last
            return
        if not _body(shell, body):
            return
        last = shell.state.status
        after()
        if shell.state.same(before):
            shell.note("the loop never ends; what follows it is not read")
            raise Stop
    raise ConfigError(f"line {node.line} of the script: the loop runs more than {MOST_ROUNDS} times")


def _once_more(shell: Shell, body: List, after: Callable[[], None], holds: Callable[[], bool | None]) -> None:
    """One pass of a loop, up to its next question whether to go on."""
    if _body(shell, body):
        after()
        holds()


def _uncertain_loop(shell: Shell, body: Callable[[], object], node: Command) -> None:
    """A loop that runs nobody knows how often: what its body changes is in doubt, inside and behind it."""
    why = f"the loop at line {node.line}"
    outer = shell.branch
    launched = len(shell.launches)
    before = shell.state
    for _ in range(20):
        del shell.launches[launched:]
        shell.state, shell.branch = before.clone(), (*outer, Branch(why, 0))
        ends = False
        try:
            body()
        except Stop:
            ends = True
        except (Return, Break):
            raise shell.refuse(
                f"return or break in {why}, which runs nobody knows how often, cannot be followed"
            ) from None
        finally:
            after, shell.state, shell.branch = shell.state, before, outer
        widened = before if ends else joined(shell, [before, after], why, widen=True)
        if widened.same(before):
            shell.state = before
            shell.state.status = None
            return
        before = widened
    raise shell.refuse("the loop cannot be followed")


def _arithmetic_for(shell: Shell, node: ArithmeticFor) -> None:
    def value_of(word: Word) -> bool | None:
        text = text_of(shell, word)
        if not text.strip():
            return True
        value = settled(shell, text, lenient=not assigns(bare(text)))
        return None if isinstance(value, str) else value != 0

    def after() -> None:
        value_of(node.next)

    value_of(node.first)
    _loop(shell, node, lambda: value_of(node.test), node.body, after)


def _function(shell: Shell, node: Function) -> None:
    shell.state.functions[node.name] = node.body
    shell.state.status = 0


def _arithmetic(shell: Shell, node: ArithmeticCommand) -> None:
    text = text_of(shell, node.expression)
    value = settled(shell, text, lenient=not assigns(bare(text)))
    shell.state.status = None if isinstance(value, str) else int(value == 0)


def _test(shell: Shell, node: Test) -> None:
    truth = decided(shell, node.condition)
    shell.state.status = None if truth is None else int(not truth)


COMPOUND: dict[type[Command], Callable[..., None]] = {
    Group: _group, If: _if, Case: _case, For: _for, While: _while, ArithmeticFor: _arithmetic_for, Function: _function,
    ArithmeticCommand: _arithmetic, Test: _test,
}  # fmt: skip
"""What each kind of command does."""
