"""Commands of a shell script in the order in which bash runs them, without running any program.

Where a condition cannot be known, each branch is read on a state of its own, and what differs afterwards is in doubt
(`state.joined`). Source: the Bash Reference Manual 5.2, 3.2 and 3.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...errors import ConfigError
from ...wording import plain
from .arithmetic import assigns, settled
from .conditions import decided
from .doubts import bare, in_doubt, readable, vanishes
from .expand import fields, pattern_of, text_of
from .glob import matches
from .grammar import (
    AndOr,
    ArithmeticCommand,
    ArithmeticFor,
    Assignment,
    Case,
    Clause,
    Command,
    For,
    Function,
    Group,
    If,
    List,
    Pipeline,
    Redirect,
    Simple,
    Test,
    Text,
    While,
    Word,
)
from .state import Array, Shell, State, Value, joined

DEEPEST = 60
MOST_ROUNDS = 2000


class Stop(Exception):  # noqa: N818
    """`exit`, or what ends a script."""


class Return(Exception):  # noqa: N818
    """`return`."""


class Break(Exception):  # noqa: N818
    """`break` or `continue`, out of `levels` loops."""

    def __init__(self, levels: int, *, goes_on: bool) -> None:
        super().__init__()
        self.levels, self.goes_on = levels, goes_on


class Unprintable(Exception):  # noqa: N818
    """A command in a substitution prints what cannot be known."""


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
            verb = "succeeds" if joint == "&&" else "fails"
            why = f"whether {shown(item.first if at == 1 else item.rest[at - 2][1])} {verb} (line {shell.line})"
            either(shell, [lambda other=other, at=at: pipeline(shell, other, tested=at < last), lambda: None], why)  # type: ignore[misc]
        elif (status == 0) == (joint == "&&"):
            pipeline(shell, other, tested=at < last)


def shown(found: Pipeline | List | Command) -> str:
    """A condition for a message."""
    if isinstance(found, Pipeline):
        return (
            shown(found.commands[0])
            if len(found.commands) == 1
            else "a pipe that begins with " + shown(found.commands[0])
        )
    return f"`{plain(readable(found.source), 60)}`"


def pipeline(shell: Shell, found: Pipeline, *, tested: bool) -> None:
    """One pipeline; with `set -e` a failure that nothing tests ends the script."""
    shell.tested += tested or found.negated
    try:
        if len(found.commands) == 1:
            command(shell, found.commands[0])
        else:
            if shell.output is not None:
                raise Unprintable
            statuses = []
            for one in found.commands:
                apart(shell, lambda one=one: command(shell, one), piped=one is not found.commands[0])  # type: ignore[misc]
                statuses.append(shell.state.status)
            if "pipefail" in shell.state.options:
                wrong = [status for status in statuses if status]
                shell.state.status = None if None in statuses else wrong[-1] if wrong else 0
    finally:
        shell.tested -= tested or found.negated
    if found.negated:
        status = shell.state.status
        shell.state.status = None if status is None else int(status == 0)
    elif shell.state.status and not tested and not shell.tested and "errexit" in shell.state.options:
        shell.note(f"set -e ends the script here: {shown(found)} fails")
        raise Stop


def apart(shell: Shell, body: Callable[[], None], *, piped: bool = False) -> None:
    """Runs in a subshell: what it changes is lost, its launches stay."""
    before, was = shell.state, shell.piped
    shell.spend(len(before.variables))
    shell.state, shell.piped = before.clone(), piped or was
    try:
        body()
    except (Stop, Return, Break):
        pass
    finally:
        before.status = shell.state.status
        shell.state, shell.piped = before, was


def either(shell: Shell, branches: list[Callable[[], None]], why: str) -> None:
    """Runs each branch on a state of its own; afterwards whichever of the states is true."""
    before, alive = shell.state, list[State]()
    outer = shell.branch
    printed = None if shell.output is None else len(shell.output)
    for at, branch in enumerate(branches):
        shell.spend(len(before.variables))
        shell.state, shell.branch = before.clone(), (*outer, (why, at))
        try:
            branch()
            alive.append(shell.state)
        except Stop:
            pass
        except (Return, Break):
            raise shell.refuse(f"return, break or continue depends on {why}, which cannot be decided") from None
        finally:
            shell.state, shell.branch = before, outer
    if printed is not None and shell.output is not None and len(shell.output) > printed:
        raise Unprintable
    if not alive:
        raise Stop
    shell.state = joined(shell, alive, why)
    shell.state.status = None if len(alive) > 1 else alive[0].status


def command(shell: Shell, found: Command) -> None:
    """One command of any kind."""
    shell.line = found.line
    shell.step()
    if shell.depth > DEEPEST:
        raise ConfigError(f"line {found.line} of the script is nested too deeply")
    shell.depth += 1
    try:
        if isinstance(found, Simple):
            simple(shell, found)
        else:
            _COMPOUND[type(found)](shell, found)
    finally:
        shell.depth -= 1


def _target(shell: Shell, redirect: Redirect) -> Redirect:
    """A redirection with its target expanded, which happens once; a here-document is expanded by the command that reads it."""
    if redirect.operator == "<<":
        return redirect
    return replace(redirect, target=replace(redirect.target, pieces=(Text(text_of(shell, redirect.target)),)))


# -- simple commands -------------------------------------------------------------------------------------------------
def simple(shell: Shell, found: Simple) -> None:
    """Expands the words, then assigns, or calls a function, a builtin or a program."""
    from .builtins import BUILTINS, declare
    from .programs import program

    words: list[str] = []
    declared: list[Assignment] = []
    substituted = shell.substituted
    for word in found.words:
        if isinstance(word, Assignment):
            declared.append(word)
        else:
            words += fields(shell, word)
    while words and vanishes(words[0]):
        words.pop(0)
    if found.redirects:
        found = replace(found, redirects=tuple(_target(shell, one) for one in found.redirects))
    if not words:
        for one in found.assignments:
            assign(shell, one)
        shell.state.status = 0 if shell.substituted == substituted else shell.last_status
        return
    name = words[0]
    if name in shell.state.functions and not in_doubt(name):
        with_environment(shell, found.assignments, lambda: call(shell, name, words[1:]))
    elif name in ("export", "declare", "local", "readonly", "typeset"):
        declare(shell, name, words[1:], declared)
    elif name in BUILTINS:
        with_environment(shell, found.assignments, lambda: BUILTINS[name](shell, words[1:], found))
    else:
        program(shell, words, environment(shell, found.assignments), found)


def assign(shell: Shell, found: Assignment) -> None:
    """`name=value` in any of its forms."""
    before = shell.state.variables.get(found.name)
    if found.elements is not None:
        keyed = isinstance(before, Array) and before.keyed
        shell.assign(found.name, elements(shell, found, keyed=keyed))
    elif found.index is not None:
        assert found.value is not None
        items = _items(before)
        keyed = isinstance(before, Array) and before.keyed
        key = key_of(shell, found.name, found.index, keyed=keyed)
        if isinstance(key, int) and key < 0:
            key += max((int(one) for one in items), default=-1) + 1
        value = text_of(shell, found.value)
        value = items.get(key, "") + value if found.appends else value
        shell.spend(len(items))
        shell.assign(found.name, Array({**items, key: value}, keyed))
    else:
        assert found.value is not None
        outer, shell.updated = shell.updated, found.name
        value = text_of(shell, found.value)
        shell.updated = outer
        before = shell.state.variables.get(found.name)  # the expansion may have set it
        if found.appends:
            first = before.items.get("0" if before.keyed else 0, "") if isinstance(before, Array) else before or ""
            value = first + value
        shell.assign(found.name, value)


def _items(value: Value | None) -> dict[int | str, str]:
    return dict(value.items) if isinstance(value, Array) else {} if value is None else {0: value}


def key_of(shell: Shell, name: str, index: Word, *, keyed: bool) -> int | str:
    """The place in an array that an index means."""
    if keyed:
        key: int | str = bare(text_of(shell, index))
    else:
        key = settled(shell, text_of(shell, index))
    if isinstance(key, str) and (not keyed or in_doubt(key)):
        raise shell.refuse(f"the index of {name} is not known")
    return key


def elements(shell: Shell, found: Assignment, *, keyed: bool) -> Array:
    """The array of `name=(...)`."""
    before = shell.state.variables.get(found.name)
    items: dict[int | str, str] = {}
    if found.appends and before is not None:
        items = _items(before)
    at = 1 + max((int(key) for key in items), default=-1) if not keyed else 0
    for one in found.elements or ():
        if isinstance(one, Assignment):
            assert one.index is not None and one.value is not None
            key = key_of(shell, found.name, one.index, keyed=keyed)
            value = text_of(shell, one.value)
            items[key] = items.get(key, "") + value if one.appends else value
            at = key + 1 if isinstance(key, int) else at
            continue
        if keyed:
            raise shell.refuse(f"an element of {found.name} without a [key] is not read")
        for value in fields(shell, one):
            items[at] = value
            at += 1
    if any(isinstance(key, int) and not 0 <= key < 100_000 for key in items):
        raise shell.refuse(f"an index of {found.name} is out of range")
    return Array(items, keyed)


def environment(shell: Shell, assignments: tuple[Assignment, ...]) -> dict[str, str]:
    """What `name=value` in front of a program gives it."""
    found: dict[str, str] = {}
    before = shell.state
    shell.state = before.clone()
    try:
        for one in assignments:
            assign(shell, one)
            value = shell.given.get(one.name, shell.state.variables.get(one.name, ""))
            found[one.name] = value if isinstance(value, str) else value.items.get(0, "")
    finally:
        shell.state = before
    return found


def with_environment(shell: Shell, assignments: tuple[Assignment, ...], body: Callable[[], None]) -> None:
    """Runs a function or a builtin with variables that hold for it alone."""
    if not assignments:
        body()
        return
    before = {one.name: (shell.state.variables.get(one.name), one.name in shell.state.exported) for one in assignments}
    for one in assignments:
        assign(shell, one)
        shell.state.exported.add(one.name)
    try:
        body()
    finally:
        for name, (value, was_exported) in before.items():
            restore(shell.state, name, value, exported=was_exported)


def restore(state: State, name: str, value: Value | None, *, exported: bool) -> None:
    """A variable as it was."""
    if value is None:
        state.variables.pop(name, None)
    else:
        state.variables[name] = value
    (state.exported.add if exported else state.exported.discard)(name)


def call(shell: Shell, name: str, arguments: list[str]) -> None:
    """A call of a function."""
    body = shell.state.functions[name]
    if body is None:
        raise shell.refuse(f"the function {name} depends on a condition that cannot be decided")
    if any(in_doubt(word) and not bare(word) for word in arguments) and any(
        shell.doubts[mark].choices for word in arguments for mark in _keys(word)
    ):
        raise shell.refuse(f"how many words {name} is called with depends on a condition that cannot be decided")
    outer = shell.state.positionals
    shell.state.positionals = tuple(word for word in arguments if not vanishes(word))
    shell.locals.append({})
    line = shell.line
    try:
        command(shell, body)
    except Return:
        pass
    finally:
        for local, (value, was_exported) in shell.locals.pop().items():
            restore(shell.state, local, value, exported=was_exported)
        shell.state.positionals = outer
        shell.line = line


def _keys(word: str) -> list[str]:
    from .doubts import marks

    return [key for kind, key in marks(word) if kind == "?" and key]


# -- compound commands -----------------------------------------------------------------------------------------------
def _group(shell: Shell, found: Group) -> None:
    fed = any(one.operator in ("<", "<<", "<<<") for one in found.redirects)
    was, shell.piped = shell.piped, shell.piped or fed
    try:
        if found.is_subshell:
            apart(shell, lambda: run(shell, found.body))
        else:
            run(shell, found.body)
    finally:
        shell.piped = was


def _if(shell: Shell, found: If) -> None:
    _branches(shell, found, 0)


def _branches(shell: Shell, found: If, at: int) -> None:
    """The branch whose condition holds, from the one at `at` on."""
    if at == len(found.branches):
        if found.otherwise is not None:
            run(shell, found.otherwise)
        else:
            shell.state.status = 0
        return
    condition, body = found.branches[at]
    tested(shell, condition)
    status, line = shell.state.status, condition.items[0].line if condition.items else shell.line
    if status is None:
        why = f"{shown(condition)} (line {line})"
        either(shell, [lambda: run(shell, body), lambda: _branches(shell, found, at + 1)], why)
    elif status == 0:
        run(shell, body)
    else:
        _branches(shell, found, at + 1)


def tested(shell: Shell, condition: List) -> None:
    """Runs commands whose failure ends nothing."""
    shell.tested += 1
    try:
        run(shell, condition)
    finally:
        shell.tested -= 1


def _case(shell: Shell, found: Case) -> None:
    subject = text_of(shell, found.word)
    shell.state.status = 0
    _clauses(shell, found, subject, 0, falls=False)


def _clauses(shell: Shell, found: Case, subject: str, at: int, *, falls: bool) -> None:
    """The clauses from `at` on, with the first that matches."""
    if at >= len(found.clauses):
        return
    clause = found.clauses[at]
    truth = True if falls else _fits(shell, clause, subject)
    if truth is None:
        why = f"which case {plain(readable(found.word.source), 40)} is (line {found.line})"
        taken = lambda: _clause(shell, found, subject, at)  # noqa: E731
        either(shell, [taken, lambda: _clauses(shell, found, subject, at + 1, falls=False)], why)
    elif truth:
        _clause(shell, found, subject, at)
    else:
        _clauses(shell, found, subject, at + 1, falls=False)


def _clause(shell: Shell, found: Case, subject: str, at: int) -> None:
    run(shell, found.clauses[at].body)
    ending = found.clauses[at].ending
    if ending != ";;":
        _clauses(shell, found, subject, at + 1, falls=ending == ";&")


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


def _for(shell: Shell, found: For) -> None:
    if found.words is None:
        values = list(shell.state.positionals)
    else:
        values = [value for word in found.words for value in fields(shell, word) if not vanishes(value)]
    if any(in_doubt(value) and not bare(value) for value in values):
        _uncertain_loop(shell, lambda: _round(shell, found, None), found)
        return
    shell.state.status = 0
    for value in values:
        if not _round(shell, found, value):
            return


def _round(shell: Shell, found: For, value: str | None) -> bool:
    """One pass of a for loop; whether another follows."""
    shell.step()
    shell.assign(
        found.name, shell.doubt(f"it changes in the loop at line {found.line}", found.name) if value is None else value
    )
    return _body(shell, found.body)


def _body(shell: Shell, body: List) -> bool:
    """The body of a loop once; whether the loop goes on."""
    try:
        run(shell, body)
    except Break as found:
        if found.levels > 1:
            raise Break(found.levels - 1, goes_on=found.goes_on) from None
        return found.goes_on
    return True


def _while(shell: Shell, found: While) -> None:
    _loop(shell, found, lambda: _holds(shell, found), found.body, lambda: None)


def _holds(shell: Shell, found: While) -> bool | None:
    tested(shell, found.condition)
    status = shell.state.status
    return None if status is None else (status == 0) != found.until


def _loop(
    shell: Shell, found: Command, holds: Callable[[], bool | None], body: List, after: Callable[[], None]
) -> None:
    """A loop while its condition holds; one whose state does not change any more never ends."""
    last: int | None = 0
    for _ in range(MOST_ROUNDS):
        before = shell.state.clone()
        shell.spend(len(before.variables))
        truth = holds()
        if truth is None:
            _uncertain_loop(shell, lambda: _once_more(shell, body, after, holds), found)
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
    raise ConfigError(f"line {found.line} of the script: the loop runs more than {MOST_ROUNDS} times")


def _once_more(shell: Shell, body: List, after: Callable[[], None], holds: Callable[[], bool | None]) -> None:
    """One pass of a loop, up to its next question whether to go on."""
    if _body(shell, body):
        after()
        holds()


def _uncertain_loop(shell: Shell, body: Callable[[], object], found: Command) -> None:
    """A loop that runs nobody knows how often: what its body changes is in doubt, inside and behind it."""
    why = f"the loop at line {found.line}"
    outer = shell.branch
    launched = len(shell.launches)
    before = shell.state
    for _ in range(20):
        del shell.launches[launched:]
        shell.state, shell.branch = before.clone(), (*outer, (why, 0))
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


def _arithmetic_for(shell: Shell, found: ArithmeticFor) -> None:
    def value_of(word: Word) -> bool | None:
        text = text_of(shell, word)
        if not text.strip():
            return True
        value = settled(shell, text, lenient=not assigns(bare(text)))
        return None if isinstance(value, str) else value != 0

    def after() -> None:
        value_of(found.next)

    value_of(found.first)
    _loop(shell, found, lambda: value_of(found.test), found.body, after)


def _function(shell: Shell, found: Function) -> None:
    shell.state.functions[found.name] = found.body
    shell.state.status = 0


def _arithmetic(shell: Shell, found: ArithmeticCommand) -> None:
    text = text_of(shell, found.expression)
    value = settled(shell, text, lenient=not assigns(bare(text)))
    shell.state.status = None if isinstance(value, str) else int(value == 0)


def _test(shell: Shell, found: Test) -> None:
    truth = decided(shell, found.condition)
    shell.state.status = None if truth is None else int(not truth)


_COMPOUND: dict[type[Command], Callable[..., None]] = {
    Group: _group, If: _if, Case: _case, For: _for, While: _while, ArithmeticFor: _arithmetic_for, Function: _function,
    ArithmeticCommand: _arithmetic, Test: _test,
}  # fmt: skip


# -- substitutions ---------------------------------------------------------------------------------------------------
def captured(shell: Shell, body: List) -> str | None:
    """What commands print, or None where it cannot be known; they change nothing outside."""
    before, outer, was, noted = shell.state, shell.output, shell.tested, shell.line
    shell.state, shell.output, shell.tested = before.clone(), [], 0
    shell.state.options = shell.state.options - {"errexit"}  # a substitution does not inherit set -e outside POSIX mode
    shell.spend(len(before.variables))
    shell.depth += 1
    shell.substituted += 1
    try:
        if shell.depth > DEEPEST:
            raise ConfigError(f"line {shell.line} of the script is nested too deeply")
        run(shell, body)
        found: str | None = "".join(shell.output)
    except Stop:
        found = "".join(shell.output or ())
    except (Return, Break):
        found = None
    except Unprintable:
        found, shell.state.status = None, None
    finally:
        shell.last_status = shell.state.status
        shell.state, shell.output, shell.tested, shell.line = before, outer, was, noted
        shell.depth -= 1
    return None if found is None else found.rstrip("\n")
