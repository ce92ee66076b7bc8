"""When each tensor of a unit is allocated and freed, in order: what `simulate.py` adds up, one by one.

An op's scratch is there before its results: the gathered input of a linear, or its output before the reduce-scatter.
`results_first` is the other order, as of kernels that allocate a workspace last.

Results of Ulysses context parallelism's all-to-all are made on a stream of their own (TransformerEngine
`pytorch/attention/dot_product_attention/context_parallel.py`, flash_attn_a2a_communicate: cp_stream), which the allocator keeps apart;
what comes before the attention is there once more, in another order.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

from ..modules.context_parallel import EXCHANGES
from ..tape.events import GRADIENT
from ..tape.ops import Part, Unit
from ..tape.simulate import Machine, play
from ..tape.tensor import Tensor

CP_STREAM = "cp_stream"


class Change(NamedTuple):
    """A storage that is allocated, of so many bytes on a stream, or freed (-1 bytes). `slope`: bytes more for every unit by which the
    rows of the experts are above those of balanced routing."""

    storage: str
    nbytes: int
    stream: str = ""
    slope: float = 0.0

    def bytes_at(self, excess: float) -> int:
        """Bytes with so many more rows than balanced routing gives."""
        return max(self.nbytes + int(self.slope * excess), 0)


class Lifetimes(NamedTuple):
    """Changes of a unit's forward and backward. Its entry and the gradient of its exit come from its neighbours; it hands its exit
    and the gradient of its entry over: the storages of these."""

    forward: tuple[Change, ...]
    backward: tuple[Change, ...]
    entry: str
    exit: str
    exit_grad: str
    entry_grad: str


class _Recorder(Machine):
    def __init__(self, *, results_first: bool) -> None:
        super().__init__()
        self.results_first = results_first
        self.changes: list[Change] = []
        self.pending: list[Tensor] = []
        self.split = 0

    def allocate(self, item: Tensor) -> None:
        if self.phase == "backward" and not self.split:
            self.split = len(self.changes)
        if item.storage not in self.live:
            self.pending.append(item)
        super().allocate(item)

    def free(self, storage: str) -> None:
        if storage in self.live:
            self.flush()
            self.changes.append(Change(storage, -1))
        super().free(storage)

    def flush(self, stream: str = "") -> None:
        self.changes += [Change(item.storage, item.nbytes, stream) for item in self.pending]
        self.pending.clear()

    def record(self, op: str, part: Part, scratch: tuple[Tensor, ...]) -> None:
        stream = CP_STREAM if part in EXCHANGES else ""
        own = [Change(f"scratch {index}", t.nbytes) for index, t in enumerate(scratch)]
        if part == EXCHANGES[int(self.phase == "backward")]:  # whole sequences are put in order, one after the other
            own.append(Change("scratch in order", max(item.nbytes for item in self.pending), stream))
        if self.results_first:
            self.flush(stream)
        self.changes += own
        self.flush(stream)
        super().record(op, part, scratch)
        self.changes += [Change(one.storage, -1) for one in own]


def lifetimes(unit: Unit, *, results_first: bool = False) -> Lifetimes:
    """What a unit allocates and frees, in order."""
    machine = _Recorder(results_first=results_first)
    play(unit, machine)
    split = machine.split
    entry, out = unit.entry, unit.exit
    return Lifetimes(
        tuple(machine.changes[:split]),
        tuple(machine.changes[split:]),
        entry.storage if entry else "",
        out.storage if out else "",
        f"{GRADIENT}{out.name}" if out else "",
        machine.grads.get(entry.name, "") if entry else "",
    )


def with_slopes(balanced: Lifetimes, uneven: Lifetimes, excess: float) -> Lifetimes:
    """The lifetimes of a unit with the slopes that its sizes with so many more rows show."""
    return balanced._replace(
        forward=tuple(map(_sloped, balanced.forward, uneven.forward, repeat(excess))),
        backward=tuple(map(_sloped, balanced.backward, uneven.backward, repeat(excess))),
    )


def _sloped(balanced: Change, uneven: Change, excess: float) -> Change:
    assert balanced.storage == uneven.storage
    return balanced._replace(slope=(uneven.nbytes - balanced.nbytes) / excess)
