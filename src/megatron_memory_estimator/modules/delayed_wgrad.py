"""Delayed weight gradients: with all-to-all overlap they may run after the whole backward of their part of a layer.

TransformerEngine keeps each linear's input (gathered) and output gradient until then. Two parts of a layer have a
`backward_dw`: the experts (or the dense MLP), and everything before them with the shared experts.

Source: Megatron-LM `megatron/core/models/gpt/fine_grained_callables.py` (backward_dw), `transformer_layer.py`;
TransformerEngine `pytorch/module/_common.py` (WeightGradStore).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..tape import Item, Op, Unit
from ..tensor import Tensor


def with_delayed_wgrads(unit: Unit) -> Unit:
    """The unit with one more event at the end of the backward of each part: its weight gradients."""
    items = list(unit.items)
    for name, belongs in (("mlp.backward_dw", _in_mlp), ("attn.backward_dw", lambda op: not _in_mlp(op))):
        needed = tuple(t for item in items for t in _needed(item, belongs))
        if needed:
            first = next(i for i, item in enumerate(items) if any(_needed(item, belongs)))
            items.insert(first, Op(name, wgrad=_distinct(needed)))
    return unit._replace(items=tuple(items))


def _in_mlp(op: Op) -> bool:
    return "mlp.experts." in op.name or op.name.endswith(("mlp.linear_fc1", "mlp.linear_fc2"))


def _needed(item: Item, belongs: Callable[[Op], bool]) -> Iterator[Tensor]:
    if isinstance(item, Op):
        if belongs(item):
            yield from item.wgrad
    else:
        for inner in item.ops:
            yield from _needed(inner, belongs)


def _distinct(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple({t.name: t for t in tensors}.values())
