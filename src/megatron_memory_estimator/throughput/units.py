"""Seconds of one microbatch through a unit: its ops forward, then backward in reverse, what a checkpoint runs again in between.

The walk is that of `simulate.py`: an op has a backward where something it wrote has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..features.cuda_graphs import captures, in_graph
from ..modules.context import Context
from ..tape.ops import Item, Op, Recompute, Unit, flattened
from ..tape.tensor import Tensor
from .machine import Machine
from .ops import Cost, backward, forward, together, total

CALL = 0.12e-3
"""Seconds that a CPU needs to launch a module or a function of PyTorch, with its autograd node: judgement, after looking at
host-bound published runs (docs/explanation/throughput.md)."""
HOST_BACKWARD = 1.3
"""The same of a backward, relative to its forward (judgement)."""
CHECKPOINT = 0.5e-3
"""Seconds that a CPU needs for a checkpoint beside running its ops again: random states, and a graph of its own (judgement, after
looking at Moonlight's recomputation)."""
GRACE = 1.25
"""Launch times of a Grace CPU relative to an x86 one (judgement, after looking at runs on GB200)."""

NAME = itemgetter(Tensor._fields.index("name"))


class Passed(NamedTuple):
    """Seconds of one unit and microbatch. `recompute` is what its backward runs again; host times cover eager launches, `checkpoint`
    those of one checkpoint around it all."""

    forward: Cost = Cost()
    backward: Cost = Cost()
    recompute: Any = 0.0
    host: Any = 0.0
    host_backward: Any = 0.0
    checkpoint: float = 0.0


Name = tuple[Any, ...]
"""What tells the cost of an op from others of its context: its name, and those of its tensors."""


class Behind(NamedTuple):
    """The backward of an op: its seconds, and the names of the tensors that have a gradient after it."""

    cost: Cost
    gives: tuple[str, ...]


@dataclass(frozen=True)
class Costs:
    """Seconds of ops, and of sequences of them there and back: units that differ only in what is recomputed share them."""

    forward: dict[Name, Cost] = field(default_factory=dict)
    backward: dict[tuple[Any, ...], Behind] = field(default_factory=dict)
    both: dict[tuple[Name, ...], tuple[Cost, Cost]] = field(default_factory=dict)


def passed(m: Machine, c: Context, unit: Unit, known: Costs | None = None) -> Passed:
    """One microbatch through a unit. `known` are costs of the same ops in another unit of the same context."""
    walk = _Walk(m, c, known or Costs())
    ops = tuple(flattened(unit.items))
    names = tuple(map(walk.name, ops))
    if names not in walk.known.both:
        last = (
            {unit.exit.name}
            if unit.exit is not None
            else {t.name for op in flattened(unit.items[-1:]) for t in op.writes}
        )
        walk.known.both[names] = walk.run(ops), walk.back(ops, last)
    there, back = walk.known.both[names]
    again, host = map(total, zip(*walk.between(unit.items), strict=True))
    return Passed(there, back, again, walk.launched(unit.items), host, walk.checkpoint)


class _Walk:
    def __init__(self, m: Machine, c: Context, known: Costs) -> None:
        self.m, self.c, self.known = m, c, known
        slow = GRACE if m.gpu.host == "grace" else 1.0
        self.call = 0.0 if c.training.cuda_graph_impl == "full_iteration" else CALL * slow * m.efficiency.host
        self.checkpoint = self.call * CHECKPOINT / CALL
        self.graphs = captures(c.training)
        self.names: dict[int, Name] = {}

    def run(self, ops: Iterable[Op]) -> Cost:
        """Every op once, forward."""
        return together([self._forward(op) for op in ops])

    def _forward(self, op: Op) -> Cost:
        name = self.name(op)
        cost = self.known.forward.get(name)
        if cost is None:
            cost = self.known.forward[name] = forward(self.m, self.c, op)
        return cost

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

    def between(self, items: Sequence[Item]) -> Iterator[tuple[Any, float]]:
        """Seconds of what each checkpoint runs again in the backward, and of launches there."""
        for item in reversed(items):
            if isinstance(item, Recompute):
                yield self.run(flattened(item.ops)).total, self.checkpoint
                yield 0.0, self.launched(item.ops)
                yield from self.between(item.ops)
        yield 0.0, HOST_BACKWARD * self.launched([item for item in items if isinstance(item, Op)])

    def back(self, ops: Sequence[Op], grads: set[str]) -> Cost:
        """Every op backward, in reverse, from the tensors that have a gradient first."""
        found: list[Cost] = []
        for op in reversed(ops):
            name = self.name(op)
            _, reads, writes, *_ = name
            incoming = [tensor in grads for tensor in writes]
            if not any(incoming):
                continue
            grads.difference_update(writes)
            key = (name, *incoming, *[tensor in grads for tensor in reads])
            if key not in self.known.backward:
                taken = {tensor for tensor, given in zip(writes, incoming, strict=True) if given}
                self.known.backward[key] = self._backward(op, taken, grads)
            behind = self.known.backward[key]
            found.append(behind.cost)
            grads.update(behind.gives)
        return together(found)

    def _backward(self, op: Op, incoming: set[str], grads: set[str]) -> Behind:
        stops = {t.name for t in op.stops}
        gives = tuple(t.name for t in op.reads if t.differentiable and t.name not in stops)
        return Behind(backward(self.m, self.c, op, incoming, grads), gives)

    def name(self, op: Op) -> Name:
        """The name of an op."""
        name = self.names.get(id(op))
        if name is None:
            fields = (op.reads, op.writes, op.saves, op.forward, op.backward, op.passes, op.stops)
            name = self.names[id(op)] = (op.name, *[tuple(map(NAME, tensors)) if tensors else () for tensors in fields])
        return name
