"""The tensors alive at every event of a unit."""

from __future__ import annotations

from .events import Live
from .ops import Part, Unit
from .simulate import Machine, play
from .tensor import Tensor


class Watcher(Machine):
    """Notes the tensors of every event."""

    def __init__(self) -> None:
        super().__init__()
        self.through: list[tuple[Live, ...]] = []

    def record(self, op: str, part: Part, scratch: tuple[Tensor, ...]) -> None:
        self.through.append((*self.alive(op), *(Live(t, "scratch", (), op, self.phase) for t in scratch)))
        super().record(op, part, scratch)


def alive_through(unit: Unit) -> tuple[tuple[Live, ...], ...]:
    """The unit's tensors alive at each of its events."""
    machine = Watcher()
    play(unit, machine)
    return tuple(machine.through)
