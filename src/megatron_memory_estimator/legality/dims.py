"""What is declared must divide: every sharded dim, after the rules with sentences of their own.

It refuses a kind of layer that no other rule thought of, where a shard would be a fraction of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ..errors import LayoutError, UnsupportedError
from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.context import Context
from ..modules.layers import Declaration, embedding_unit, layer_unit, mtp_unit, output_unit
from .violation import Violation


def declared_dims(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """One violation for each unit with a parameter or a tensor whose shape does not divide over the ranks that share it."""
    c = Context(model, layout, training, "cudnn")  # kernels of attention differ in scratch alone
    for declare in _units(c):
        yield from _refused(declare)


def _refused(declare: Callable[[], Declaration]) -> Iterator[Violation]:
    try:
        declare()
    except LayoutError as error:
        yield from map(Violation, error.rules, error.reasons)
    except UnsupportedError:
        return  # refused by name where it is estimated


def _units(c: Context) -> Iterator[Callable[[], Declaration]]:
    yield from (partial(layer_unit, c, kind) for kind in dict.fromkeys(c.model.kinds))
    yield partial(embedding_unit, c, alone=True)
    yield partial(output_unit, c, owns_weight=True, shared=False)
    if c.model.mtp:
        yield partial(mtp_unit, c, owns_embedding=False)
