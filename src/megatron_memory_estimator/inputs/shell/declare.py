"""`export`, `declare`, `local`, `readonly`, `typeset`. Source: the Bash Reference Manual 5.2, 4.2 (Bash Builtins)."""

from __future__ import annotations

import re

from ...wording import plain
from .arithmetic import settled
from .assign import assign, elements
from .doubts import readable, unquoted, vanishes
from .expand import braces, text_of
from .grammar import Assignment, Text
from .scanner import NAME
from .simple import DECLARING
from .state import Array, Shell


def declare(shell: Shell, name: str, words: list[str], declared: list[Assignment]) -> None:
    """`export`, `declare`, `local`, `readonly`, `typeset`: options, names, and assignments."""
    options, removes, names = _words(shell, name, words)
    if name == "export" and "f" in options:
        shell.exported_functions.update(names)
        shell.state.status = 0
        return
    if _only_prints(shell, name, options, removes):
        shell.opaque = True
        shell.state.status = None
        return
    values = [_value(shell, name, options, one) for one in declared]  # all expanded before anything is set
    for assignment, value in zip(declared, values, strict=True):
        _set(shell, name, options, assignment, value)
    assigned = [assignment.name for assignment in declared]
    for variable in [*names, *assigned]:
        if variable not in assigned:
            _name(shell, name, options, variable)
        if name == "export" or "x" in options:
            shell.state.exported.add(variable)
        if "x" in removes:
            shell.state.exported.discard(variable)
        if name == "readonly" or "r" in options:
            shell.state.readonly.add(variable)
    shell.state.status = 0


def _words(shell: Shell, name: str, words: list[str]) -> tuple[str, str, list[str]]:
    """The letters of options, those of options taken away, and the names; what an expansion made into an assignment is assigned."""
    options, removes, names = "", "", list[str]()
    for word in words:
        if re.fullmatch(r"-[A-Za-z]+", word):
            options += word[1:]
        elif re.fullmatch(r"\+[A-Za-z]+", word):
            removes += word[1:]
        elif NAME.fullmatch(word):
            names.append(word)
        elif (match := re.match(r"([A-Za-z_]\w*)=", word)) is not None:
            names.append(match.group(1))
            if set(options) & set("aAi") or word[match.end() :].startswith("("):
                raise shell.refuse(f"{name} {plain(readable(word), 40)} is not read")
            _localised(shell, name, options, match.group(1))
            shell.assign(match.group(1), unquoted(word[match.end() :]))
        elif not vanishes(word):
            raise shell.refuse(f"{name} {plain(readable(word), 40)} is not read")
    return options, removes, names


def _only_prints(shell: Shell, name: str, options: str, removes: str) -> bool:
    """Whether the options ask for what is declared. Raises ConfigError for options that are not read."""
    if set(options) & set("nlucfFpItT") or removes.strip("x"):
        if set(options) <= set("pfF"):
            return True
        raise shell.refuse(f"{name} -{options}{'+' + removes if removes else ''} is not read")
    return False


def _set(shell: Shell, name: str, options: str, assignment: Assignment, value: str | Array | None) -> None:
    """One assignment, whose value is expanded already."""
    _localised(shell, name, options, assignment.name)
    if "i" in options:
        shell.state.integers.add(assignment.name)
        value = str(settled(shell, value or "0")) if isinstance(value, str) else value
    if value is None:
        assign(shell, assignment)
    else:
        shell.assign(assignment.name, value)


def _name(shell: Shell, name: str, options: str, variable: str) -> None:
    """A name without a value, which may become an array."""
    _localised(shell, name, options, variable, keeps_temporary=True)
    if "i" in options:
        shell.state.integers.add(variable)
    before = shell.state.variables.get(variable)
    if set(options) & set("aA") and not isinstance(before, Array):
        first: dict[int | str, str] = {} if before is None or "A" in options else {0: before}
        shell.assign(variable, Array(first, "A" in options))


def _is_keyed(shell: Shell, name: str) -> bool:
    before = shell.state.variables.get(name)
    return isinstance(before, Array) and before.keyed


def _value(shell: Shell, name: str, options: str, one: Assignment) -> str | Array | None:
    """What is assigned, or None where it is added to what stands or set in a place of an array."""
    if one.appends and shell.state.frames and name != "export" and one.name not in shell.state.frames[-1].saved:
        raise shell.refuse(f"{name} {one.name}+= is not read")
    if one.elements is not None:
        if "i" in options:
            raise shell.refuse(f"{name} -i of an array is not read")
        return elements(shell, one, keyed="A" in options or _is_keyed(shell, one.name))
    if one.index is not None or one.appends:
        return None
    assert one.value is not None
    several = braces(shell, one.value)  # braces assign several times here; the last one stays
    if len(several) > 1 and (
        name == "readonly" or "r" in options or not all(isinstance(piece, Text) for piece in one.value.pieces)
    ):
        raise shell.refuse(f"{name} with braces beside an expansion, or of a readonly variable, is not read")
    text = text_of(shell, several[-1])
    return Array({0: text}) if "a" in options else text


def _localised(shell: Shell, command: str, options: str, name: str, *, keeps_temporary: bool = False) -> None:
    """Inside a function `local` and `declare` make a variable of the function."""
    frames = shell.state.frames
    if not frames:
        if command == "local":
            raise shell.refuse("local outside a function is not read")
        return
    if "g" in options and any(name in frame.saved for frame in frames):
        raise shell.refuse(f"declare -g of {name}, which is local, is not read")
    if (
        command not in ("local", "declare", "typeset")
        or "g" in options
        or name in frames[-1].saved
        or name in shell.given
    ):
        return
    frames[-1].saved[name] = (shell.state.variables.get(name), name in shell.state.exported)
    if keeps_temporary and len(frames) > 1 and frames[-2].temporary and name in frames[-2].saved:
        return  # `A=1 f` and `local A` in f: it keeps the value
    shell.state.variables.pop(name, None)
    shell.state.exported.discard(name)


__all__ = ["DECLARING", "declare"]
