"""Seconds of one microbatch through a unit: its ops forward, then backward in reverse, what a checkpoint runs again in between.

The walk is that of `simulate.py`: an op has a backward where something it wrote has a gradient.

Seconds of one op, forward and backward, from what it declares: kernels, what it moves through memory, what it sends.

A memory-bound op reads and writes each of its tensors once: forward what it reads, writes and keeps beyond that; backward what it
kept, the gradients of what it wrote and of what it read. Scratch is written and read. A view moves nothing; a gradient that is
passed on as it is neither; one that is added to another is read with it and written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import reduce
from operator import add, itemgetter
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..features.cuda_graphs import captures, in_graph
from ..modules.context import Context
from ..tape.ops import Item, Op, Recompute, Unit, flattened
from ..tape.tensor import DTYPE_BYTES, Tensor
from ..tape.work import Attention, Beside, Gemm, Send, Streamed
from . import links
from .kernels import WIDE, attention, product, products_behind, streamed
from .machine import Machine

HIDDEN: dict[Beside, float] = {"": 0.0, "userbuffers": 0.7, "wgrad": 0.5, "layers": 0.75}
"""Share of a transfer that hides behind what runs beside it: judgement, after looking at published steps."""
RING_EXPOSED = 0.1
"""Share of a ring's transfers that shows although attention runs beside them (judgement)."""


class Cost(NamedTuple):
    """Seconds of an op in one direction: its kernels, and what shows of what it sends, by axis."""

    compute: Any = 0.0
    tp: Any = 0.0
    cp: Any = 0.0
    ep: Any = 0.0

    @property
    def total(self) -> Any:
        """Kernels and transfers."""
        return self.compute + self.tp + self.cp + self.ep


def together(costs: Iterable[Cost]) -> Cost:
    """Several, one after the other."""
    return Cost(*map(total, zip(*costs, strict=True)))


def total(seconds: tuple[Any, ...]) -> Any:
    """The sum of seconds; nothing is not added to an array."""
    return reduce(add, [one for one in seconds if type(one) is not float or one], 0.0)


def view(t: Tensor) -> bool:
    """Whether a tensor shows the memory of another one."""
    return t.storage != t.name


def moves(op: Op) -> bool:
    """Whether an op moves its tensors through memory in kernels that do nothing else."""
    return not (op.work or op.sends) or any(isinstance(one, Streamed) for one in op.work)


def forward_bytes(op: Op) -> Any:
    """Bytes that the forward of a memory-bound op moves; one that reads and writes nothing keeps what others made."""
    if not (op.reads or op.writes or op.forward):
        return 0
    known = {t.storage for t in (*op.reads, *op.writes)}
    made = [t for t in op.writes if not view(t)] + [t for t in op.saves if t.storage not in known]
    if not made and not op.forward:
        return 0
    return sum(t.nbytes for t in (*_distinct(op.reads), *made)) + 2 * sum(t.nbytes for t in op.forward)


def backward_bytes(op: Op, incoming: set[str], known: set[str]) -> Any:
    """Bytes that the backward of a memory-bound op moves, with the tensors that have a gradient before it: those it wrote, others."""
    passes, stops = {t.name for t in op.passes}, {t.name for t in op.stops}
    made = [t for t in _distinct(op.reads) if t.differentiable and t.name not in passes | stops]
    if not made and not op.backward:
        return added_bytes(op, known)
    taken = (*op.saves, *(t for t in op.writes if t.name in incoming))
    return sum(t.nbytes for t in (*made, *taken)) + 2 * sum(t.nbytes for t in op.backward) + added_bytes(op, known)


def added_bytes(op: Op, known: set[str]) -> Any:
    """Bytes that move where the gradients of what an op reads are added to others: two are read, one is written."""
    stops = {t.name for t in op.stops}
    return sum(
        3 * t.nbytes for t in _distinct(op.reads) if t.differentiable and t.name in known and t.name not in stops
    )


def forward(m: Machine, c: Context, op: Op) -> Cost:
    """Seconds of an op's forward."""
    compute: Any = 0.0
    core: Any = 0.0
    nbytes: Any = forward_bytes(op) if moves(op) else 0
    flops: Any = 0
    for one in op.work:
        if isinstance(one, Gemm):
            compute = compute + product(m, one)
        elif isinstance(one, Attention):
            core = attention(m, one)[0]
        else:
            nbytes, flops = nbytes + one.forward, flops + one.flops + WIDE * one.wide
    return _cost(m, c, compute, core, _filled(op, nbytes), flops, op.sends)


def backward(m: Machine, c: Context, op: Op, incoming: set[str], known: set[str]) -> Cost:
    """Seconds of an op's backward, with the tensors that have a gradient before it."""
    compute: Any = 0.0
    core: Any = 0.0
    nbytes: Any = backward_bytes(op, incoming, known) if moves(op) else added_bytes(op, known)
    flops: Any = 0
    for one in op.work:
        if isinstance(one, Gemm):
            compute = compute + products_behind(m, one, grad_bytes(c))
        elif isinstance(one, Attention):
            core = attention(m, one)[1]
        else:
            nbytes, flops = nbytes + one.backward, flops + 2 * (one.flops + WIDE * one.wide)
    return _cost(m, c, compute, core, _filled(op, nbytes), flops, op.returns)


def grad_bytes(c: Context) -> int:
    """Bytes of an element of a main gradient."""
    return DTYPE_BYTES[c.training.grad_dtype]


def _filled(op: Op, nbytes: Any) -> Any:
    return nbytes if isinstance(op.filled, float) and op.filled == 1 else nbytes * op.filled


def _cost(m: Machine, c: Context, compute: Any, core: Any, nbytes: Any, flops: Any, sends: tuple[Send, ...]) -> Cost:
    if not isinstance(nbytes, int) or nbytes:
        compute = compute + streamed(m, nbytes, flops)
    found = Cost(compute + core)
    for send in sends:
        shown = transfer(m, c, send, core)
        found = found._replace(**{send.axis: getattr(found, send.axis) + shown})
    return found


def transfer(m: Machine, c: Context, one: Send, beside: Any) -> Any:
    """Seconds of a transfer that show; `beside` is the attention that a ring runs beside."""
    if one.kind == "ring":
        time = links.collective(m, "all_gather", one.nbytes, one.ranks, one.stride)
        return links.highest(time - beside * (one.ranks - 1) / one.ranks, RING_EXPOSED * time)
    if one.kind == "dispatch":
        time = links.dispatch(m, one)
    else:
        time = links.collective(m, one.kind, one.nbytes, one.ranks, one.stride)
    return time * (1 - HIDDEN[one.beside])


def _distinct(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple({t.name: t for t in tensors}.values())


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
    """Seconds of one unit and microbatch. `recompute` is what its backward runs again; host times are those until all is launched, with
    waits for the GPU, `checkpoint` those of one checkpoint around it all."""

    forward: Cost = Cost()
    backward: Cost = Cost()
    recompute: Any = 0.0
    host: Any = 0.0
    host_backward: Any = 0.0
    checkpoint: float = 0.0


class Name(NamedTuple):
    """The names that tell the cost of an op from others of its context: its own, and those of its tensors."""

    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    saves: tuple[str, ...]
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    passes: tuple[str, ...]
    stops: tuple[str, ...]


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
    ahead = walk.launched(unit.items)
    if not c.training.overlap_moe_expert_parallel_comm and any(op.waits for op in ops):
        ahead = links.highest(ahead, walk.waited(ops))
    return Passed(there, back, again, ahead, host, walk.checkpoint)


def until_waited(passes: Iterable[tuple[Any, Any]]) -> Any:
    """Seconds of launches and their kernels until the CPU waits for the last of them, from a moment at which both had nothing to do.

    A kernel runs when it is launched, and when the one before it is done: behind a wait the GPU idles until the CPU is ahead again.
    """
    host: Any = 0.0
    device: Any = 0.0
    for launch, kernel in passes:
        host = host + launch
        device = links.highest(device, host) + kernel
    return links.highest(host, device)


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

    def launched(self, items: Iterable[Item]) -> Any:
        """Seconds of launching a forward."""
        return sum(self.calls(flattened(items))) * self.call

    def calls(self, ops: Iterable[Op]) -> Iterator[Any]:
        """Launches of each op; neighbours in a CUDA graph are one launch."""
        graphed = False
        for op in ops:
            inside = bool(self.graphs) and in_graph(self.c.training, op.part)
            yield (0 if graphed else 1) if inside else op.calls
            graphed = inside

    def waited(self, ops: Sequence[Op]) -> Any:
        """Seconds from one wait of the CPU to the same one of the next layer."""
        start = next(at for at, op in enumerate(ops) if op.waits)
        passes = [(calls * self.call, self._forward(op).total) for op, calls in zip(ops, self.calls(ops), strict=True)]
        return until_waited((*passes[start:], *passes[:start]))

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
            incoming = [tensor in grads for tensor in name.writes]
            if not any(incoming):
                continue
            grads.difference_update(name.writes)
            key = (name, *incoming, *[tensor in grads for tensor in name.reads])
            if key not in self.known.backward:
                taken = {tensor for tensor, given in zip(name.writes, incoming, strict=True) if given}
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
        """The names of an op."""
        name = self.names.get(id(op))
        if name is None:
            fields = (op.reads, op.writes, op.saves, op.forward, op.backward, op.passes, op.stops)
            name = self.names[id(op)] = Name(op.name, *[tuple(map(NAME, tensors)) for tensors in fields])
        return name
