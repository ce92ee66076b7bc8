"""The protocol of modules: generators that declare, and what wraps one in a checkpoint, names its part or changes it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from ..tape.ops import Item, Op, Part, Recompute, parted
from ..tape.tensor import Param, Tensor

T = TypeVar("T")
Module = Generator[Param | Item, None, T]
"""A declaration: it yields parameters in Megatron's registration order and ops in execution order, and returns what
the next module reads."""


GROUP = "the group's backward"
"""The hook of checkpoints that run again together, where the backward of a group of layers begins (`layers.grouped`)."""


def collected(module: Module[T]) -> Module[tuple[tuple[Item, ...], T]]:
    """The module's ops, held back, and its result; its parameters pass through."""
    items: list[Item] = []
    while True:
        try:
            item = next(module)
        except StopIteration as stop:
            return tuple(items), stop.value
        if isinstance(item, Param):
            yield item
        else:
            items.append(item)


def recomputed(active: bool, name: str, module: Module[T], hook: str = "") -> Module[T]:
    """The module's ops wrapped in one checkpoint when active; its parameters and its result pass through."""
    ops, result = yield from collected(module)
    if active:
        yield Recompute(name, ops, hook)
    else:
        yield from ops
    return result


def changed(
    module: Module[T],
    change: Callable[[Item], Item] | None = None,
    param: Callable[[Param], Param | None] | None = None,
) -> Module[T]:
    """The module with every op and checkpoint changed, and every parameter changed or left out; its result passes through."""
    while True:
        try:
            item = next(module)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if isinstance(item, Param):
            other = param(item) if param else item
            if other is not None:
                yield other
        else:
            yield change(item) if change else item


def holding(module: Module[T], *tensors: Tensor | None) -> Module[T]:
    """The module with tensors that Python's variables keep alive until it is done, whether a backward needs them or not."""
    items, result = yield from collected(module)
    held = tuple(t for t in tensors if t is not None)
    if not held or not items:
        yield from items
        return result
    yield from items[:-1]
    last = items[-1]
    yield last._replace(holds=(*last.holds, *held)) if isinstance(last, Op) else last
    if not isinstance(last, Op):
        yield Op(f"{last.name}.done", holds=held, part=last.part)
    return result


def in_part(part: Part, module: Module[T]) -> Module[T]:
    """The module with its ops as a part of something, as far as nothing inside says otherwise."""
    return changed(module, partial(parted, part=part))
