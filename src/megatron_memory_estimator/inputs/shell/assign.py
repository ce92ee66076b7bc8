"""Assignments: `name=value`, elements of arrays, whole arrays. Source: the Bash Reference Manual 5.2, 3.4 and 6.7."""

from __future__ import annotations

from .arithmetic import settled
from .doubts import bare, in_doubt
from .expand import fields, text_of
from .grammar import Assignment, Word
from .state import Array, Shell, Value, uncertain


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
        if isinstance(before, Array) and uncertain(before):
            raise shell.refuse(f"an element of {node.name} is set, but how many it has is not known")
        key = key_of(shell, node.name, node.index, keyed=keyed)
        if isinstance(key, int) and key < 0:
            key += max((int(one) for one in items), default=-1) + 1
        value = text_of(shell, node.value)
        value = items.get(key, "") + value if node.appends else value
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
            text = f"({before or 0})+({value or 0})" if node.appends else value
            shell.assign(node.name, str(settled(shell, text)))
            return
        if node.appends:
            first = before.items.get("0" if before.keyed else 0, "") if isinstance(before, Array) else before or ""
            value = first + value
        shell.assign(node.name, value)


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


def elements(shell: Shell, node: Assignment, *, keyed: bool) -> Array:
    """The array of `name=(...)`."""
    before = shell.state.variables.get(node.name)
    items: dict[int | str, str] = {}
    if node.appends and before is not None:
        items = _items(before)
    if (
        isinstance(before, Array)
        and node.appends
        and uncertain(before)
        and any(isinstance(o, Assignment) for o in node.elements or ())
    ):
        raise shell.refuse(f"an element of {node.name} is set, but how many it has is not known")
    at = 1 + max((int(key) for key in items), default=-1) if not keyed else 0
    for element in node.elements or ():
        if isinstance(element, Assignment):
            assert element.index is not None and element.value is not None
            key = key_of(shell, node.name, element.index, keyed=keyed)
            value = text_of(shell, element.value)
            items[key] = items.get(key, "") + value if element.appends else value
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
