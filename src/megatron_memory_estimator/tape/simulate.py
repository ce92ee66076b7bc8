"""From a declared list of operations to memory events: what is alive at each moment of a forward and a backward.

A module declares its forward as a list of `Op`: which tensors it reads and writes, what autograd keeps for its
backward, and which scratch it needs in either direction. Everything else is derived here, by the rules that PyTorch
follows:

- forward: a tensor lives from the op that writes it to the last op that reads or holds it, and on to the backward of
  every op that saved it;
- backward: ops run in reverse; the gradient of a tensor has the tensor's shape, is allocated by the first backward that
  produces it and freed by the backward that consumes it; later contributions are added in place; what an op saved is
  freed when its backward returns;
- a checkpoint runs its ops without saving, keeps its inputs, and runs them again before its backward, through which the gradients
  of its outputs stay (arguments of CheckpointFunction.backward): what is added to one of them is a tensor of its own;
- an output-discarding checkpoint also drops its outputs once they are consumed, and runs its ops again when the
  gradient reaches its hook.

Rules: PyTorch autograd; Megatron-LM `megatron/core/tensor_parallel/random.py` (CheckpointFunction,
CheckpointWithoutOutput).

The tensors alive at every event of a unit.

A unit's forward without gradients: nothing is kept for a backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce

from .events import ADDED, GRADIENT, WAITING, Event, Live, Phase, Saver, Trace
from .ops import Item, Op, Part, Recompute, Unit, inputs, makes, uses
from .tensor import Tensor, largest


class Machine:
    """Plays a unit's ops forward and backward and records what is alive. `watch` asks for the tensors of one event."""

    def __init__(self, watch: int = -1) -> None:
        self.live: dict[str, Tensor] = {}
        self.nbytes = 0
        self.savers: dict[str, list[Saver]] = {}
        self.grads: dict[str, str] = {}
        self.grad_users: dict[str, int] = {}
        self.events: list[Event] = []
        self.watch = watch
        self.seen: tuple[Live, ...] = ()
        self.phase: Phase = "forward"
        self.outputs: dict[str, tuple[Tensor, ...]] = {}
        self.delayed: dict[str, Saver] = {}
        self.held: Counter[str] = Counter()
        self.beside: tuple[Tensor, ...] = ()

    # -- memory ---------------------------------------------------------------------------------------------------
    def allocate(self, item: Tensor) -> None:
        if item.storage not in self.live:
            self.live[item.storage] = item
            self.nbytes = self.nbytes + item.nbytes

    def free(self, storage: str) -> None:
        item = self.live.pop(storage, None)
        if item is not None:
            self.nbytes = self.nbytes - item.nbytes

    def record(self, op: str, part: Part, scratch: tuple[Tensor, ...]) -> None:
        scratch = (*scratch, *self.beside)
        extra = sum(t.nbytes for t in scratch)
        if len(self.events) == self.watch:
            self.seen = (*self.alive(op), *(Live(t, "scratch", (), op, self.phase) for t in scratch))
        self.events.append(Event(self.phase, op, self.nbytes + extra, part))

    def alive(self, op: str = "") -> Iterator[Live]:
        for storage, item in self.live.items():
            savers = self.savers.get(storage)
            if storage.startswith(GRADIENT):
                yield Live(item, "gradient", (), op, self.phase)
            elif savers:
                yield Live(item, "saved", tuple(dict.fromkeys(savers)), op, self.phase)
            else:
                yield Live(item, "in use" if op else "handed on", (), op, self.phase)

    def keep(self, item: Tensor, by: Saver) -> None:
        self.allocate(item)
        self.savers.setdefault(item.storage, []).append(by)

    def release(self, item: Tensor, by: Saver) -> None:
        savers = self.savers.get(item.storage)
        if savers and by in savers:
            savers.remove(by)
            if not savers:
                del self.savers[item.storage]
                self.free(item.storage)

    # -- forward --------------------------------------------------------------------------------------------------
    def forward(self, items: Sequence[Item], keep: frozenset[str], saving: bool) -> None:
        last: dict[str, int] = {}
        dropped: dict[int, list[str]] = {}  # outputs of output-discarding checkpoints, by their last consumer
        for index, item in enumerate(items):
            for t in uses(item):
                last[t.storage] = index
        for index, item in enumerate(items):
            if isinstance(item, Op):
                if not item.writes:
                    self.delayed.update((t.name, Saver(item.name, item.part)) for t in item.wgrad)
                for t in item.writes:
                    self.allocate(t)
                kept = {t.storage for t in (*item.reads, *item.writes)}
                scratch = item.forward
                if not saving:
                    made = () if item.compiled else item.saves
                    scratch = (*scratch, *(t for t in made if t.storage not in kept))
                else:
                    for t in item.saves:
                        self.keep(t, Saver(item.name, item.part))
                self.record(item.name, item.part, scratch)
            else:
                outputs = tuple(t for t in makes(item) if last.get(t.storage, -1) > index or t.storage in keep)
                self.outputs[item.name] = outputs
                held = keep | {t.storage for t in outputs} | {s for s, i in last.items() if i >= index}
                self.forward(item.ops, held, saving=False)
                if saving:
                    for t in item.stored or inputs(item):
                        self.keep(t, Saver(item.name, item.part))
            for t in (*uses(item), *makes(item)):
                storage = t.storage
                if last.get(storage, -1) <= index and storage not in keep and not self.savers.get(storage):
                    self.free(storage)
            if saving:
                if isinstance(item, Recompute) and item.hook:
                    for t in self.outputs[item.name]:
                        dropped.setdefault(last.get(t.storage, -1), []).append(t.storage)
                for storage in dropped.pop(index, ()):
                    self.free(storage)

    # -- backward -------------------------------------------------------------------------------------------------
    def backward(self, items: Sequence[Item]) -> None:
        pending = [item for item in items if isinstance(item, Recompute) and item.hook]
        for item in reversed(items):
            for region in [r for r in pending if item.name.startswith(r.hook)]:
                pending.remove(region)
                self.rerun(region)
            if isinstance(item, Op):
                self._backward_op(item)
                continue
            grads = self.hold_grads(self.outputs[item.name])
            if item.hook:
                assert item not in pending, f"{item.name}: no op behind it is {item.hook}, at which it should run again"
                kept = inputs(item)
            else:
                kept = () if item.stored else inputs(item)
                for t in inputs(item):
                    self.allocate(t)
                for t in item.stored:  # the inputs are whole again
                    self.release(t, Saver(item.name, item.part))
                self.rerun(item)
            self.backward(item.ops)
            for storage in grads:
                self.let_go(storage)
            if item.hook:
                for t in self.outputs[item.name]:
                    self.release(t, Saver(item.name, item.part))
            for t in (*self.outputs[item.name], *(inputs(item) if item.stored else ())):
                if not self.savers.get(t.storage):
                    self.free(t.storage)
            for t in kept:
                self.release(t, Saver(item.name, item.part))

    def rerun(self, region: Recompute) -> None:
        """Run a checkpoint's ops again, now saving; its outputs stay until their consumers are done."""
        phase, self.phase, self.beside = self.phase, "recompute", region.beside
        keep = frozenset(t.storage for t in (*self.outputs[region.name], *inputs(region)))
        self.forward(region.ops, keep, saving=True)
        if region.hook:
            for t in self.outputs[region.name]:
                self.keep(t, Saver(region.name, region.part))
        self.phase, self.beside = phase, ()

    def _backward_op(self, op: Op) -> None:
        saver = Saver(op.name, op.part)
        incoming = [t.name for t in op.writes if t.name in self.grads]
        if incoming:
            added: list[Tensor] = []
            passes, stops = {t.name for t in op.passes}, {t.name for t in op.stops}
            for t in {t.name: t for t in op.reads}.values():
                if not t.differentiable or t.name in stops:
                    continue
                if t.name in passes:
                    if t.name not in self.grads:
                        self._share(t.name, self.grads[incoming[0]])
                elif self.held[self.grads.get(t.name, "")]:  # the sum is a tensor of its own
                    self.drop_grad(t.name)
                    self.new_grad(t)
                elif t.name in self.grads:
                    added.append(Tensor(f"{GRADIENT}{t.name}", t.shape, t.dtype, t.nbytes, f"{ADDED}{t.name}"))
                else:
                    self.new_grad(t)
            self.record(op.name, op.part, (*op.backward, *added))
            for name in incoming:
                self.drop_grad(name)
        for t in op.wgrad:
            if op.writes and t.name in self.delayed:
                self.keep(t, self.delayed[t.name])
        if not op.writes:  # delayed weight gradients
            self.record(op.name, op.part, op.backward)
            for t in op.wgrad:
                self.release(t, saver)
        for t in op.saves:
            self.release(t, saver)

    def new_grad(self, item: Tensor) -> None:
        storage = f"{GRADIENT}{item.name}"
        self.allocate(Tensor(storage, item.shape, item.dtype, item.nbytes, storage))
        self._share(item.name, storage)

    def _share(self, name: str, storage: str) -> None:
        self.grads[name] = storage
        self.grad_users[storage] = self.grad_users.get(storage, 0) + 1

    def hold_grads(self, outputs: tuple[Tensor, ...]) -> list[str]:
        """Keep the gradients of these tensors until they are let go."""
        found = [self.grads[t.name] for t in outputs if t.name in self.grads]
        for storage in found:
            self.grad_users[storage] += 1
        self.held.update(found)
        return found

    def let_go(self, storage: str) -> None:
        """The gradient is held no longer."""
        self.held[storage] -= 1
        self.unshare(storage)

    def drop_grad(self, name: str) -> None:
        self.unshare(self.grads.pop(name))

    def unshare(self, storage: str) -> None:
        self.grad_users[storage] -= 1
        if not self.grad_users[storage]:
            del self.grad_users[storage]
            self.free(storage)


def play(unit: Unit, machine: Machine) -> tuple[int, int, tuple[Live, ...]]:
    """Play a unit forward and backward: how many events the forward has, and what is kept between the two."""
    keep: frozenset[str] = frozenset()
    if unit.entry is not None:
        machine.allocate(unit.entry)
    if unit.exit is not None:
        keep = frozenset({unit.exit.storage})
    machine.forward(unit.items, keep, saving=True)
    split = len(machine.events)
    if unit.exit is not None and not machine.savers.get(unit.exit.storage):
        machine.free(unit.exit.storage)
    saved_bytes, saved = machine.nbytes, tuple(machine.alive())
    machine.phase = "backward"
    if unit.exit is not None:
        machine.new_grad(unit.exit)
    else:
        last = unit.items[-1]
        assert isinstance(last, Op)
        for t in last.writes:
            machine.new_grad(t)
    machine.record(WAITING, "", ())
    machine.backward(unit.items)
    return split, saved_bytes, saved


def trace(unit: Unit) -> Trace:
    """Events of one forward and one backward of the unit, and what it keeps between them."""
    machine = Machine()
    split, saved_bytes, saved = play(unit, machine)
    return Trace(tuple(machine.events[:split]), tuple(machine.events[split:]), saved_bytes, saved)


def alive_at(unit: Unit, index: int) -> tuple[Live, ...]:
    """The unit's tensors alive at one event (its index in forward + backward order)."""
    machine = Machine(index)
    play(unit, machine)
    return machine.seen


def leftovers(unit: Unit) -> dict[str, int]:
    """What is still alive after the backward, by storage: the gradient of the entry and nothing else."""
    machine = Machine()
    play(unit, machine)
    return {storage: item.nbytes for storage, item in machine.live.items()}


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


def forward_peak(unit: Unit) -> int:
    """Most bytes of the unit's own tensors while it runs forward without gradients, its input among them."""
    machine = Machine()
    if unit.entry is not None:
        machine.allocate(unit.entry)
    keep = frozenset({unit.exit.storage}) if unit.exit is not None else frozenset[str]()
    machine.forward(unit.items, keep, saving=False)
    return reduce(largest, (event.nbytes for event in machine.events))
