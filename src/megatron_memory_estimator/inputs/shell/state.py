"""What a shell knows while a script is read: variables, functions, positional parameters, doubts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...errors import ConfigError
from ...wording import plain
from .beside import Beside
from .control import Break
from .doubts import Doubt, bare, doubtful, in_doubt, loose, marks, quoted, unquoted, unset_in, vanishes
from .grammar import Command
from .launches import Branch, Launch, Round

MOST_WORK = 20_000_000
"""Characters and commands that reading a script may touch; a real script needs some ten thousand."""
LARGEST_VALUE = 2**18
MOST_STEPS = 20_000
GLOB = re.compile(r"[\0*?\[]")
"""What is no value that a variable can be compared with: a mark, or a pattern."""


@dataclass(frozen=True)
class Array:
    """An array: values by number, or by word where it is `keyed` (`declare -A`)."""

    items: Mapping[int | str, str]
    keyed: bool = False

    def values(self) -> list[str]:
        """The elements in order."""
        if self.keyed:
            return list(self.items.values())
        return [self.items[key] for key in sorted(self.items, key=lambda one: int(one))]


Value = str | Array


@dataclass
class Frame:
    """What a call of a function puts back when it ends: the values that its local variables hide, and whether they were
    exported. `temporary` for variables that stand in front of the call (`A=1 f`)."""

    saved: dict[str, tuple[Value | None, bool]] = field(default_factory=dict)
    temporary: bool = False


@dataclass
class State:
    """All that one command can change for the next."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    readonly: set[str] = field(default_factory=set)
    functions: dict[str, Command | None] = field(default_factory=dict)
    integers: set[str] = field(default_factory=set)
    positionals: tuple[str, ...] = ()
    status: int | None = 0
    options: frozenset[str] = frozenset()
    files: dict[str, str] = field(default_factory=dict)
    frames: tuple[Frame, ...] = ()
    fed: str | None = None
    """What the next command reads on standard input, where that is known."""
    folder: str | None = None
    """The working folder, where the script says it."""
    options_at: tuple[int, int, str] = (1, 0, "")
    """The word that `getopts` reads next, and how far it has come inside it."""

    def clone(self) -> State:
        """A state of its own with the same contents."""
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            unsure=set(self.unsure),
            readonly=set(self.readonly),
            integers=set(self.integers),
            functions=dict(self.functions),
            files=dict(self.files),
            frames=tuple(Frame(dict(frame.saved), frame.temporary) for frame in self.frames),
        )

    def same(self, other: State) -> bool:
        """Whether nothing that a later command can see differs, the status aside."""
        return replace(self, status=0) == replace(other, status=0)


@dataclass
class Shell:
    """A reading: the state now, and what has been found. `given` are variables that the caller sets; they win."""

    given: Mapping[str, str]
    state: State = field(default_factory=State)
    doubts: dict[str, Doubt] = field(default_factory=dict)
    keys: dict[Doubt, str] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    branch: tuple[Branch, ...] = ()
    output: list[str] | None = None
    opaque: bool = False
    lenient: bool = False
    loops: int = 0
    sourced: int = 0
    targets: dict[int, str] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    exported_functions: set[str] = field(default_factory=set)
    piped: bool = False
    compared: dict[str, dict[str, None]] = field(default_factory=dict)
    beside: Beside | None = None
    places: tuple[str, ...] = ()
    homes: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    opened: int = 0
    outer: tuple[str, ...] = ()
    header: Mapping[str, str] = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    returned: list[tuple[State, str]] = field(default_factory=list)
    broken: list[tuple[Break, State, str]] = field(default_factory=list)
    said: str = ""
    stopped: tuple[str, str] | None = None
    takes_words: bool = False
    takes_numbers: bool = False
    updated: str = ""
    substituted: int = 0
    last_status: int | None = 0
    tested: int = 0
    depth: int = 0
    line: int = 0
    work: int = 0
    steps: int = 0

    def spend(self, amount: int) -> None:
        """Count work. Raises ConfigError where a script needs more than any real one."""
        self.work += amount
        if self.work > MOST_WORK:
            raise ConfigError(
                f"line {self.line} of the script: reading it takes too much work; its text grows too large"
            )

    def step(self) -> None:
        """Count one command."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ConfigError(f"line {self.line} of the script: more than {MOST_STEPS} commands would run")
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

    def refuse(self, what: str) -> ConfigError:
        """The error about something that the script does here."""
        return ConfigError(f"line {self.line} of the script: {what}")

    def doubt(self, why: str, name: str = "", choices: tuple[tuple[str, ...], ...] = ()) -> str:
        """The mark of a doubt; the same reason gives the same mark."""
        found = Doubt(why, name, choices)
        if found not in self.keys:
            if len(self.doubts) >= 2000:
                raise self.refuse("more than 2,000 values in doubt")
            key = self.keys[found] = str(len(self.doubts))
            self.doubts[key] = found
        return doubtful(self.keys[found])

    # -- variables -------------------------------------------------------------------------------------------------
    def compare(self, text: str, *values: str) -> None:
        """Remembers the values that a variable or word of the caller is compared with, where nothing sets it."""
        names = unset_in(text)
        if len(names) == 1 and not bare(text) and not in_doubt(text):
            known = self.compared.setdefault(names[0], {})
            known.update((value, None) for value in values if value and not GLOB.search(value))

    def assign(self, name: str, value: Value) -> None:
        """Set a variable, unless the caller's value wins; a text is the first element of an array that stands already."""
        if name in self.given:
            return
        if (
            name in self.state.integers
            and isinstance(value, str)
            and not re.fullmatch(r"-?(0|[1-9][0-9]*)|\0.*\0", value)
        ):
            raise self.refuse(f"{name} is an integer (declare -i), and what it is set to here is none")
        if name in self.state.readonly:
            raise self.refuse(f"{name} is readonly and set again, at which bash stops")
        value = unquoted(value) if isinstance(value, str) else value
        text = value if isinstance(value, str) else "".join(value.items.values())
        if len(text) > LARGEST_VALUE:
            raise self.refuse(f"the value of {name} grows beyond {LARGEST_VALUE} characters")
        self.spend(len(text) + 1)
        before = self.state.variables.get(name)
        if isinstance(before, Array) and isinstance(value, str):
            self.spend(len(before.items))
            if uncertain(before):
                raise self.refuse(f"an element of {name} is set, but how many it has is not known")
            first = quoted(self.attributed(name, value))  # one element, whatever is in it
            value = Array({**before.items, ("0" if before.keyed else 0): first}, before.keyed)
        elif isinstance(value, str):
            value = self.attributed(name, value)
        self.state.variables[name] = value
        if "allexport" in self.state.options:
            self.state.exported.add(name)

    def attributed(self, name: str, value: str) -> str:
        """The value, with a doubt that is all of it called by the variable that --set could give."""
        if in_doubt(value) and not bare(value):
            found = marks(value)
            if len(found) == 1 and not self.doubts[found[0][1]].name:
                known = self.doubts[found[0][1]]
                return self.doubt(known.why, name, known.choices)
        return value

    def forget(self, name: str) -> None:
        """Unset a variable."""
        if name in self.state.readonly:
            raise self.refuse(f"{name} is readonly and unset, at which bash stops")
        if name in self.given:
            return
        frames = self.state.frames
        hidden = next((frame for frame in reversed(frames[:-1]) if name in frame.saved), None)
        if hidden is not None and name not in frames[-1].saved:  # a caller's variable: what it hides shows again
            value, was_exported = hidden.saved.pop(name)
            restore(self.state, name, value, exported=was_exported)
            return
        self.state.variables.pop(name, None)
        self.state.exported.discard(name)
        self.state.integers.discard(name)


def uncertain(array: Array) -> bool:
    """Whether it is not known how many elements an array has."""
    return any(loose(value) or vanishes(value) for value in array.items.values())


def restore(state: State, name: str, value: Value | None, *, exported: bool) -> None:
    """A variable as it was."""
    if value is None:
        state.variables.pop(name, None)
    else:
        state.variables[name] = value
    (state.exported.add if exported else state.exported.discard)(name)
