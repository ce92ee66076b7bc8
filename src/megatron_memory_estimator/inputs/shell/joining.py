"""How two states are one again behind a condition that cannot be decided: what differs is in doubt, or refused."""

from __future__ import annotations

import re

from .doubts import MARK
from .state import Array, Shell, State, Value

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


def _either(shell: Shell, name: str, first: Value | None, second: Value | None, why: str, *, widen: bool) -> Value:
    """A value that is one or the other."""
    reason = f"it depends on {why}"
    if widen or isinstance(first, Array) != isinstance(second, Array):
        if isinstance(first, Array) or isinstance(second, Array):
            return Array({0: shell.doubt(reason, name)})
        return shell.doubt(reason, name)
    if isinstance(first, Array) and isinstance(second, Array):
        if first.keyed or second.keyed:
            if first.items.keys() != second.items.keys():
                raise shell.refuse(f"the keys of {name} depend on {why}, which cannot be decided")
            values = {
                key: value if value == second.items[key] else shell.doubt(reason) for key, value in first.items.items()
            }
            return Array(values, True)
        parts = _apart(first.values(), second.values())
    else:
        parts = _apart(
            *(re.findall(r"\s+|[^\s]+", value) if isinstance(value, str) else [] for value in (first, second))
        )
    start, choices, end = _whole_arguments(*parts)
    shell.spend(sum(map(len, (*start, *end, *choices[0], *choices[1]))))
    words = tuple(tuple(word for text in part for word in _words(text)) for part in choices)
    mark = shell.doubt(reason, "" if start or end else name, words)
    if isinstance(first, Array):
        return Array(dict(enumerate([*start, mark, *end])))
    middles = [part for part in choices if part]
    before = " " if any(part[0].isspace() for part in middles) else ""
    after = " " if any(part[-1].isspace() for part in middles) else ""
    return "".join([*start, before, mark, after, *end])


def _whole_arguments(
    start: list[str], choices: tuple[list[str], list[str]], end: list[str]
) -> tuple[list[str], tuple[list[str], list[str]], list[str]]:
    """The same parts, where the choices hold arguments: with the words of an argument never apart from its name."""
    first, second = choices
    if not any(one.startswith("--") for one in (*first, *second)):
        return start, choices, end
    inside = any(part and not part[0].startswith("--") for part in choices)
    at = max((i for i, one in enumerate(start) if one.startswith("--")), default=None)
    if inside and at is not None:
        start, moved = start[:at], start[at:]
        first, second = moved + first, moved + second
    ends = next((i for i, one in enumerate(end) if one.startswith("--") or re.search(r"[|<>&;]", one)), len(end))
    return start, (first + end[:ends], second + end[:ends]), end[ends:]


def _words(text: str) -> list[str]:
    return text.split() if MARK not in text else [text.strip()] if text.strip() else []


def _apart(first: list[str], second: list[str]) -> tuple[list[str], tuple[list[str], list[str]], list[str]]:
    """What two lists begin with alike, where they differ, and what they end with alike."""
    start = 0
    while start < min(len(first), len(second)) and first[start] == second[start]:
        start += 1
    end = 0
    while end < min(len(first), len(second)) - start and first[-1 - end] == second[-1 - end]:
        end += 1
    return (
        first[:start],
        (first[start : len(first) - end], second[start : len(second) - end]),
        first[len(first) - end :],
    )
