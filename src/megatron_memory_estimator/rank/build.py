"""From chunks to a rank: plans, schedule, buffers, state and persistent scratch.

Which data-parallel rank an estimate is of, where ranks own whole parameters: the fullest, or the one asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..job.hardware import Environment, Gpu
from ..job.pipeline import Chunk
from ..job.training_job import TrainingJob
from ..modules.context import Context
from ..states.buffers import Buffer, Dealt, Whole, by_layout, ddp_buffers, grid, ping_pong
from ..states.newton_schulz import newton_schulz
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
    """A pipeline rank with its chunks: plans, schedule, buffers, state and persistent scratch."""
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
            *newton_schulz(c, [p for plan in plans for p, _ in plan.params], buffers, first_chunk=pp_rank == 0),
        ),
        workspaces=(*workspaces(c, plans, gpu, env), *stash_workspaces(c, plans, schedule)),
        num_microbatches=num_microbatches,
    )


def with_owners(c: Context, buffers: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """The buffers of a rank with what it owns of them: of the fullest rank of the data-parallel group by default."""
    if not any(buffer.dealt for buffer in buffers):
        return tuple(buffers)
    if not by_layout(c.training):
        buffers = _ping_pong(c, buffers)
    state = [[sum(item.state for item in owned) for owned in buffer.dealt] for buffer in buffers]

    def total(rank: tuple[int, int]) -> int:
        return sum(sizes[rank[b.expert]] for b, sizes in zip(buffers, state, strict=True) if sizes)

    asked = c.training.data_parallel_rank
    rank = max((rank for rank in grid(c.layout) if asked in (None, rank[0])), key=total)
    return tuple(_owned(buffer, rank[buffer.expert]) if buffer.dealt else buffer for buffer in buffers)


def _ping_pong(c: Context, buffers: Sequence[Buffer]) -> list[Buffer]:
    """All parameters of all chunks dealt together, dense ones and experts each over their ranks."""
    found = list(buffers)
    for expert in (False, True):
        places = [place for place, buffer in enumerate(found) if buffer.dealt and buffer.expert is expert]
        items = [(place, item) for place in places for item in found[place].dealt[0]]
        order = [item._replace(run=index) for index, (_, item) in enumerate(items)]
        ranks = ping_pong(order, c.layout.shards(expert=expert))
        for place in places:
            dealt: Dealt = tuple(
                tuple(items[one.run][1] for one in owned if items[one.run][0] == place) for owned in ranks
            )
            found[place] = found[place]._replace(dealt=dealt)
    return found


def _owned(buffer: Buffer, rank: int) -> Buffer:
    """The buffer as that rank of its data-parallel group has it."""
    owns: tuple[Whole, ...] = buffer.dealt[rank]
    count = sum(map(len, buffer.dealt))
    return buffer._replace(
        owner=rank,
        owned=sum(item.numel for item in owns),
        owned_matrices=sum(item.numel for item in owns if item.group == 0),
        share=f"rank {rank} of {len(buffer.dealt)} owns {len(owns)} of {count} parameters",
    )
