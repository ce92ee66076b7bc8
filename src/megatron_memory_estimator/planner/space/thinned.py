"""A smaller space where NumPy is missing: fewer values of axes that nobody gave, those first that seldom change the best plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ...job.layout import SHORT
from ...job.model import Model
from ...modules.kinds import recomputable
from .axes import AXES, Space

Values = tuple[Any, ...]


def thinned(space: Space, given: Collection[str], model: Model, layouts: int, most: int) -> Space:
    """A part of a completed space that may have no more than `most` legal layouts, where the whole has `layouts`.

    Axes that are `given` keep their values. The part is the space itself where nothing else can be taken away.
    """
    kept: dict[str, Values] = {}
    left = float(layouts)
    for name, fewer in STEPS:
        values: Values = kept.get(name, getattr(space, name))
        less = fewer(values, model)
        if left > most and name not in given and len(less) < len(values):
            kept[name] = less
            left *= len(less) / len(values)
    return dataclasses.replace(space, **kept)


def kept_of(space: Space, part: Space) -> str:
    """The values of a part, of axes that have more in the whole space."""
    changed = [name for name in AXES if getattr(part, name) != getattr(space, name)]
    return "; ".join(f"{SHORT_NAMES.get(name, name)} {','.join(map(str, getattr(part, name)))}" for name in changed)


def _first(number: int) -> Callable[[Values, Model], Values]:
    return lambda values, model: values[:number]


def _sets(wanted: Iterable[str]) -> Callable[[Values, Model], Values]:
    """Those sets of recomputation that the model has something of."""
    names = tuple(wanted)

    def fewer(values: Values, model: Model) -> Values:
        own = {"none", "full", *recomputable(model)}
        return tuple(one for one in values if one in names and own.issuperset(one.split("+"))) or values

    return fewer


def _chunks(number: int) -> Callable[[Values, Model], Values]:
    """So many numbers of virtual stages, none among them: those that divide the layers of most pipelines."""

    def fewer(values: Values, model: Model) -> Values:
        even = [pp for pp in range(2, 33) if model.num_layers % pp == 0]
        best = sorted(values, key=lambda vp: (vp != 1, -sum((model.num_layers // pp) % vp == 0 for pp in even), vp))
        return tuple(sorted(best[:number]))

    return fewer


STEPS: tuple[tuple[str, Callable[[Values, Model], Values]], ...] = (
    ("virtual_pipeline_model_parallel_size", _chunks(4)),
    ("recompute", _sets(("none", "core_attn", "mlp", "mla_up_proj+moe_act+layernorm", "moe_act+layernorm", "full"))),
    ("micro_batch_size", _first(2)),
    ("virtual_pipeline_model_parallel_size", _chunks(2)),
    ("context_parallel_size", _first(3)),
    ("recompute", _sets(("none", "full"))),
    ("cp_comm_type", _first(1)),
    ("context_parallel_size", _first(1)),
    ("micro_batch_size", _first(1)),
    ("expert_model_parallel_size", lambda values, model: values[::2]),
)
"""Axes in the order in which values are taken away, and which ones stay."""
SHORT_NAMES = {name: short for short, name in SHORT.items()}
"""Short names of axes."""
