"""Commands of a shell script in the order in which bash runs them, without running any program.

Groups, `if`, `case`, loops, definitions, `(( ))` and `[[ ]]` among them.

Source: the Bash Reference Manual 5.2, 3.2 and 3.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from ...errors import ConfigError
from ...wording import plain
from .arithmetic import truth
from .assign import assign, declare
from .builtins import BUILTINS, builtin
from .conditions import decide, fits
from .expand import fields, text_of
from .grammar import (
    DECLARING,
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
    Simple,
    Test,
    While,
    Word,
)
from .input_output import document, redirected, targets
from .launches import Branch, Round
from .paths import DEEPEST, End, Way, apart, either, ends, settle, through, widened
from .programs import program
from .state import FAILED, Break, Crowded, Fork, Frame, Return, Shell, Stop, decider
from .values import Array, Value, joined, loose, present, readable, vanishes

MOST_ROUNDS = 2000
MOST_WIDENINGS = 20


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
        taken = partial(
            _with_status, shell, 0 if follows else FAILED, partial(_pipeline, shell, other, tested=at < last)
        )
        left = partial(_with_status, shell, FAILED if follows else 0)
        either(shell, [(None, taken)], left, [Fork(why, shell.state.cause)], follows=follows)


def _with_status(shell: Shell, status: int, body: Callable[[], None] = lambda: None) -> None:
    """Commands behind one with this status."""
    shell.state.status = status
    body()


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
    if node.redirects:  # those of a program are expanded in its own process
        with shell.during(state=shell.state if is_known else shell.state.clone()):
            targets(shell, node.redirects)
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


# -- compound commands -----------------------------------------------------------------------------------------------------
def _group(shell: Shell, node: Group) -> None:
    fed, before = any(one.feeds for one in node.redirects), shell.state.fed
    targets(shell, node.redirects)
    if fed:
        shell.state.fed = document(shell, node)
    try:
        with shell.during(piped=shell.piped or fed), redirected(shell, node.redirects):
            if node.is_subshell:
                apart(shell, lambda: run(shell, node.body))
            else:
                run(shell, node.body)
    finally:
        if fed:
            shell.state.fed = before


# -- if and case -----------------------------------------------------------------------------------------------------------
def _if(shell: Shell, node: If) -> None:
    ways: list[Way] = []
    whys: list[Fork] = []
    chosen = node.otherwise
    for condition, body in node.branches:
        with shell.during(tested=True):  # its failure ends nothing
            run(shell, condition)
        if shell.state.status is None:
            line = condition.items[0].line if condition.items else shell.line
            whys.append(Fork(f"{shown(condition)} (line {line})", shell.state.cause))
            ways.append((shell.state.clone(), partial(_with_status, shell, 0, partial(run, shell, body))))
            shell.state.status = FAILED
        elif shell.state.status == 0:
            chosen = body
            break
    otherwise = partial(_with_status, shell, 0) if chosen is None else partial(run, shell, chosen)
    either(shell, ways, otherwise, whys)


def shown(node: List | Command) -> str:
    """A command for a message."""
    return f"`{plain(node.source, 60)}`"


def _case(shell: Shell, node: Case) -> None:
    subject = text_of(shell, node.word)
    shell.state.status = 0
    _clauses(shell, node, subject, 0)


def _clauses(shell: Shell, node: Case, subject: Value, start: int) -> None:
    """The first clause from `start` on that matches; each of those that may."""
    ways: list[Way] = []
    forks: list[Fork] = []
    why = f"which case {plain(node.word.source, 40)} is (line {node.line})"
    last = len(node.clauses)
    for at in range(start, last):
        on: list[Value] = []
        matches = _matches(shell, node.clauses[at], subject, on)
        if matches is None:
            forks.append(Fork(why, decider(*on)))
            ways.append((shell.state.clone(), partial(_clause, shell, node, subject, at)))
        elif matches:
            last = at
            break
    either(shell, ways, partial(_clause, shell, node, subject, last), forks)


def _clause(shell: Shell, node: Case, subject: Value, at: int) -> None:
    """The commands of a clause and of those that it goes on to; nothing behind the last."""
    while at < len(node.clauses):
        clause = node.clauses[at]
        run(shell, clause.body)
        at += 1
        if clause.ending == ";;&":
            _clauses(shell, node, subject, at)
        if clause.ending != ";&":
            return


def _matches(shell: Shell, clause: Clause, subject: Value, on: list[Value]) -> bool | None:
    """Whether one of the patterns matches; `on` takes what that depends on."""
    result: bool | None = False
    for word in clause.patterns:
        if word.literal() == "*":
            return True
        found = fits(shell, subject, word, on)
        if found:
            return None if result is None else True
        result = result if found is False else None
    return result


# -- loops -----------------------------------------------------------------------------------------------------------------
def _for(shell: Shell, node: For) -> None:
    """`for name in words`; a value of the caller for its variable picks one round."""
    if node.words is None:
        shell.takes_words = True
        values = list(shell.state.positionals)
    else:
        values = present(value for word in node.words for value in fields(shell, word))
    if any(map(loose, values)):
        _uncertain(shell, lambda: _round(shell, node, None), node)
        return
    if values and node.name in shell.given:
        values = [shell.given[node.name]]
    shell.state.status = 0

    def rounds() -> None:
        for value in values:
            if not _followed(shell, partial(_round, shell, node, value), partial(_round, shell, node, None), node):
                return

    through(shell, rounds)


def _followed(shell: Shell, body: Callable[[], bool], uncertain: Callable[[], object], node: Command) -> bool:
    """One pass of a loop, or all that are left where there are too many ways through them; whether another follows."""
    if not shell.oracle.gives_up():
        mark, before = shell.oracle.mark(), shell.state.clone()
        try:
            return body()
        except Crowded:
            shell.oracle.give_up(mark)
            shell.state = before
    _uncertain(shell, uncertain, node)
    return False


def _round(shell: Shell, node: For, value: Value | None) -> bool:
    """One pass of a for loop; whether another follows."""
    shell.step()
    if value is None:
        value = shell.doubt(f"it changes in the loop at line {node.line}", node.name)
    shell.assign(node.name, value)
    return _counted(shell, Round(node.line, node.name, readable(value)), node.body)


def _counted(shell: Shell, one: Round, body: List) -> bool:
    """The body of a loop in one of its rounds; whether the loop goes on."""
    with shell.during(rounds=(*shell.rounds, one)):
        return _inside(shell, body)


def _inside(shell: Shell, commands: List) -> bool:
    """Runs what stands in a loop; whether the loop goes on."""

    def body() -> None:
        with shell.during(loops=shell.loops + 1):
            run(shell, commands)

    def behind(end: End) -> None:
        if isinstance(end.control, Break):
            levels, goes_on = end.control.levels - 1, end.control.goes_on
            end.control = None if goes_on and not levels else Break(levels, goes_on=goes_on)

    try:
        through(shell, body, behind)
    except Break as one:
        if one.levels:
            raise
        return False
    return True


def _while(shell: Shell, node: While) -> None:
    """`while` and `until`."""

    def holds() -> bool | None:
        with shell.during(tested=True):
            if not _inside(shell, node.condition):
                return False
        status = shell.state.status
        return None if status is None else (status == 0) != node.until

    _loop(shell, node, "", holds, node.body, lambda: None)


Holds = Callable[[], bool | None]


def _loop(shell: Shell, node: Command, name: str, holds: Holds, body: List, after: Callable[[], None]) -> None:
    """A loop while its condition holds; one whose state does not change any more never ends. `name` is its variable, `after` what
    is done behind each pass."""

    def repeat() -> None:
        """A pass that is one of many."""
        if _counted(shell, Round(node.line, name, "?"), body):
            after()
            holds()

    def follow(count: int) -> bool:
        """One pass; whether another follows."""
        before, last = shell.state.clone(), shell.state.status if count else 0
        shell.spend(len(before.variables))
        goes_on = holds()
        if goes_on is None:
            _uncertain(shell, repeat, node)
            return False
        if not goes_on:
            shell.state.status = last
            return False
        value = shell.state.variables.get(name) if name else str(count + 1)
        if not _counted(shell, Round(node.line, name, value if isinstance(value, str) else ""), body):
            return False
        status = shell.state.status
        after()
        shell.state.status = status
        if shell.state.same(before):
            if not shell.oracle.taken:
                shell.note("the loop never ends; what follows it is not read")
            raise Stop
        return True

    def rounds() -> None:
        for count in range(MOST_ROUNDS):
            if not _followed(shell, partial(follow, count), repeat, node):
                return
        raise ConfigError(f"line {node.line} of the script: the loop runs more than {MOST_ROUNDS} times")

    through(shell, rounds)


def _uncertain(shell: Shell, body: Callable[[], object], node: Command) -> None:
    """A loop that runs nobody knows how often: what its body changes is not known, inside and behind it."""
    fork = Fork(f"the loop at line {node.line}")
    begin = before = shell.state
    for _ in range(MOST_WIDENINGS):
        with shell.during(state=before, branch=(*shell.branch, Branch(fork.why, 0))):
            found = ends(shell, lambda: (body(), None)[1])
        leaving = [end for end in found if isinstance(end.control, Return | Break)]
        states = [before, *(end.state for end in found if end.control is None)]
        wide = widened(shell, states, fork, choices=False)
        if wide.same(before):
            wide.status, wide.cause = None, ""
            wide.taken = begin.taken
            settle(shell, [End(wide), *leaving], fork)
            return
        wide.launches = list(begin.launches)
        before = wide
    raise shell.refuse("the loop cannot be followed")


def _arithmetic_for(shell: Shell, node: ArithmeticFor) -> None:
    """`for ((first; test; next))`."""

    def holds(word: Word) -> bool | None:
        text = text_of(shell, word)
        return True if isinstance(text, str) and not text.strip() else truth(shell, text)

    counter = re.match(r"\s*([A-Za-z_]\w*)\s*=(?!=)", node.first.source)
    name = counter.group(1) if counter else ""
    holds(node.first)
    if name in shell.given:  # the round of the value that the caller gives to the loop's variable
        _counted(shell, Round(node.line, name, shell.given[name]), node.body)
        return
    _loop(shell, node, name, lambda: holds(node.test), node.body, lambda: (holds(node.next), None)[1])


# -- others ----------------------------------------------------------------------------------------------------------------
def _function(shell: Shell, node: Function) -> None:
    shell.state.functions[node.name] = (node.body, shell.places[0] if shell.places else "")
    shell.state.status = 0


COMPOUND: dict[type[Command], Callable[..., object]] = {
    Group: _group, If: _if, Case: _case, For: _for, While: _while, ArithmeticFor: _arithmetic_for, Function: _function,
    ArithmeticCommand: lambda shell, node: truth(shell, text_of(shell, node.expression)),
    Test: lambda shell, node: decide(shell, node.condition),
}  # fmt: skip
"""What each kind of command does."""
