"""Seconds of one microbatch through a unit: its ops forward, then backward in reverse, what a checkpoint runs again in between.

The walk is that of `simulate.py`: an op has a backward where something it wrote has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ..features.cuda_graphs import captures, in_graph
from ..modules.context import Context
from ..tape.ops import Item, Op, Unit, flattened
from ..tape.tensor import Tensor
from .machine import Machine
from .ops import Cost, backward, forward

CALL = 0.12e-3
"""Seconds that a CPU needs to launch a module or a function of PyTorch, with its autograd node: judgement, after looking at
host-bound published runs (docs/throughput.md)."""
HOST_BACKWARD = 1.3
"""The same of a backward, relative to its forward (judgement)."""
CHECKPOINT = 0.5e-3
"""Seconds that a CPU needs for a checkpoint beside running its ops again: random states, and a graph of its own (judgement, after
looking at Moonlight's recomputation)."""
GRACE = 1.25
"""Launch times of a Grace CPU relative to an x86 one (judgement, after looking at runs on GB200)."""

NAME = itemgetter(Tensor._fields.index("name"))


class Passed(NamedTuple):
    """Seconds of one unit and microbatch. `recompute` is what its backward runs again; host times cover eager launches."""

    forward: Cost = Cost()
    backward: Cost = Cost()
    recompute: Any = 0.0
    host: Any = 0.0
    host_backward: Any = 0.0


Costs = dict[tuple[Any, ...], Cost]
"""Seconds of ops by their names and those of their tensors: units that differ only in what is recomputed share them."""


def passed(m: Machine, c: Context, unit: Unit, known: Costs | None = None) -> Passed:
    """One microbatch through a unit. `known` are costs of the same ops in another unit of the same context."""
    walk = _Walk(m, c, {} if known is None else known)
    if unit.exit is not None:
        walk.grads.add(unit.exit.name)
    else:
        walk.grads.update(t.name for op in flattened(unit.items[-1:]) for t in op.writes)
    there = walk.run(unit.items)
    host = walk.launched(unit.items)
    walk.back(unit.items)
    return Passed(there, walk.behind, walk.again, host, walk.host)


class _Walk:
    def __init__(self, m: Machine, c: Context, known: Costs) -> None:
        self.m, self.c, self.known = m, c, known
        self.grads: set[str] = set()
        self.behind = Cost()
        self.again: Any = 0.0
        self.host: Any = 0.0
        slow = GRACE if m.gpu.host == "grace" else 1.0
        self.call = 0.0 if c.training.cuda_graph_impl == "full_iteration" else CALL * slow * m.efficiency.host
        self.checkpoint = self.call * CHECKPOINT / CALL
        self.graphs = captures(c.training)
        self.names: dict[int, tuple[Any, ...]] = {}

    def run(self, items: Iterable[Item]) -> Cost:
        """Every op once, forward."""
        total = Cost()
        for op in flattened(items):
            key = self.name(op)
            if key not in self.known:
                self.known[key] = forward(self.m, self.c, op)
            total = total.plus(self.known[key])
        return total

    def launched(self, items: Iterable[Item]) -> float:
        """Seconds of launching a forward; neighbours in a CUDA graph are one launch."""
        calls, graphed = 0, False
        if not self.graphs:
            return sum(op.calls for op in flattened(items)) * self.call
        for op in flattened(items):
            inside = in_graph(self.c.training, op.part)
            calls += (0 if graphed else 1) if inside else op.calls
            graphed = inside
        return calls * self.call

    def back(self, items: Sequence[Item]) -> None:
        """Every op backward, in reverse; a checkpoint runs forward again first."""
        for item in reversed(items):
            if isinstance(item, Op):
                self._op(item)
                continue
            self.again = self.again + self.run(item.ops).total
            self.host = self.host + self.checkpoint + self.launched(item.ops)
            self.back(item.ops)
        self.host = self.host + HOST_BACKWARD * self.launched([item for item in items if isinstance(item, Op)])

    def _op(self, op: Op) -> None:
        incoming = {t.name for t in op.writes} & self.grads
        if not incoming:
            return
        self.grads -= incoming
        key = (self.name(op), *[t.name in incoming for t in op.writes], *[t.name in self.grads for t in op.reads])
        if key not in self.known:
            self.known[key] = backward(self.m, self.c, op, incoming, self.grads)
        self.behind = self.behind.plus(self.known[key])
        stops = {t.name for t in op.stops}
        self.grads.update(t.name for t in op.reads if t.differentiable and t.name not in stops)

    def name(self, op: Op) -> tuple[Any, ...]:
        """What tells the cost of an op from others of its context."""
        if id(op) not in self.names:
            fields = (op.reads, op.writes, op.saves, op.forward, op.backward, op.passes, op.stops)
            self.names[id(op)] = (op.name, *[tuple(map(NAME, tensors)) for tensors in fields])
        return self.names[id(op)]
