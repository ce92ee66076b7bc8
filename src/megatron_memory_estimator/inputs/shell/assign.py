"""Assignments (`name=value`, elements of arrays, whole arrays), and `export`, `declare`, `local`, `readonly`, `typeset`.

Source: the Bash Reference Manual 5.2, 3.4, 4.2 (Bash Builtins) and 6.7.
"""

from __future__ import annotations

import re

from ...wording import plain
from .arithmetic import settled, worked_out
from .expand import braces, fields, text_of
from .grammar import Assignment, Text, Word
from .state import Shell
from .values import Array, Held, Value, as_array, bare, head, in_doubt, joined, partition, readable, unquoted, vanishes
from .words import NAME


def assign(shell: Shell, node: Assignment) -> None:
    """`name=value` in any of its forms."""
    before = shell.state.variables.get(node.name)
    if node.elements is not None:
        shell.assign(node.name, elements(shell, node, keyed=as_array(before).keyed))
    elif node.index is not None:
        array = as_array(before)
        shell.counted(node.name, before)
        key = key_of(shell, node.name, node.index, keyed=array.keyed)
        if isinstance(key, int) and key < 0:
            key += array.highest + 1
        value = text_of(shell, node.value)
        value = joined((array.items.get(key, ""), value)) if node.appends else value
        shell.spend(len(array.items))
        shell.assign(node.name, Array({**array.items, key: value}, array.keyed))
    else:
        with shell.during(updated=node.name):
            value = text_of(shell, node.value)
        before = shell.state.variables.get(node.name)  # the expansion may have set it
        if node.name in shell.state.integers:
            if isinstance(before, Array):
                raise shell.refuse(f"the array of integers {node.name} is not read")
            text = joined(("(", before or "0", ")+(", value or "0", ")")) if node.appends else value
            shell.assign(node.name, worked_out(shell, text))
            return
        shell.assign(node.name, joined((as_array(before).first() or "", value)) if node.appends else value)


def key_of(shell: Shell, name: str, index: Word, *, keyed: bool) -> int | str:
    """The place in an array that an index means."""
    text = text_of(shell, index)
    key = bare(text) if keyed else settled(shell, text)
    if isinstance(key, tuple) or (isinstance(key, str) and (not keyed or in_doubt(text))):
        raise shell.refuse(f"the index of {name} is not known")
    return key


def elements(shell: Shell, node: Assignment, *, keyed: bool) -> Array:
    """The array of `name=(...)`."""
    before = as_array(shell.state.variables.get(node.name) if node.appends else None)
    items = dict(before.items)
    if any(isinstance(one, Assignment) for one in node.elements or ()):
        shell.counted(node.name, before)
    at = 0 if keyed else 1 + before.highest
    for element in node.elements or ():
        if isinstance(element, Assignment):
            assert element.index is not None
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
    if set(options) & set("nlucfFpItT") or removes.strip("x"):
        if not set(options) <= set("pfF"):
            raise shell.refuse(f"{name} -{options}{'+' + removes if removes else ''} is not read")
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
        if isinstance(word, str) and re.fullmatch(r"[-+][A-Za-z]+", word):
            options += word[1:] if word[0] == "-" else ""
            removes += word[1:] if word[0] == "+" else ""
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


def _set(shell: Shell, name: str, options: str, assignment: Assignment, value: Held | None) -> None:
    """One assignment, whose value is expanded already."""
    _localised(shell, name, options, assignment.name)
    if "i" in options:
        shell.state.integers.add(assignment.name)
        value = value if value is None or isinstance(value, Array) else worked_out(shell, value or "0")
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


def _value(shell: Shell, name: str, options: str, one: Assignment) -> Held | None:
    """What is assigned, or None where it is added to what stands or set in a place of an array."""
    if one.appends and shell.state.frames and name != "export" and one.name not in shell.state.frames[-1].saved:
        raise shell.refuse(f"{name} {one.name}+= is not read")
    if one.elements is not None:
        if "i" in options:
            raise shell.refuse(f"{name} -i of an array is not read")
        return elements(shell, one, keyed="A" in options or as_array(shell.state.variables.get(one.name)).keyed)
    if one.index is not None or one.appends:
        return None
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
    if not frames and command == "local":
        raise shell.refuse("local outside a function is not read")
    if "g" in options and any(name in frame.saved for frame in frames):
        raise shell.refuse(f"declare -g of {name}, which is local, is not read")
    is_local = command in ("local", "declare", "typeset") and "g" not in options and name not in shell.given
    if not frames or not is_local or name in frames[-1].saved:
        return
    frames[-1].saved.update(shell.state.kept(name))
    if keeps_temporary and len(frames) > 1 and frames[-2].temporary and name in frames[-2].saved:
        return  # `A=1 f` and `local A` in f: it keeps the value
    shell.state.variables.pop(name, None)
    shell.state.exported.discard(name)
