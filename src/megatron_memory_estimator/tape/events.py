"""Memory events of a unit, and why a tensor is alive at one."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .ops import Part
from .tensor import Tensor

WAITING = "(waits for its backward)"
"""What the first event of a backward is called: the gradient of the unit's output is there and nothing runs."""


GRADIENT, ADDED = "grad:", "grad+:"
"""Beginnings of the storages of gradients, and of a further contribution to one."""
Phase = Literal["forward", "recompute", "backward"]
Role = Literal["saved", "gradient", "scratch", "in use", "handed on"]
"""Why a tensor is alive: kept for a backward, a gradient on its way back, scratch of the op that runs, read or written by it, or the
output that the next layer reads."""


class Event(NamedTuple):
    """One moment: the phase, the op that runs and what it is a part of, the bytes alive."""

    phase: Phase
    op: str
    nbytes: int
    part: Part = ""


class Saver(NamedTuple):
    """An op, or a checkpoint, that keeps a tensor for its backward."""

    name: str
    part: Part


class Live(NamedTuple):
    """A tensor alive at a moment: its role, who saved it (each once), and the op that runs with its phase."""

    tensor: Tensor
    role: Role
    saved_by: tuple[Saver, ...] = ()
    op: str = ""
    phase: Phase = "forward"


class Trace(NamedTuple):
    """Events of one forward and one backward of a unit, in bytes alive of this unit's own tensors.

    The backward begins with the event at which the gradient of the unit's output is there and nothing runs.
    """

    forward: tuple[Event, ...]
    backward: tuple[Event, ...]
    saved_bytes: int
    saved: tuple[Live, ...]
