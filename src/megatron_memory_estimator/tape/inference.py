"""A unit's forward without gradients: nothing is kept for a backward."""

from __future__ import annotations

from functools import reduce

from .ops import Unit
from .simulate import Machine
from .tensor import largest


def forward_peak(unit: Unit) -> int:
    """Most bytes of the unit's own tensors while it runs forward without gradients, its input among them."""
    machine = Machine()
    if unit.entry is not None:
        machine.allocate(unit.entry)
    keep = frozenset({unit.exit.storage}) if unit.exit is not None else frozenset[str]()
    machine.forward(unit.items, keep, saving=False)
    return reduce(largest, (event.nbytes for event in machine.events))
