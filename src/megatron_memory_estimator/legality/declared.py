"""What is declared must divide: every sharded dim, after the rules with sentences of their own.

It refuses a kind of layer that no other rule thought of, where a shard would be a fraction of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from ..errors import LayoutError, UnsupportedError
from ..job.flash_next import BESIDE
from ..job.layout import Layout
from ..job.model import Model
from ..job.tower import counted
from ..job.training import Training
from ..job.variants import marked, variant_of
from ..modules.context import Context
from ..modules.kinds import kinds_of
from ..modules.layers import Declaration, embedding_unit, layer_unit, mtp_unit, output_unit, towers_unit
from ..rules import Violation, of_error


class Declared(NamedTuple):
    """What a model is made of, once each: the kinds of its layers, and the units beside them.

    `routed`: whether it has routed experts, or tables of n-grams; nothing else is sharded over ep or etp.
    """

    name: str
    routed: bool
    declare: Callable[[Context], Declaration]


def declared_dims(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """One violation for each unit with a parameter or a tensor whose shape does not divide over the ranks that share it."""
    for unit in declared_units(model):
        yield from refused(unit, model, layout, training)


def declared_units(model: Model) -> Iterator[Declared]:
    """Everything that a model declares."""
    parts = {marked(row.name, variant_of(layer)): row for layer in model.every_kind for row in kinds_of(layer)}
    for name, row in parts.items():
        tables = variant_of(name) == BESIDE  # whose rows expert-parallel ranks share
        yield Declared(name, row.routed or tables, partial(layer_unit, kind=name))
    if counted(model.towers):
        yield Declared("towers", False, towers_unit)
    yield Declared("embedding", False, partial(embedding_unit, alone=True))
    yield Declared("output", False, partial(output_unit, owns_weight=True, shared=False))
    if model.mtp:
        yield Declared("mtp", False, partial(mtp_unit, owns_embedding=False, kinds=()))


def refused(unit: Declared, model: Model, layout: Layout, training: Training) -> tuple[Violation, ...]:
    """The dims of a unit that do not divide: the first of a layout, as declaring it stops there."""
    error = refusal(unit, Context(model, layout, training, "cudnn"))  # kernels of attention differ in scratch alone
    return of_error(error) if isinstance(error, LayoutError) else ()  # else refused by name where it is estimated


def refusal(unit: Declared, context: Context) -> LayoutError | UnsupportedError | None:
    """What declaring a unit stops at: a dim that does not divide, or what is not modelled."""
    try:
        unit.declare(context)
    except (LayoutError, UnsupportedError) as error:
        return error
    return None


def refusals(context: Context) -> Iterator[LayoutError | UnsupportedError]:
    """What declaring the units of a model stops at."""
    for unit in declared_units(context.model):
        error = refusal(unit, context)
        if error is not None:
            yield error
