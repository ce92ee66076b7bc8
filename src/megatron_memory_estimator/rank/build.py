"""From chunks to a rank: plans, schedule, buffers, state and persistent scratch. Degrees may be arrays."""

from __future__ import annotations

from ..job.hardware import Environment, Gpu
from ..job.pipeline import Chunk
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..states.buffers import ddp_buffers
from ..states.owners import with_owners
from ..states.state import frozen_weights, model_state
from .declare import Declarer
from .rank import Rank
from .schedule import occupancy
from .workspaces import stash_workspaces, workspaces


def context_of(job: TrainingJob) -> Context:
    """What module declarations see of a job."""
    return Context(job.model, job.layout, job.training, job.kernel, job.gpu.num_sms, blackwell=job.gpu.two_way_fp8)


def build_rank(
    declarer: Declarer, chunks: tuple[Chunk, ...], num_microbatches: int, gpu: Gpu, env: Environment
) -> Rank:
    """A pipeline rank with its chunks: plans, schedule, buffers, state and persistent scratch. Degrees may be arrays."""
    c, layout = declarer.context, declarer.context.layout
    plans = tuple(declarer.plan(chunk) for chunk in chunks)
    pp_rank = chunks[0].pp_rank
    buffers = with_owners(
        c,
        [
            buffer
            for plan in plans
            for buffer in ddp_buffers(
                c,
                plan.chunk.vp_stage,
                plan.registered_params,
                first_chunk=pp_rank == 0 and plan.chunk.vp_stage == 0,
            )
        ],
    )
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    overlap = c.training.overlap_moe_expert_parallel_comm
    schedule = occupancy(layout.pp, len(chunks), pp_rank, num_microbatches, group, overlap)
    return Rank(
        context=c,
        pp_rank=pp_rank,
        plans=plans,
        schedule=schedule,
        buffers=buffers,
        states=(
            *model_state(c, list(buffers)),
            *(s for plan in plans for s in frozen_weights(c, plan.chunk.vp_stage, plan.params)),
        ),
        workspaces=(*workspaces(c, plans, gpu, env), *stash_workspaces(c, plans, schedule)),
        num_microbatches=num_microbatches,
    )
