"""The parameters of a rank one by one, and what it owns of each in the DDP buffers.

Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `megatron/core/optimizer/distrib_optimizer.py`
(_build_model_gbuf_range: a rank owns an equal part of every bucket).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..modules.context import Context
from ..states.buffers import Buffer, belongs
from ..states.padding import bucket_multiple, buckets, default_bucket_size, piece, registered
from ..tape.tensor import Param
from .chunks import ChunkPlan
from .rank import Rank


def parameters(plan: ChunkPlan) -> Iterator[Param]:
    """Every parameter of a chunk in registration order, each expert's by itself."""
    for params, copies in plan.registered_params:
        for _ in range(copies):
            yield from registered(params)


def holds(c: Context, buffer: Buffer, param: Param) -> bool:
    """Whether a parameter of a buffer's chunk is in that buffer."""
    return belongs(c.training, param, recipe=buffer.recipe, dtype=buffer.kept_dtype, expert=buffer.expert)


def members(rank: Rank, buffer: Buffer) -> list[Param]:
    """The parameters of a buffer in registration order."""
    plan = next(plan for plan in rank.plans if plan.chunk.vp_stage == buffer.chunk)
    return [param for param in parameters(plan) if holds(rank.context, buffer, param)]


def parts_of(rank: Rank, buffer: Buffer, params: list[Param], place: int = 0) -> list[int]:
    """Elements that a rank owns of each parameter of a DDP buffer, the last parameter first; whole parameters without a distributed
    optimizer.

    `place`: the rank's place among those of its pipeline stage.
    """
    c, expert = rank.context, buffer.expert
    sharded = c.training.use_distributed_optimizer
    shards = c.layout.shards(expert=expert) if sharded else 1
    ranks_apart = c.layout.ep * c.layout.etp if expert else c.layout.tp
    first = rank.pp_rank == 0 and buffer.chunk == 0
    size = default_bucket_size(c, buffer.elements, first_chunk=first) if sharded else None
    multiple = bucket_multiple(shards, busbw=c.training.ddp_pad_buckets_for_high_nccl_busbw) if sharded else 1
    return list(owned_parts(params, place // ranks_apart if sharded else 0, shards, size, multiple))


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
