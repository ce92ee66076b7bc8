"""Delayed weight gradients: with all-to-all overlap they may run after the whole backward of their part of a layer.

TransformerEngine keeps each linear's input (gathered) and output gradient until then. Two parts of a layer have a
`backward_dw`: the experts (or the dense MLP), and everything before them with the shared experts.

Source: Megatron-LM `megatron/core/models/gpt/fine_grained_callables.py` (backward_dw), `transformer_layer.py`;
TransformerEngine `pytorch/module/_common.py` (WeightGradStore).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..tape.ops import EVERYTHING, Item, Op, Part, Unit
from ..tape.tensor import Tensor

LATE: dict[Part, frozenset[Part]] = {
    "mlp_wgrads": frozenset(("mlp",)),
    "experts_wgrads": frozenset(("expert_fc1", "experts")),
}
"""Parts whose weight gradients wait together, beside those of the attention node: all others."""


def with_delayed_wgrads(unit: Unit) -> Unit:
    """The unit with one more event at the end of the backward of each part: its weight gradients."""
    items = list(unit.items)
    others = EVERYTHING.difference(*LATE.values())
    late: list[tuple[str, Part, frozenset[Part]]] = [("mlp.backward_dw", part, parts) for part, parts in LATE.items()]
    for name, part, parts in (*late, ("attn.backward_dw", "attn_wgrads", others)):
        needed = tuple(t for item in items for t in _needed(item, parts))
        if needed:
            first = next(i for i, item in enumerate(items) if any(_needed(item, parts)))
            items.insert(first, Op(name, wgrad=_distinct(needed), part=part))
    return unit._replace(items=tuple(items))


def _needed(item: Item, parts: frozenset[Part]) -> Iterator[Tensor]:
    if isinstance(item, Op):
        if item.part in parts:
            yield from item.wgrad
    else:
        for inner in item.ops:
            yield from _needed(inner, parts)


def _distinct(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple({t.name: t for t in tensors}.values())
