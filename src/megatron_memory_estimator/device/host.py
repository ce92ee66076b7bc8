"""Host memory of a rank: what offloading and checkpoints take there.

torch rounds every pinned request up to a power of two, so pinned tensors take one to two times their bytes.
Source: pytorch `aten/src/ATen/core/CachingHostAllocator.h`; Megatron-LM `megatron/core/optimizer/cpu_offloading/`,
`megatron/core/dist_checkpointing/strategies/filesystem_async.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from ..job.training import Training
from ..job.training_job import TrainingJob
from ..rank.rank import Rank
from ..rank.workspaces import most_stashed
from ..states.buffers import Buffer
from ..states.optimizers import optimizer_tensors
from ..tape.tensor import DTYPE_BYTES, ceil_div
from .terms import Term

GB = 10**9
PINNED_STATE, PAGEABLE_STATE = 8, 8
"""Bytes per offloaded parameter: fp32 parameter and gradient pinned, two fp32 moments pageable."""
CHECKPOINT_STATE = 12
"""Bytes per offloaded parameter that a checkpoint stages: main parameter and two moments in fp32."""


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
    stash = most_stashed(rank.plans, rank.schedule)
    size = ceil(stash * job.training.moe_paged_stash_buffer_size_factor_cpu)
    if size:
        found.append(Term("paged stash overflow (offload)", size, 2 * size, "Megatron-LM PR 4247, pinned"))
    found += rollout_terms(job, rank)
    found.append(checkpoint_term(job, rank))
    return found


def rollout_terms(job: TrainingJob, rank: Rank) -> Iterator[Term]:
    """What is moved to the host between the phases of reinforcement learning, pinned; gradients are not copied, their memory is freed."""
    r = job.rollout
    moved = {*r.rollout_offload, *r.log_prob_offload}
    for part in ("weights", "optimizer"):
        size = sum(s.nbytes for s in rank.states if s.part == part and part in moved)
        if size:
            yield Term(f"{part} (offload between phases)", size, 2 * size, "pinned copies while others run")
    if r.reference_model in ("host", "offloaded"):
        own = job.training.params_dtype
        size = sum(p.numel * count * DTYPE_BYTES[p.dtype or own] for plan in rank.plans for p, count in plan.params)
        yield Term("reference weights (offload)", size, 2 * size, "a pinned copy of the weights")
    if r.critic_model == "in_turn":
        size = sum(s.nbytes for s in rank.states if s.part != "gradients")
        yield Term("critic (offload)", size, 2 * size, "the critic's state while the policy trains")


def checkpoint_term(job: TrainingJob, rank: Rank) -> Term:
    """What a save stages on the host before the first write: weights, and masters and moments in fp32, of this rank's share.

    Without a fully parallel save the writing rank stages all its weights. Nothing is staged while no checkpoint is written.
    """
    t, layout = job.training, job.layout
    shared = t.use_distributed_optimizer or t.use_megatron_fsdp  # else replicas share the work
    total = 0
    for buffer in rank.buffers:
        kept = _saved_state(rank, buffer)
        total += kept if shared else ceil_div(kept, layout.shards(expert=buffer.expert))
        total += ceil_div(_saved_weight(t, buffer) * buffer.elements, buffer.weight_ways)
    return Term("checkpoint while it is written", 0, total, "filesystem_async.py: staged before the first write")


def checkpoint_bytes(job: TrainingJob, ranks: Iterable[Rank]) -> int:
    """Bytes of a checkpoint of all pipeline stages: weights that are trained, and the optimizer's state in fp32.

    What tensor parallel ranks have alike (norms, routers, latent projections) is counted for each of them, as the optimizer's state is
    written (Megatron-LM `megatron/core/optimizer/distrib_optimizer.py`, sharded_param_state_dp_reshardable).
    """
    layout, found = job.layout, 0
    for rank in ranks:
        for buffer in (one for one in rank.buffers if not one.frozen):
            ranks_apart = layout.ep * layout.etp if buffer.expert else layout.tp
            state = _saved_state(rank, buffer) * buffer.elements // max(buffer.owned, 1)
            found += ranks_apart * (state + _saved_weight(job.training, buffer) * buffer.elements)
    return found


def _saved_state(rank: Rank, buffer: Buffer) -> int:
    """Bytes that a checkpoint holds of the optimizer's state that a rank owns of a buffer: masters and moments in fp32."""
    kept = sum(DTYPE_BYTES["fp32"] * one.numel for one in optimizer_tensors(rank.context, buffer) if one.saved)
    return kept + CHECKPOINT_STATE * buffer.offloaded


def _saved_weight(t: Training, buffer: Buffer) -> int:
    """Bytes of a weight of a buffer in a checkpoint."""
    return DTYPE_BYTES[buffer.kept_dtype or t.params_dtype]
