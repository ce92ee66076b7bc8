"""The ways through a script where a condition cannot be decided.

Commands are run from the same state once for each way through them (`ends`): an `Oracle` holds the decisions of a way, and each fork
that is met for the first time gives the other ways. Behind a construct with such a condition the states of its ways are compared:
where they are the same one of them goes on, and otherwise each goes on to the end of the script (`settle`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import ConfigError
from ...wording import plain
from .grammar import List
from .launches import Branch
from .merging import together
from .state import Break, Crowded, Fork, Known, Oracle, Return, Shell, State, Stop, Taken
from .values import Array, Held, Value, bare, joined, outside_in, pieces, words_of

MOST_WAYS = 256
"""Ways through the same commands, those that leave a loop or a function early among them."""
MOST_CHOICES = 16
DEEPEST = 80
DECISIVE = (
    ("which options are set", "options"),
    ("which variables are local", "frames"),
    ("which variables are integers", "integers"),
    ("the positional parameters", "positionals"),
)
"""What has no value that stands for all ways."""


@dataclass
class End:
    """Where a way ends: its state, and the word that leaves the commands early. `way` is the branch that it went through."""

    state: State
    control: Stop | Return | Break | None = None
    way: int = 0

    def returned(self) -> None:
        """Goes on behind a function, or a file that was sourced."""
        self.control = None if isinstance(self.control, Return) else self.control

    def meets(self, other: End) -> bool:
        """Whether both ways go on alike; launches of the same branch are told apart."""
        return (
            _kind(self.control) == _kind(other.control)
            and self.state.same(other.state)
            and (self.way != other.way or self.state.launches == other.state.launches)
        )


def _kind(control: Stop | Return | Break | None) -> tuple[object, ...]:
    return (type(control), control.levels, control.goes_on) if isinstance(control, Break) else (type(control),)


def ends(shell: Shell, body: Callable[[], None], *, in_subshell: bool | None = None, way: int = 0) -> list[End]:
    """Where each way through `body` ends, from the state now, which stays as it is. `in_subshell`: whether `exit` ends no more than
    this."""
    before, steps = shell.state, shell.steps
    found: list[End] = []
    waiting: list[tuple[int, ...]] = [()]
    known: Known = {}
    in_subshell = shell.in_subshell if in_subshell is None else in_subshell
    with shell.during(state=before, oracle=shell.oracle, in_subshell=in_subshell, depth=shell.depth + 1):
        if shell.depth > DEEPEST:
            raise ConfigError(f"line {shell.line} of the script is nested too deeply")
        while waiting:
            shell.spend(len(before.variables))
            shell.try_way()
            shell.state, shell.steps = before.clone(), steps
            shell.oracle = Oracle(waiting.pop(), known, shell.most_paths)
            control: Stop | Return | Break | None = None
            try:
                body()
            except (Stop, Return, Break) as one:
                control = one
            found.append(End(shell.state, control, way))
            waiting += shell.oracle.others
            if len(found) + len(waiting) > MOST_WAYS:
                raise Crowded
    return found


def through(shell: Shell, body: Callable[[], None], behind: Callable[[End], None] = lambda end: None) -> None:
    """Runs commands that a word may leave early, and goes on behind them; `behind` changes what a way leaves."""
    found = known_ends(shell, lambda: ends(shell, body))
    for end in found:
        behind(end)
    settle(shell, found, last_fork(found))


def known_ends(shell: Shell, find: Callable[[], list[End]]) -> list[End]:
    """Where ways end, as it was found on another way that came to the same place alike."""
    key = shell.oracle.place()
    found = shell.oracle.known.get(key)
    if found is None:
        found = find()
        if len(found) == 1:
            return found
        shell.oracle.known[key] = found
    return [End(end.state.clone(), end.control, end.way) for end in found]


Way = tuple[State | None, Callable[[], None]]
"""A branch: the state that it begins with, where that is another than the one now, and its commands."""


def either(
    shell: Shell, ways: Sequence[Way], otherwise: Callable[[], None], forks: Sequence[Fork], *, follows: bool = False
) -> None:
    """Runs each of the branches of a condition that cannot be decided, and what is left where none of them is taken; goes on with
    whichever is true. `forks` say why, one for each branch."""
    if not ways:
        otherwise()
        return
    causes = {fork.cause for fork in forks}
    fork = Fork(forks[0].why, causes.pop() if len(causes) == 1 else "")
    settle(shell, known_ends(shell, lambda: _branches(shell, [*ways, (None, otherwise)], fork, follows=follows)), fork)


def _branches(shell: Shell, ways: Sequence[Way], fork: Fork, *, follows: bool) -> list[End]:
    """Where the ways through each branch end."""
    found: list[End] = []
    for at, (start, body) in enumerate(ways):

        def branch(at: int = at, start: State | None = start, body: Callable[[], None] = body) -> None:
            shell.state = shell.state if start is None else start.clone()
            shell.state.taken += (Taken(fork, at),)
            body()

        with shell.during(branch=(*shell.branch, Branch(fork.why, at, follows))):
            found += ends(shell, branch, way=at)
    return found


def settle(shell: Shell, found: list[End], fork: Fork) -> None:
    """Goes on behind commands from where their ways end: from one state where all are the same, otherwise on each way by itself. A way
    that ends the script is left out where another goes on. Raises what the way leaves with."""
    before = shell.state
    groups: list[End] = []
    over: list[End] = []
    for end in found:
        if isinstance(end.control, Stop) and not shell.in_subshell:
            over.append(end)
            continue
        shell.spend(len(end.state.variables) * (len(groups) + 1))
        group = next((one for one in groups if one.meets(end)), None)
        if group is None:
            groups.append(end)
        else:
            _fold(group, end, fork)
    if not groups:
        shell.state = found[0].state
        _start(shell.state, before, over[1:])
        raise Stop
    going = sum(group.control is None for group in groups)
    choice = shell.oracle.decide(len(groups), going) if len(groups) > 1 else 0
    if choice == Oracle.WIDENED:
        chosen = _widest(shell, groups, fork)
    else:
        chosen = groups[choice]
        for name, values in _differing([group.state for group in groups]).items():
            chosen.state.differed[name] = values[choice]
    if len(groups) == 1:
        chosen.state.taken = before.taken
    shell.state = chosen.state
    _start(shell.state, before, over)
    if chosen.control is not None:
        raise chosen.control


def _fold(group: End, end: End, fork: Fork) -> None:
    """Two ways that go on alike are one, whatever they started."""
    if group.state.status != end.state.status:
        group.state.status, group.state.cause = None, fork.cause
    group.state.launches += [one for one in end.state.launches if one not in group.state.launches]


def _start(state: State, before: State, ended: list[End]) -> None:
    """Adds what was started on ways that end the script."""
    known = len(before.launches)
    others = [one for end in ended for one in end.state.launches[known:] if one not in state.launches]
    if others:
        state.launches[known:known] = others


def _differing(states: Sequence[State]) -> dict[str, list[Held | None]]:
    """The variables that differ between states, with their values."""
    first = states[0].variables
    names: dict[str, None] = {}
    for state in states[1:]:
        names.update((name, None) for name in first if name not in state.variables)
        names.update((name, None) for name, value in state.variables.items() if first.get(name) != value)
    return {name: [state.variables.get(name) for state in states] for name in names}


# -- one state for several -----------------------------------------------------------------------------------------------
def _widest(shell: Shell, groups: list[End], fork: Fork) -> End:
    """One end for all that go on, where there are too many ways to follow each; those that leave early stay ways of their own."""
    for name, values in _differing([group.state for group in groups]).items():
        for group, value in zip(groups, values, strict=True):
            group.state.differed[name] = value
    kinds: dict[tuple[object, ...], list[End]] = {}
    for group in groups:
        kinds.setdefault(_kind(group.control), []).append(group)
    wide = [End(widened(shell, [one.state for one in ones], fork), ones[0].control) for ones in kinds.values()]
    choice = shell.oracle.decide(len(wide), 1) if len(wide) > 1 else 0
    if choice == Oracle.WIDENED:
        raise Crowded
    return wide[choice]


def widened(shell: Shell, states: list[State], fork: Fork, *, choices: bool = True) -> State:
    """One state that stands for all; a variable that differs between them is not known. Raises ConfigError for what has no such
    value."""
    first = states[0].clone()
    for what, field in DECISIVE:
        if any(getattr(state, field) != getattr(first, field) for state in states[1:]):
            raise shell.refuse(f"{what} depends on {fork.why}, which cannot be decided")
    why = f"it depends on {fork.why}"
    first.launches = together(shell, states)
    for name, values in _differing(states).items():
        first.variables[name] = _any_of(shell, name, values, why, fork.cause, choices=choices)
    for state in states[1:]:
        for path in first.files.keys() | state.files.keys():
            if first.files.get(path) != state.files.get(path):
                first.files[path] = shell.doubt(f"the file depends on {fork.why}")
        for name in first.functions.keys() | state.functions.keys():
            if first.functions.get(name) != state.functions.get(name):
                first.functions[name] = None
        for name in first.exported ^ state.exported:
            if first.variables.get(name) == state.variables.get(name) is not None:
                first.variables[name] = shell.doubt(f"whether {name} is exported is not known", name)
        first.exported |= state.exported
        first.readonly |= state.readonly
        first.exported_functions |= state.exported_functions
        first.opaque |= state.opaque or first.output != state.output
        first.fed = first.fed if first.fed == state.fed else None
        first.folder = first.folder if first.folder == state.folder else ""
        if first.status != state.status:
            first.status, first.cause = None, fork.cause
    return first


def _any_of(shell: Shell, name: str, values: list[Held | None], why: str, cause: str, *, choices: bool) -> Held:
    """A value that may be any of several; what all of them begin and end with alike is known."""
    is_array = any(isinstance(value, Array) for value in values)
    if not choices or any(isinstance(value, Array) and value.keyed for value in values):
        found = shell.doubt(why, name, (), cause)
        return Array({0: found}) if is_array else found
    lists = [_parts(value, is_array=is_array) for value in values]
    start = _alike(lists)
    rests = [one[start:] for one in lists]
    end = _alike([one[::-1] for one in rests])
    middles = [one[: len(one) - end] for one in rests]
    shell.spend(20 * sum(map(len, lists)) + 1)
    words = _choices([tuple(part for part in one if not _is_blank(part)) for one in middles])
    found = shell.doubt(why, "" if start or end else name, words, cause)
    if is_array:
        return Array(dict(enumerate([*lists[0][:start], found, *lists[0][len(lists[0]) - end :]])))
    before = " " if any(one and _is_blank(one[0]) for one in middles) else ""
    after = " " if any(one and _is_blank(one[-1]) for one in middles) else ""
    return joined([*lists[0][:start], before, found, after, *lists[0][len(lists[0]) - end :]])


def _alike(lists: list[list[Value]]) -> int:
    """How many items all lists begin with."""
    return next((at for at, ones in enumerate(zip(*lists, strict=False)) if len(set(ones)) > 1), min(map(len, lists)))


def _choices(several: list[tuple[Value, ...]]) -> tuple[tuple[Value, ...], ...]:
    """The words that stand at one place, those of a choice inside a choice among them; none where that are too many."""
    found: dict[tuple[Value, ...], None] = {}
    for words in several:
        inner = outside_in(words[0]) if len(words) == 1 and not bare(words[0]) else []
        found.update(dict.fromkeys(inner[0].choices if len(inner) == 1 and inner[0].choices else (words,)))
    is_deep = any(one.choices for words in found for word in words for one in outside_in(word))
    return () if is_deep or len(found) > MOST_CHOICES else tuple(found)


def _parts(value: Held | None, *, is_array: bool) -> list[Value]:
    """The elements of an array, or the words of a text and the blanks between them."""
    if isinstance(value, Array):
        return value.values()
    if value is None or is_array:
        return [] if value is None else [value]
    found: list[Value] = []
    for piece in pieces(value):
        found += re.findall(r"\s+|\S+", piece) if isinstance(piece, str) else [(piece,)]
    return found


def _is_blank(part: Value) -> bool:
    return isinstance(part, str) and part.isspace()


# -- shells of their own ---------------------------------------------------------------------------------------------------
def apart(shell: Shell, body: Callable[[], None], *, piped: bool = False, fed: Value | None = None) -> None:
    """Runs in a subshell: what it changes is lost, what it starts and prints stays."""

    def inside() -> None:
        if piped:
            shell.state.fed = fed
        body()

    with shell.during(piped=piped or shell.piped):
        found = ends(shell, inside, in_subshell=True)
    outside(shell, found)


def outside(shell: Shell, found: list[End]) -> None:
    """Goes on behind a shell of its own, which changes nothing of this one."""
    before, behind = shell.state, list[End]()
    for end in found:
        inner = end.state
        state = before.clone() if len(found) > 1 else before
        state.status, state.cause, state.launches, state.taken = inner.status, inner.cause, inner.launches, inner.taken
        state.output, state.opaque, state.differed = inner.output, inner.opaque, inner.differed
        behind.append(End(state))
    if len(behind) > 1:
        settle(shell, behind, last_fork(found))


def last_fork(found: list[End]) -> Fork:
    """The fork that tells ways apart."""
    return next((end.state.taken[-1].fork for end in reversed(found) if end.state.taken), Fork("a condition"))


def captured(shell: Shell, body: List, source: str) -> Value:
    """What the commands of a substitution print, where it can be known; they change nothing outside."""
    before = shell.state
    shell.substituted += 1

    def inside() -> None:
        state = shell.state
        state.output, state.opaque = [], False
        state.options = state.options - {"errexit"}  # a substitution does not inherit set -e outside POSIX mode
        shell.run(shell, body)

    with shell.during(tested=False, line=shell.line):
        found = ends(shell, inside, in_subshell=True)
    texts = [_stripped(joined(end.state.output or ())) for end in found if not end.state.opaque]
    fork, shown = last_fork(found), plain(source, 80)
    for end in found:
        end.state.output, end.state.opaque = before.output, before.opaque
    outside(shell, found)
    shell.last_status = shell.state.status
    if len(texts) < len(found):
        return shell.doubt(f"{shown} is a command, which is not executed")
    if all(text == texts[0] for text in texts):
        return texts[0]
    return shell.doubt(f"{shown} depends on {fork.why}", "", tuple(dict.fromkeys(map(words_of, texts))))


def _stripped(value: Value) -> Value:
    """A text without the line ends at its end."""
    if isinstance(value, str):
        return value.rstrip("\n")
    last = value[-1]
    if not isinstance(last, str):
        return value
    return _stripped(joined((value[:-1], last.rstrip("\n")))) if last.endswith("\n") else value
