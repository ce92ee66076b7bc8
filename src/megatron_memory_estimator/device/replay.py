"""One rank's run, request by request, on the rules of PyTorch's allocator: what it reserves.

In the order of Megatron-LM:

- building: every parameter; then for each DDP buffer its weights and its gradients, whereupon the parameters' own storage is freed,
  the last parameter first (`megatron/core/distributed/param_and_grad_buffer.py`); then a fp32 copy of what the rank owns of each
  parameter, made through a copy of that part, in the buffer's order (`megatron/core/optimizer/distrib_optimizer.py`);
- steps: the pipeline schedule's forwards and backwards, tensor by tensor; persistent scratch at the first forward, the cached
  weight gradients at the first backward;
- optimizer: moments of each owned part in the first step; what exists only in the step, in every step.

Freed parameters stay cached, and owned parts and moments settle in the gaps that the first forward and backward left: that
is why ranks that own different parameters reserve differently, although they allocate the same.

Plays training steps of a pipeline rank on an allocator, tensor by tensor.

When each tensor of a unit is allocated and freed, in order: what `simulate.py` adds up, one by one.

An op's scratch is there before its results: the gathered input of a linear, or its output before the reduce-scatter.
`results_first` is the other order, as of kernels that allocate a workspace last.

Results of Ulysses context parallelism's all-to-all are made on a stream of their own (TransformerEngine
`pytorch/attention/dot_product_attention/context_parallel.py`, flash_attn_a2a_communicate: cp_stream), which the allocator keeps apart;
what comes before the attention is there once more, in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from random import Random
from typing import NamedTuple

from ..errors import UnsupportedError
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..modules.context_parallel import EXCHANGES
from ..rank.boundary import pipeline_tensors
from ..rank.chunks import ChunkPlan, Run
from ..rank.parts import holds, parameters, parts_of
from ..rank.rank import Rank
from ..rank.schedule import enough_microbatches, every_step
from ..rank.workspaces import Workspace, dummy_wgrads
from ..states.buffers import Buffer
from ..states.kept import Since
from ..states.optimizers import OPTIMIZERS, optimizer_tensors
from ..tape.events import GRADIENT
from ..tape.ops import Part, Unit
from ..tape.simulate import Machine, play
from ..tape.tensor import DTYPE_BYTES, Param, Tensor
from .allocator import Allocator, Block

STEPS = 3
"""Steps that are played: the first without moments, the second with them, and one that shows that nothing grows any more."""
UNEVEN_STEPS = 20
"""The same with sizes that differ from step to step; three times as many change the shares by less than 0.2 %."""


class Replayed(NamedTuple):
    """What torch counts: reserved after building the model and its DDP buffers, and after each step; most allocated until each step."""

    built: int
    reserved: tuple[int, ...]
    allocated: tuple[int, ...]

    @property
    def slack(self) -> int:
        """Most reserved less most allocated."""
        return self.reserved[-1] - self.allocated[-1]


def refusal(job: TrainingJob) -> str:
    """Why the run of a job is not replayed; empty where it is."""
    t = job.training
    reasons = {
        "fully sharded data parallelism": t.use_megatron_fsdp or t.use_torch_fsdp2,
        "weights kept in low precision": bool(t.low_precision_weights),
        "Muon": OPTIMIZERS[t.optimizer].by_matrix,
        "CUDA graphs": t.cuda_graph_impl != "none",
        "overlap_moe_expert_parallel_comm": t.overlap_moe_expert_parallel_comm,
        "activation offloading": t.fine_grained_activation_offloading or bool(t.cpu_offloading_num_layers),
        "the paged stash": t.moe_paged_stash,
        "an offloaded optimizer": t.optimizer_cpu_offload or t.chunked_optimizer_state_offload,
    }
    return ", ".join(name for name, found in reasons.items() if found)


def replay(
    job: TrainingJob,
    rank: Rank,
    place: int = 0,
    *,
    expandable: bool,
    resumed: bool = False,
    results_first: bool = False,
    uneven: Uneven | None = None,
) -> Replayed:
    """What the `place`-th GPU of a pipeline stage reserves; the place decides which parts of the DDP buffers it owns.

    `resumed`: from a checkpoint, with moments from the start and the cache emptied after loading
    (`megatron/training/checkpointing.py`, load_checkpoint). Raises UnsupportedError for what is not replayed.
    """
    reason = refusal(job)
    if reason:
        raise UnsupportedError(f"the allocator's rules are not played with {reason}")
    memory = Allocator(expandable=expandable)
    parts = _build(memory, rank, place)
    built = memory.reserved
    _masters(memory, rank, parts)
    if resumed:
        _optimizer(memory, rank, parts, "first step")
        if not expandable:
            memory.empty_cache()
    player = Player(memory, rank, results_first=results_first, uneven=uneven)
    reserved, allocated = [], []
    for step in range(UNEVEN_STEPS if uneven else STEPS):
        player.step()
        passing = [*_optimizer(memory, rank, parts, "step"), *_optimizer(memory, rank, parts, "optimizer")]
        for block in passing:
            memory.free(block)
        if not step and not resumed:
            _optimizer(memory, rank, parts, "first step")
        reserved.append(memory.reserved)
        allocated.append(memory.most_allocated)
    return Replayed(built, tuple(reserved), tuple(allocated))


Parts = tuple[Buffer, list[int]]
"""A DDP buffer and the elements that the rank owns of each parameter in it."""


def _build(memory: Allocator, rank: Rank, place: int) -> list[Parts]:
    c = rank.context
    sharded = c.training.use_distributed_optimizer
    chunks = [[(p, memory.allocate(_bytes(c, p))) for p in parameters(plan)] for plan in rank.plans]
    found: list[Parts] = []
    for plan, params in zip(rank.plans, chunks, strict=True):
        for buffer in (b for b in rank.buffers if b.chunk == plan.chunk.vp_stage):
            members = [one for one in params if holds(c, buffer, one[0])]
            if sharded:
                memory.allocate(buffer.numel * DTYPE_BYTES[buffer.param_dtype])
            memory.allocate(buffer.numel * DTYPE_BYTES[buffer.grad_dtype])
            for _, block in reversed(members) if sharded else ():
                memory.free(block)
            found.append((buffer, parts_of(rank, buffer, [p for p, _ in members], place)))
    return found


def _bytes(c: Context, param: Param) -> int:
    return param.numel_each * DTYPE_BYTES[param.dtype or c.training.params_dtype]


def _masters(memory: Allocator, rank: Rank, parts: list[Parts]) -> None:
    """What the optimizer makes at once, each through a copy of the part in the model's dtype."""
    each = DTYPE_BYTES[rank.context.training.params_dtype]
    for buffer, sizes in parts:
        for part in sizes:
            for kept in optimizer_tensors(rank.context, buffer):
                if kept.since == "setup":
                    copied = memory.allocate(each * part)
                    memory.allocate(_share(buffer, kept.numel, part) * DTYPE_BYTES[kept.dtype])
                    memory.free(copied)


def _share(buffer: Buffer, numel: int, part: int) -> int:
    """Elements of an optimizer tensor for a part, of `numel` for all that the rank owns."""
    return part * numel // buffer.owned


def _optimizer(memory: Allocator, rank: Rank, parts: Iterable[Parts], since: Since) -> list[Block]:
    """The optimizer's tensors of one lifetime, part by part."""
    found = []
    for buffer, sizes in parts:
        tensors = [item for item in optimizer_tensors(rank.context, buffer) if item.since == since]
        for part in sizes:
            found += [memory.allocate(_share(buffer, one.numel, part) * DTYPE_BYTES[one.dtype]) for one in tensors]
    return found


class Uneven(NamedTuple):
    """Routing that differs from layer to layer and microbatch to microbatch: the rows of a rank are normally distributed about those of
    balanced routing, with this spread. `plans`: the rank's chunks with `excess` times more rows."""

    plans: tuple[ChunkPlan, ...]
    excess: float
    spread: float
    seed: int = 0


class _Part(NamedTuple):
    """A unit of a chunk: its lifetimes, and the cached weight gradients that its backward uses."""

    lifetimes: Lifetimes
    wgrads: tuple[tuple[tuple[int, ...], int], ...]


class _Held(NamedTuple):
    """What a unit keeps of a microbatch, and how many more rows than balanced routing its experts got."""

    blocks: dict[str, Block]
    excess: float


class Player:
    """Plays the forwards and backwards of a rank. Persistent scratch is allocated at once, the cached weight gradients by the first
    backward that uses them."""

    def __init__(self, memory: Allocator, rank: Rank, *, results_first: bool, uneven: Uneven | None = None) -> None:
        self.memory, self.rank, self.results_first, self.uneven = memory, rank, results_first, uneven
        self.draw = Random(uneven.seed if uneven else 0)
        self.known: dict[int, _Part] = {}
        others = uneven.plans if uneven else rank.plans
        self.chunks = [
            [
                self._part(run, other, head=plan.chunk.output and run is plan.runs[-1])
                for run, other in zip(plan.runs, beside.runs, strict=True)
                for _ in range(run.copies)
            ]
            for plan, beside in zip(rank.plans, others, strict=True)
        ]
        self.kept: dict[tuple[int, int], list[_Held]] = {}
        self.inputs: dict[tuple[int, int], list[Block]] = {}
        self.missing = {shape: nbytes for chunk in self.chunks for part in chunk for shape, nbytes in part.wgrads}
        for workspace in rank.workspaces:
            if _shape(workspace) not in self.missing:
                memory.allocate(workspace.nbytes)
        for t in pipeline_tensors(rank, "F"):
            memory.allocate(t.nbytes)

    def _part(self, run: Run, other: Run, *, head: bool) -> _Part:
        key = id(run.unit)
        if key not in self.known:
            wgrads = reversed(dummy_wgrads(self.rank.context, list(run.params), head=head))
            played = lifetimes(run.unit, results_first=self.results_first)
            if self.uneven:
                played = with_slopes(
                    played, lifetimes(other.unit, results_first=self.results_first), self.uneven.excess
                )
            self.known[key] = _Part(played, tuple((_shape(w), w.nbytes) for w in wgrads))
        return self.known[key]

    def step(self) -> None:
        """The forwards and backwards of one training step."""
        for kind, chunk, microbatch in self._order():
            (self._forward if kind == "F" else self._backward)(chunk, microbatch)

    def _order(self) -> Iterator[tuple[str, int, int]]:
        """The steps of the schedule, with as few microbatches as pass through every one, and one more."""
        layout, vp = self.rank.context.layout, len(self.rank.plans)
        group = layout.microbatch_group_size_per_vp_stage or layout.pp
        count = enough_microbatches(layout.pp, vp, self.rank.num_microbatches, group) + (vp == 1)
        return every_step(layout.pp, vp, self.rank.pp_rank, min(count, self.rank.num_microbatches), group)

    def _forward(self, chunk: int, microbatch: int) -> None:
        plan = self.rank.plans[chunk]
        whole = [self.memory.allocate(t.nbytes) for t in plan.uncut]
        batch = {t.name: self.memory.allocate(t.nbytes) for t in plan.batch}
        for block in whole:
            self.memory.free(block)
        self.inputs[chunk, microbatch] = [batch.pop(t.name) for t in plan.held]
        held = self.kept[chunk, microbatch] = []
        handed: Block | None = None
        for unit, _ in self.chunks[chunk]:
            blocks: dict[str, Block] = {}
            if handed is not None and unit.entry:
                blocks[unit.entry] = handed
            excess = max(self.draw.gauss(0, self.uneven.spread), -1.0) if self.uneven else 0.0
            handed = self._change(unit.forward, blocks, unit.entry, unit.exit, excess)
            held.append(_Held(blocks, excess))
        for block in (*batch.values(), *([handed] if handed else ())):
            self.memory.free(block)

    def _backward(self, chunk: int, microbatch: int) -> None:
        handed: Block | None = None
        held, inputs = self.kept.pop((chunk, microbatch)), self.inputs.pop((chunk, microbatch))
        plan = self.rank.plans[chunk]
        units_before = sum(run.copies for run in plan.runs[: plan.holder])
        for unit, wgrads in reversed(self.chunks[chunk]):
            for shape, nbytes in wgrads if self.missing else ():
                if self.missing.pop(shape, None) is not None:
                    self.memory.allocate(nbytes)
            blocks, excess = held.pop()
            if handed is not None and unit.exit_grad:
                blocks[unit.exit_grad] = handed
            self._change(unit.backward, blocks, unit.exit_grad, "", excess)
            handed = blocks.pop(unit.entry_grad, None)
            if len(held) == units_before:
                while inputs:
                    self.memory.free(inputs.pop())
        if handed is not None:
            self.memory.free(handed)

    def _change(
        self, changes: tuple[Change, ...], blocks: dict[str, Block], given: str, handed: str, excess: float
    ) -> Block | None:
        """Allocate and free as a unit does; `given` may be there already. What is freed of `handed` is returned, not freed."""
        memory, kept = self.memory, None
        for change in changes:
            storage = change.storage
            if change.nbytes >= 0:
                if storage != given or storage not in blocks:
                    nbytes = change.bytes_at(excess) if change.slope else change.nbytes
                    blocks[storage] = memory.allocate(nbytes, change.stream)
            elif storage == handed:
                kept = blocks.pop(storage)
            else:
                memory.free(blocks.pop(storage))
        return kept


def _shape(workspace: Workspace) -> tuple[int, ...]:
    return tuple(dim.local for dim in workspace.shape)


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
