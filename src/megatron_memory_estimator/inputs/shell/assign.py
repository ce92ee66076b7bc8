"""Assignments (`name=value`, elements of arrays, whole arrays), and `export`, `declare`, `local`, `readonly`, `typeset`.

Source: the Bash Reference Manual 5.2, 3.4, 4.2 (Bash Builtins) and 6.7.
"""

from __future__ import annotations

import re

from ...wording import plain
from .arithmetic import settled
from .expand import braces, fields, text_of
from .grammar import Assignment, Text, Word
from .state import Shell
from .values import Array, Held, Value, bare, head, in_doubt, joined, partition, readable, unquoted, vanishes
from .words import NAME


def assign(shell: Shell, node: Assignment) -> None:
    """`name=value` in any of its forms."""
    before = shell.state.variables.get(node.name)
    if node.elements is not None:
        keyed = isinstance(before, Array) and before.keyed
        shell.assign(node.name, elements(shell, node, keyed=keyed))
    elif node.index is not None:
        assert node.value is not None
        items = _items(before)
        keyed = isinstance(before, Array) and before.keyed
        if isinstance(before, Array) and before.uncertain:
            raise shell.refuse(f"an element of {node.name} is set, but how many it has is not known")
        key = key_of(shell, node.name, node.index, keyed=keyed)
        if isinstance(key, int) and key < 0:
            key += Array(items).highest + 1
        value = text_of(shell, node.value)
        value = joined((items.get(key, ""), value)) if node.appends else value
        shell.spend(len(items))
        shell.assign(node.name, Array({**items, key: value}, keyed))
    else:
        assert node.value is not None
        outer, shell.updated = shell.updated, node.name
        value = text_of(shell, node.value)
        shell.updated = outer
        before = shell.state.variables.get(node.name)  # the expansion may have set it
        if node.name in shell.state.integers:
            if isinstance(before, Array):
                raise shell.refuse(f"the array of integers {node.name} is not read")
            text = joined(("(", before or "0", ")+(", value or "0", ")")) if node.appends else value
            shell.assign(node.name, number(shell, text))
            return
        if node.appends:
            first = before.first() if isinstance(before, Array) else before
            value = joined((first or "", value))
        shell.assign(node.name, value)


def _items(value: Held | None) -> dict[int | str, Value]:
    return dict(value.items) if isinstance(value, Array) else {} if value is None else {0: value}


def key_of(shell: Shell, name: str, index: Word, *, keyed: bool) -> int | str:
    """The place in an array that an index means."""
    text = text_of(shell, index)
    key = bare(text) if keyed else settled(shell, text)
    if isinstance(key, tuple) or (isinstance(key, str) and (not keyed or in_doubt(text))):
        raise shell.refuse(f"the index of {name} is not known")
    return key


def number(shell: Shell, text: Value) -> Value:
    """The value of an expression as text."""
    found = settled(shell, text)
    return str(found) if isinstance(found, int) else found


def elements(shell: Shell, node: Assignment, *, keyed: bool) -> Array:
    """The array of `name=(...)`."""
    before = shell.state.variables.get(node.name)
    items: dict[int | str, Value] = {}
    if node.appends and before is not None:
        items = _items(before)
    if (
        isinstance(before, Array)
        and node.appends
        and before.uncertain
        and any(isinstance(o, Assignment) for o in node.elements or ())
    ):
        raise shell.refuse(f"an element of {node.name} is set, but how many it has is not known")
    at = 0 if keyed else 1 + Array(items).highest
    for element in node.elements or ():
        if isinstance(element, Assignment):
            assert element.index is not None and element.value is not None
            key = key_of(shell, node.name, element.index, keyed=keyed)
            value = text_of(shell, element.value)
            items[key] = joined((items.get(key, ""), value)) if element.appends else value
            at = key + 1 if isinstance(key, int) else at
            continue
        if keyed:
            raise shell.refuse(f"an element of {node.name} without a [key] is not read")
        for value in fields(shell, element):
            items[at] = value
            at += 1
    if any(isinstance(key, int) and not 0 <= key < 100_000 for key in items):
        raise shell.refuse(f"an index of {node.name} is out of range")
    return Array(items, keyed)


# -- declaring ---------------------------------------------------------------------------------------------------------------
def declare(shell: Shell, name: str, words: list[Value], declared: list[Assignment]) -> None:
    """`export`, `declare`, `local`, `readonly`, `typeset`: options, names, and assignments."""
    options, removes, names = _words(shell, name, words)
    if name == "export" and "f" in options:
        shell.state.exported_functions.update(names)
        shell.state.status = 0
        return
    if _only_prints(shell, name, options, removes):
        shell.state.opaque = True
        shell.undecided()
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


def _words(shell: Shell, name: str, words: list[Value]) -> tuple[str, str, list[str]]:
    """The letters of options, those of options taken away, and the names; what an expansion made into an assignment is assigned."""
    options, removes, names = "", "", list[str]()
    for word in words:
        name_part, equals, value = partition(word, "=")
        if isinstance(word, str) and re.fullmatch(r"-[A-Za-z]+", word):
            options += word[1:]
        elif isinstance(word, str) and re.fullmatch(r"\+[A-Za-z]+", word):
            removes += word[1:]
        elif isinstance(word, str) and NAME.fullmatch(word):
            names.append(word)
        elif equals and isinstance(name_part, str) and NAME.fullmatch(name_part):
            names.append(name_part)
            if set(options) & set("aAi") or head(value).startswith("("):
                raise shell.refuse(f"{name} {plain(readable(word), 40)} is not read")
            _localised(shell, name, options, name_part)
            shell.assign(name_part, unquoted(value))
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


def _set(shell: Shell, name: str, options: str, assignment: Assignment, value: Held | None) -> None:
    """One assignment, whose value is expanded already."""
    _localised(shell, name, options, assignment.name)
    if "i" in options:
        shell.state.integers.add(assignment.name)
        value = value if value is None or isinstance(value, Array) else number(shell, value or "0")
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
        first: dict[int | str, Value] = {} if before is None or "A" in options else {0: before}
        shell.assign(variable, Array(first, "A" in options))


def _is_keyed(shell: Shell, name: str) -> bool:
    before = shell.state.variables.get(name)
    return isinstance(before, Array) and before.keyed


def _value(shell: Shell, name: str, options: str, one: Assignment) -> Held | None:
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
