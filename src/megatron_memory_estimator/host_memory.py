"""Host memory of a rank: what offloading and checkpoints take there.

torch rounds every pinned request up to a power of two, so pinned tensors take one to two times their bytes.
Source: pytorch `aten/src/ATen/core/CachingHostAllocator.h`; Megatron-LM `megatron/core/optimizer/cpu_offloading/`,
`megatron/core/dist_checkpointing/strategies/filesystem_async.py`.
"""

from __future__ import annotations

from .device_memory import Term
from .job import TrainingJob
from .peak import Rank

GB = 10**9
PINNED_STATE, PAGEABLE_STATE = 8, 8
"""Bytes per offloaded parameter: fp32 parameter and gradient pinned, two fp32 moments pageable."""
CHECKPOINT_STATE = 12
"""Bytes per owned parameter that a checkpoint stages: main parameter and two moments in fp32."""


def offloaded_parameters(rank: Rank) -> int:
    """Elements whose optimizer state is in host memory."""
    return sum(buffer.offloaded for buffer in rank.buffers)


def host_terms(job: TrainingJob, rank: Rank) -> list[Term]:
    """Host memory of one rank during training."""
    found = [Term("Python, CUDA host structures, data loader", 5 * GB, 10 * GB, "general knowledge")]
    count = offloaded_parameters(rank)
    if count:
        size = count * (PINNED_STATE + PAGEABLE_STATE)
        found.append(
            Term("optimizer offload", size, size + count * PINNED_STATE, "hybrid_optimizer.py: 16 bytes per parameter")
        )
    total = 0
    for plan, most in zip(rank.plans, rank.schedule.per_chunk, strict=True):
        total += most * sum(t.nbytes for run in plan.runs for t in run.offloaded for _ in range(run.copies))
    if total:
        found.append(Term("activation offload", total, 2 * total, "pinned copies of every microbatch in flight"))
    return found


def checkpoint_bytes(rank: Rank) -> int:
    """What a synchronous save stages in host memory before it writes: this rank's share of weights and optimizer state."""
    owned = sum(buffer.owned for buffer in rank.buffers)
    return owned * (CHECKPOINT_STATE + 2)
