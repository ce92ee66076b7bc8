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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from ..errors import UnsupportedError
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..rank.chunks import ChunkPlan
from ..rank.rank import Rank
from ..states.buffers import Buffer, belongs
from ..states.kept import Since
from ..states.optimizers import OPTIMIZERS, optimizer_tensors
from ..states.padding import bucket_multiple, buckets, default_bucket_size, piece, registered
from ..tape.tensor import DTYPE_BYTES, Param
from .allocator import Allocator, Block
from .player import Player, Uneven

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
        "an offloaded optimizer": t.optimizer_cpu_offload,
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
    c, layout = rank.context, rank.context.layout
    chunks = [[(p, memory.allocate(_bytes(c, p))) for p in _params(plan)] for plan in rank.plans]
    found: list[Parts] = []
    for plan, params in zip(rank.plans, chunks, strict=True):
        for buffer in (b for b in rank.buffers if b.chunk == plan.chunk.vp_stage):
            expert, sharded = buffer.expert, c.training.use_distributed_optimizer
            owner = (place // (layout.ep * layout.etp) if expert else place // layout.tp) if sharded else 0
            its = partial(belongs, c.training, recipe=buffer.recipe, dtype=buffer.kept_dtype, expert=expert)
            members = [one for one in params if its(one[0])]
            if sharded:
                memory.allocate(buffer.numel * DTYPE_BYTES[buffer.param_dtype])
            memory.allocate(buffer.numel * DTYPE_BYTES[buffer.grad_dtype])
            for _, block in reversed(members) if sharded else ():
                memory.free(block)
            shards = layout.shards(expert=expert) if sharded else 1
            first = rank.pp_rank == 0 and plan.chunk.vp_stage == 0
            size = default_bucket_size(c, buffer.elements, first_chunk=first) if sharded else None
            multiple = bucket_multiple(shards, busbw=c.training.ddp_pad_buckets_for_high_nccl_busbw) if sharded else 1
            found.append((buffer, list(owned_parts([p for p, _ in members], owner, shards, size, multiple))))
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


def _params(plan: ChunkPlan) -> Iterator[Param]:
    """Every parameter of a chunk in registration order, each expert's by itself."""
    for params, copies in plan.registered_params:
        for _ in range(copies):
            yield from registered(params)


def owned_parts(params: list[Param], owner: int, shards: int, bucket_size: int | None, multiple: int) -> Iterator[int]:
    """Elements of each parameter that one of `shards` owners of a buffer has: its part of every bucket, the last parameter first."""
    pieces = [piece(param._replace(copies=1, in_turn=False)) for param in params]
    for bucket in buckets(pieces, multiple, bucket_size):
        yield from _parts(bucket.spans, bucket.start, bucket.end, owner, shards)


def _parts(spans: list[tuple[int, int]], start: int, end: int, owner: int, shards: int) -> Iterator[int]:
    """What one owner has of the parameters of a bucket."""
    size = (end - start) // shards
    low, high = start + owner * size, start + (owner + 1) * size
    for first, last in spans:
        part = min(high, last) - max(low, first)
        if part > 0:
            yield part


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
