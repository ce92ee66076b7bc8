"""What a shell knows while a script is read: variables, functions, positional parameters, launches."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...wording import plain
from .beside import Beside
from .grammar import Command, List
from .launches import Branch, Launch, Round
from .values import Array, Held, Unknown, Value, altered, bare, outside_in, quoted, size, unknowns, unquoted

MOST_WORK = 20_000_000
"""Characters and commands that reading a script may touch on all ways through it; a real script needs some ten thousand."""
LARGEST_VALUE = 2**18
MOST_STEPS = 20_000
"""Commands on one way through a script."""
MOST_STEPS_OF_ALL = 100_000
"""Commands on all ways through it."""
MOST_DOUBTS = 2000
MOST_PATHS = (64, 4, 1)
"""Ways through the same commands that are followed; where there are more, what differs is not known. A script that takes too much work is
read again with fewer."""
MOST_TRIED = 15_000
MOST_WORK_OF_WAYS = 3_000_000
"""Commands on all ways together, with the ways begun, and work, until that is so."""
MOST_FORKS = 24
"""Forks on one way, those that leave a loop among them."""
FAILED = -1
"""The status of a command that failed, nobody knows how."""
GLOB = re.compile(r"[*?\[]")
"""What is no value that a variable can be compared with: a pattern."""
ALWAYS_SET = frozenset([
    "BASH", "BASHOPTS", "BASHPID", "BASH_SOURCE", "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS", "DIRSTACK", "EPOCHREALTIME",
    "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HOME", "HOSTNAME", "HOSTTYPE", "LINENO", "LOGNAME", "MACHTYPE", "OLDPWD", "OPTERR",
    "OPTIND", "OSTYPE", "PATH", "PIPESTATUS", "PPID", "PS4", "PWD", "RANDOM", "SECONDS", "SHELL", "SHELLOPTS", "SHLVL", "SRANDOM",
    "TERM", "UID", "USER", "_",
])  # fmt: skip
"""Variables set by bash itself, or on every machine."""


class Stop(Exception):  # noqa: N818
    """`exit`, or what ends a script."""


class Return(Exception):  # noqa: N818
    """`return`."""


class Crowded(Exception):  # noqa: N818
    """Too many ways, which nothing can stand for: some leave a loop or a function, others do not."""


class TooManyWays(Exception):  # noqa: N818
    """All ways through a script together take too much work."""


class Break(Exception):  # noqa: N818
    """`break` or `continue`, out of `levels` loops."""

    def __init__(self, levels: int, *, goes_on: bool) -> None:
        super().__init__()
        self.levels, self.goes_on = levels, goes_on


def decider(*values: Value) -> str:
    """The one variable that --set could give where values come from outside; nothing where there are several."""
    named = {one.option for value in values for one in outside_in(value)}
    return named.pop() if len(named) == 1 else ""


Kept = dict[str, tuple[Held | None, bool]]
"""Values of variables that others hide for a while, and whether they were exported."""


@dataclass
class Frame:
    """What a call of a function puts back when it ends: the variables that its local ones hide. `temporary` for variables that stand
    in front of the call (`A=1 f`)."""

    saved: Kept = field(default_factory=dict)
    temporary: bool = False


class Fork(NamedTuple):
    """A condition that cannot be decided: why not, and the variable that decides it, where there is one."""

    why: str
    cause: str = ""


class Taken(NamedTuple):
    """A way that was taken at a fork."""

    fork: Fork
    way: int


UNSEEN = frozenset({"status", "cause", "launches", "taken", "differed"})
"""Fields of a state that tell how it was come to."""


@dataclass
class State:
    """All that one command can change for the next, on one way through the script.

    `fed` is what the next command reads on standard input, where that is known; `folder` the working folder, where the script says it;
    `options_at` the word that `getopts` reads next, and how far it has come inside it. `output` is what was printed inside a
    substitution, `opaque` whether something else was printed there. `launches` are the trainings that were started, `taken` the ways
    that led here, `differed` the values of variables that differed between them behind the forks. `cause` is the variable that decides
    a `status` that is not known.
    """

    variables: dict[str, Held] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    readonly: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Command, str] | None] = field(default_factory=dict)
    exported_functions: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    positionals: tuple[Value, ...] = ()
    options: frozenset[str] = frozenset()
    files: dict[str, Value] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    fed: Value | None = None
    folder: str | None = None
    options_at: tuple[int, int, Value] = (1, 0, "")
    output: list[Value] | None = None
    opaque: bool = False
    status: int | None = 0
    cause: str = ""
    launches: list[Launch] = field(default_factory=list)
    taken: tuple[Taken, ...] = ()
    differed: dict[str, Held | None] = field(default_factory=dict)

    def clone(self) -> State:
        """A state of its own with the same contents."""
        found = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set | list):
                setattr(found, name, value.copy())
        found.frames = tuple(Frame(dict(frame.saved), frame.temporary) for frame in self.frames)
        return found

    def kept(self, *names: str) -> Kept:
        """Variables as they are, to be put back."""
        return {name: (self.variables.get(name), name in self.exported) for name in names}

    def restore(self, kept: Kept) -> None:
        """Put variables back as they were."""
        for name, (value, was_exported) in kept.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value
            (self.exported.add if was_exported else self.exported.discard)(name)

    def same(self, other: State) -> bool:
        """Whether nothing that a later command can see differs, the status aside."""
        return all(value == getattr(other, name) for name, value in vars(self).items() if name not in UNSEEN)


Known = dict[tuple[object, ...], list[Any]]
"""Where the ways through commands end, by the place of the commands."""


class Oracle:
    """The decisions of one way through commands: those that are given, then the first way at each fork; the other ways are kept in
    `others`. It depends on the decisions alone what becomes of a fork, so that a way can be run again."""

    WIDENED = -1
    """Not one of the ways, but what stands for all of them: there are too many."""
    CROWDED = -2
    """A decision that a loop runs nobody knows how often: there are too many ways through its rounds."""

    def __init__(self, given: tuple[int, ...], known: Known, most: int) -> None:
        """`known` is what has been found on other ways at the same places, `most` how many ways there may be."""
        self.given, self.known, self.most = given, known, most
        self.taken: list[int] = []
        self.others: list[tuple[int, ...]] = []
        self.width, self.met = 1, 0

    def place(self) -> tuple[object, ...]:
        """What tells the next commands with a fork from all others on all ways: the decisions before them, and their number."""
        self.met += 1
        return (*self.taken, f"place {self.met}")

    def decide(self, ways: int, going: int) -> int:
        """The way to take at the next fork; `going` of the ways do not leave a loop or a function there."""
        width = self.width * max(going, 1)
        if width > self.most or len(self.taken) >= MOST_FORKS:
            return self.WIDENED
        at, self.width = len(self.taken), width
        way = self.given[at] if at < len(self.given) else 0
        if at >= len(self.given):
            self.others += [(*self.taken, other) for other in range(ways - 1, 0, -1)]
        self.taken.append(way)
        return way

    def mark(self) -> tuple[int, ...]:
        """Where it is, to come back."""
        return len(self.taken), len(self.others), self.width, self.met

    def give_up(self, mark: tuple[int, ...]) -> None:
        """Comes back to a place, and decides there that the loop runs nobody knows how often."""
        taken, others, self.width, self.met = mark
        del self.taken[taken:], self.others[others:]
        self.taken.append(self.CROWDED)

    def gives_up(self) -> bool:
        """Whether that was decided here on another run."""
        at = len(self.taken)
        found = at < len(self.given) and self.given[at] == self.CROWDED
        if found:
            self.taken.append(self.CROWDED)
        return found


@dataclass
class Shell:
    """A reading: the state now, where in the script it is, and what has been found on all ways.

    `given` are variables that the caller sets; they win. `run` runs commands, for what stands below commands and holds some.
    """

    given: Mapping[str, str]
    run: Callable[[Shell, List], None]
    state: State = field(default_factory=State)
    most_paths: int = MOST_PATHS[0]
    oracle: Oracle = field(default_factory=lambda: Oracle((), {}, MOST_PATHS[0]))
    beside: Beside | None = None
    header: Mapping[str, Value] = field(default_factory=dict)
    # where it is
    branch: tuple[Branch, ...] = ()
    rounds: tuple[Round, ...] = ()
    places: tuple[str, ...] = ()
    outer: tuple[Value, ...] = ()
    loops: int = 0
    sourced: int = 0
    tested: bool = False
    depth: int = 0
    line: int = 0
    lenient: bool = False
    piped: bool = False
    in_subshell: bool = False
    updated: str = ""
    targets: dict[int, Value] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    origins: tuple[tuple[int, str], ...] = ()
    substituted: int = 0
    last_status: int | None = 0
    # what has been found
    doubts: dict[Unknown, Unknown] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    strangers: dict[str, None] = field(default_factory=dict)
    compared: dict[str, dict[str, None]] = field(default_factory=dict)
    weighed: dict[str, dict[str, None]] = field(default_factory=dict)
    defaulted: dict[str, dict[str, None]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    opened: int = 0
    said: Value = ""
    stopped: tuple[str, Value] | None = None
    takes_words: bool = False
    takes_numbers: bool = False
    work: int = 0
    steps: int = 0
    all_steps: int = 0
    tried: int = 0

    @contextmanager
    def during(self, **values: Any) -> Iterator[None]:
        """Other values of these fields for a while."""
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def spend(self, amount: int) -> None:
        """Count work. Raises ConfigError where a script needs more than any real one."""
        self.work += amount
        if self.work > MOST_WORK:
            raise self.wrong("reading it takes too much work; its text grows too large")

    def try_way(self) -> None:
        """Count a way that is begun. Raises Crowded where all ways together take too much work."""
        self.tried += 1
        takes_much = self.tried + self.all_steps > MOST_TRIED or self.work > MOST_WORK_OF_WAYS
        if takes_much and self.most_paths > MOST_PATHS[-1]:
            raise TooManyWays

    def step(self) -> None:
        """Count one command."""
        self.steps += 1
        self.all_steps += 1
        if self.steps > MOST_STEPS:
            raise self.wrong(f"more than {MOST_STEPS} commands would run")
        if self.all_steps > MOST_STEPS_OF_ALL:
            raise self.wrong(f"more than {MOST_STEPS_OF_ALL} commands stand on the ways through it")
        self.spend(20)

    def note(self, text: str) -> None:
        """Remember something that is said with the result."""
        if len(self.notes) < 40:
            self.notes[f"{self.where}: {text}"] = None

    @property
    def where(self) -> str:
        """The line that is read, with its file where that is another one."""
        if self.beside is not None and self.places and self.places[0] != self.beside.script:
            return f"line {self.line} of {plain(self.beside.shown(self.places[0]), 80)}"
        return f"line {self.line}"

    def wrong(self, what: str) -> ConfigError:
        """The error about the script at this line."""
        return ConfigError(f"line {self.line} of the script: {what}")

    def refuse(self, what: str) -> ConfigError:
        """The error about something that the script does here, on this way."""
        taken = self.state.taken
        so = "; that is so on one of the ways at a condition that cannot be decided: "
        return self.wrong(what + (so + taken[-1].fork.why if taken else ""))

    def unread(self, source: str) -> ConfigError:
        """The error about a piece of the script that is not read."""
        return self.refuse(f"{plain(source, 60)} is not read")

    def doubt(
        self, why: str, name: str = "", choices: tuple[tuple[Value, ...], ...] = (), cause: str = ""
    ) -> tuple[Unknown]:
        """A value that comes from outside."""
        found = Unknown("outside", name, why, choices, cause)
        if found not in self.doubts:
            if len(self.doubts) >= MOST_DOUBTS:
                raise self.refuse(f"more than {MOST_DOUBTS:,} values in doubt")
            self.doubts[found] = found
        return (self.doubts[found],)

    def undecided(self, *values: Value) -> None:
        """The status of the last command is not known; `values` are what it depends on."""
        self.state.status, self.state.cause = None, decider(*values)

    def compare(self, value: Value, *others: Value) -> None:
        """Remembers the values that a variable is compared with, where nothing sets it (also a word of the caller), or where its value
        comes from outside."""
        if isinstance(value, str) or bare(value) or len(value) != 1:
            return
        (one,) = unknowns(value)
        known = (self.weighed if not one.is_unset else self.defaulted if one.why else self.compared).setdefault(
            one.option, {}
        )
        known.update((other, None) for other in others if isinstance(other, str) and other and not GLOB.search(other))

    # -- variables -------------------------------------------------------------------------------------------------
    def variable(self, name: str) -> Held | None:
        """The value of a variable, or None where nothing sets it."""
        found = self.state.variables.get(name)
        if found is not None:
            return found
        if name in self.given:
            return self.given[name]
        if name == "BASH_SOURCE" and self.places:
            return Array(dict(enumerate(self.places)))
        if name == "PWD" and self.state.folder:
            return self.state.folder
        if name == "OPTIND":
            return "1"
        if name in ALWAYS_SET:
            return self.doubt(f"${name} is known on the machine only", name)
        return None

    def assign(self, name: str, value: Held) -> None:
        """Set a variable, unless the caller's value wins; a text is the first element of an array that stands already."""
        if name in self.given:
            return
        if name in self.state.integers and not isinstance(value, Array) and not _is_number(value):
            raise self.refuse(f"{name} is an integer (declare -i), and what it is set to here is none")
        if name in self.state.readonly:
            raise self.refuse(f"{name} is readonly and set again, at which bash stops")
        length = sum(map(size, value.items.values())) if isinstance(value, Array) else size(value)
        if length > LARGEST_VALUE:
            raise self.refuse(f"the value of {name} grows beyond {LARGEST_VALUE} characters")
        self.spend(length + 1)
        before = self.state.variables.get(name)
        if isinstance(value, Array):
            self.state.variables[name] = value
        elif isinstance(before, Array):
            self.spend(len(before.items))
            self.counted(name, before)
            first = quoted(self._attributed(name, value))  # one element, whatever is in it
            self.state.variables[name] = Array({**before.items, ("0" if before.keyed else 0): first}, before.keyed)
        else:
            self.state.variables[name] = self._attributed(name, unquoted(value))
        if "allexport" in self.state.options:
            self.state.exported.add(name)

    def counted(self, name: str, held: Held | None) -> None:
        """Raises ConfigError where the elements of an array are not known, so that none of them can be set."""
        if isinstance(held, Array) and held.uncertain:
            raise self.refuse(f"an element of {name} is set, but how many it has is not known")

    def _attributed(self, name: str, value: Value) -> Value:
        """The value; where all of it is one part that comes from outside, that part is called by the variable that --set could give."""
        is_whole = len(value) == 1
        return altered(
            value, lambda piece: dataclasses.replace(piece, name=name) if is_whole and not piece.name else piece
        )

    def forget(self, name: str) -> None:
        """Unset a variable."""
        if name in self.state.readonly:
            raise self.refuse(f"{name} is readonly and unset, at which bash stops")
        if name in self.given:
            return
        frames = self.state.frames
        hidden = next((frame for frame in reversed(frames[:-1]) if name in frame.saved), None)
        if hidden is not None and name not in frames[-1].saved:  # a caller's variable: what it hides shows again
            self.state.restore({name: hidden.saved.pop(name)})
            return
        self.state.variables.pop(name, None)
        self.state.exported.discard(name)
        self.state.integers.discard(name)

    def separators(self, what: str) -> str:
        """The characters of IFS. Raises ConfigError where they are not known."""
        value = self.state.variables.get("IFS", " \t\n")  # a script may unset it
        if not isinstance(value, str):
            raise self.refuse(f"IFS is not known, so words cannot be {what}")
        return value


def _is_number(value: Value) -> bool:
    """Whether a value is a whole number, or not known at all."""
    if isinstance(value, str):
        return re.fullmatch(r"-?(0|[1-9][0-9]*)", value) is not None
    return not bare(value)
