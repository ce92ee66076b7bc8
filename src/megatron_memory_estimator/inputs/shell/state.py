"""What a shell knows while a script is read: variables, functions, positional parameters, and how two states are one again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...errors import ConfigError
from .doubts import MARK, Doubt, bare, doubtful, in_doubt, loose, marks, unquoted, vanishes
from .grammar import Command

MOST_WORK = 20_000_000
"""Characters and commands that reading a script may touch; a real script needs some ten thousand."""
LARGEST_VALUE = 2**18
MOST_STEPS = 20_000


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
class Launch:
    """One start of a training script: its words, GPUs (None if not said), environment, line, and the condition it depends on."""

    entry: str = ""
    words: list[str] = field(default_factory=list)
    num_gpus: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: dict[str, Doubt] = field(default_factory=dict)
    line: int = 0
    branch: tuple[tuple[str, int], ...] = ()
    world: str = ""


@dataclass
class Shell:
    """A reading: the state now, and what has been found. `given` are variables that the caller sets; they win."""

    given: Mapping[str, str]
    state: State = field(default_factory=State)
    doubts: dict[str, Doubt] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    scripts: dict[str, None] = field(default_factory=dict)
    branch: tuple[tuple[str, int], ...] = ()
    output: list[str] | None = None
    opaque: bool = False
    lenient: bool = False
    loops: int = 0
    sourced: int = 0
    targets: dict[int, str] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    exported_functions: set[str] = field(default_factory=set)
    piped: bool = False
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
            self.notes[f"line {self.line}: {text}"] = None

    def refuse(self, what: str) -> ConfigError:
        """The error about something that the script does here."""
        return ConfigError(f"line {self.line} of the script: {what}")

    def doubt(self, why: str, name: str = "", choices: tuple[tuple[str, ...], ...] = ()) -> str:
        """The mark of a doubt; the same reason gives the same mark."""
        found = Doubt(why, name, choices)
        for key, known in self.doubts.items():
            if known == found:
                return doubtful(key)
        key = str(len(self.doubts))
        if len(self.doubts) >= 2000:
            raise self.refuse("more than 2,000 values in doubt")
        self.doubts[key] = found
        return doubtful(key)

    # -- variables -------------------------------------------------------------------------------------------------
    def assign(self, name: str, value: Value) -> None:
        """Set a variable, unless the caller's value wins; a text is the first element of an array that stands already."""
        if name in self.given:
            return
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
            value = Array({**before.items, ("0" if before.keyed else 0): self.attributed(name, value)}, before.keyed)
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
        if (
            frames and name not in frames[-1].saved and hidden is not None
        ):  # a caller's variable: what it hides shows again
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


DECISIVE = frozenset({"errexit", "pipefail", "allexport"})
"""Options that change what later commands do."""


def joined(shell: Shell, states: list[State], why: str, *, widen: bool = False) -> State:
    """One state that holds whichever of `states` is true; what differs between them is in doubt."""
    first = states[0].clone()
    for other in states[1:]:
        shell.spend(len(first.variables) + len(other.variables))
        for what, one_way, other_way in (
            ("set -e or pipefail", first.options & DECISIVE, other.options & DECISIVE),
            ("which variables are local", first.frames, other.frames),
            ("which variables are integers", first.integers, other.integers),
        ):
            if one_way != other_way:
                raise shell.refuse(f"{what} depends on {why}, which cannot be decided")
        first.unsure |= other.unsure | (first.exported ^ other.exported)
        if first.positionals != other.positionals:
            raise shell.refuse(f"the positional parameters depend on {why}, which cannot be decided")
        for name in [*first.variables, *(n for n in other.variables if n not in first.variables)]:
            one, two = first.variables.get(name), other.variables.get(name)
            if one != two:
                first.variables[name] = _either(shell, name, one, two, why, widen=widen)
        for name in first.functions.keys() | other.functions.keys():
            if first.functions.get(name) != other.functions.get(name):
                first.functions[name] = None
        for path in first.files.keys() | other.files.keys():
            if first.files.get(path) != other.files.get(path):
                first.files[path] = shell.doubt(f"the file depends on {why}")
        first.exported |= other.exported
        first.readonly |= other.readonly
        first.options |= other.options
        first.status = first.status if first.status == other.status else None
    return first


def _either(shell: Shell, name: str, one: Value | None, two: Value | None, why: str, *, widen: bool) -> Value:
    """A value that is one or the other."""
    reason = f"it depends on {why}"
    if widen or isinstance(one, Array) != isinstance(two, Array):
        if isinstance(one, Array) or isinstance(two, Array):
            return Array({0: shell.doubt(reason, name)})
        return shell.doubt(reason, name)
    if isinstance(one, Array) and isinstance(two, Array):
        if one.keyed or two.keyed:
            keys = [*one.items]
            if one.items.keys() != two.items.keys():
                raise shell.refuse(f"the keys of {name} depend on {why}, which cannot be decided")
            same = {key: one.items[key] for key in keys if one.items.get(key) == two.items.get(key)}
            return Array({**{key: shell.doubt(reason) for key in keys}, **same}, True)
        parts = _apart(one.values(), two.values())
    else:
        parts = _apart(*(re.findall(r"\s+|[^\s]+", value) if isinstance(value, str) else [] for value in (one, two)))
    start, choices, end = parts
    shell.spend(sum(map(len, (*start, *end, *choices[0], *choices[1]))))
    words = tuple(tuple(word for text in part for word in _words(text)) for part in choices)
    mark = shell.doubt(reason, "" if start or end else name, words)
    if isinstance(one, Array):
        return Array(dict(enumerate([*start, mark, *end])))
    middles = [part for part in choices if part]
    before = " " if any(part[0].isspace() for part in middles) else ""
    after = " " if any(part[-1].isspace() for part in middles) else ""
    return "".join([*start, before, mark, after, *end])


def _words(text: str) -> list[str]:
    return text.split() if MARK not in text else [text.strip()] if text.strip() else []


def _apart(one: list[str], two: list[str]) -> tuple[list[str], tuple[list[str], list[str]], list[str]]:
    """What two lists begin with alike, where they differ, and what they end with alike."""
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    end = 0
    while end < min(len(one), len(two)) - start and one[-1 - end] == two[-1 - end]:
        end += 1
    return one[:start], (one[start : len(one) - end], two[start : len(two) - end]), one[len(one) - end :]
