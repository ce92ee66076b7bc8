"""Phases of a run beside its training steps, each with an allocated peak of its own: build, load, save.

Sources: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`, `megatron/core/optimizer/distrib_optimizer.py`
(dummy step), `megatron/core/dist_checkpointing/`; Megatron-Bridge PR 4936 and Megatron-LM PR 7288 (TransformerEngine's
FusedAdam loads a second copy of the optimizer's shard; measured 1.08 of it).
"""

from __future__ import annotations

from typing import NamedTuple

from ..rank.rank import Rank, state_bytes
from ..states.fsdp import active
from ..states.state import State
from ..tape.tensor import largest
from .terms import Range

METADATA = 5_000_000
"""Most bytes per rank of the metadata that the first save and load gather on every GPU (general knowledge: 1 to 5 MB)."""


class Phase(NamedTuple):
    """A phase and its allocated peak, as a range in bytes."""

    name: str
    low: int
    high: int
    source: str


def build(rank: Rank) -> int:
    """Allocated peak of building the model: each buffer is allocated while its parameters still have their own storage.

    Source: Megatron-LM `megatron/core/distributed/param_and_grad_buffer.py`.
    """
    pending, sizes, frozen = _built(rank)
    built = top = 0
    for both, weights in sizes:
        top = largest(top, built + pending + both)
        built, pending = built + both, pending - weights
    return top + frozen


def built_apart(rank: Rank) -> int:
    """What building the model allocates in all: more than its peak where there are several buffers, for each of which the freed
    parameters of those before are too small."""
    pending, sizes, frozen = _built(rank)
    total: int = pending + sum(both for both, _ in sizes) + frozen
    return total


def own_storage(rank: Rank) -> int:
    """Bytes of the parameters' own storage, which is freed when the buffers are built."""
    return _built(rank)[0]


def _built(rank: Rank) -> tuple[int, list[tuple[int, int]], int]:
    """Bytes of the parameters' own storage, of each buffer's weights and gradients together and weights alone, and of frozen weights."""
    frozen = sum(s.nbytes for s in rank.states if s.frozen)
    if not rank.buffers:
        return 0, [], frozen
    own: dict[tuple[str, int], list[State]] = {}
    for state in rank.states:
        if state.part in ("weights", "gradients"):
            own.setdefault((state.group, state.chunk), []).append(state)
    sizes = []
    for buffer in rank.buffers:
        mine = own[buffer.group, buffer.chunk]
        sizes.append((sum(s.nbytes for s in mine), next(s.nbytes for s in mine if s.part == "weights")))
    pending = (
        0 if active(rank.context) else sum(weights for _, weights in sizes)
    )  # fully sharded: built on the meta device
    return pending, sizes, frozen


def load_range(rank: Rank) -> Range:
    """Allocated bytes of loading a checkpoint with optimizer state.

    At least: the whole model state, and where the distributed optimizer makes its state in a dummy step, an fp32 gradient of
    every element that the rank owns and has on the GPU. At most: a second copy of the optimizer's shard instead, and the
    metadata of all ranks.
    """
    training, world_size = rank.context.training, rank.context.layout.world_size
    state = state_bytes(rank, "setup", "first step")
    shard = sum(s.nbytes for s in rank.states if s.saved)
    dummy = 0
    if training.use_distributed_optimizer and not training.use_megatron_fsdp:
        dummy = 4 * sum(buffer.owned - buffer.offloaded for buffer in rank.buffers)
    return Range(state + dummy, state + largest(dummy, shard) + METADATA * world_size)


def load(rank: Rank) -> Phase:
    """Loading a checkpoint with optimizer state."""
    return Phase("load", *load_range(rank), "distrib_optimizer.py; Megatron-Bridge PR 4936, Megatron-LM PR 7288")


def save_range(rank: Rank) -> Range:
    """Bytes beside what is allocated between two steps while a checkpoint is saved: shards are copied to the host, nothing but metadata
    is new on the GPU."""
    return Range(0, METADATA * rank.context.layout.world_size)


def save(rank: Rank, steady: int) -> Phase:
    """Saving a checkpoint between two steps."""
    more = save_range(rank)
    return Phase("save", steady + more.low, steady + more.high, "megatron/core/dist_checkpointing/strategies/")


def phases(rank: Rank, steady: int) -> tuple[Phase, ...]:
    """Build, load and save of a rank; `steady` is what it has allocated between two steps."""
    built = build(rank)
    return (
        Phase("build", built, built, "megatron/core/distributed/param_and_grad_buffer.py"),
        load(rank),
        save(rank, steady),
    )
