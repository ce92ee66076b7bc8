"""The bounds of single jobs: what a search would take them for before it looks at them."""

from __future__ import annotations

import dataclasses

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.job.pipeline import virtual_stages
from megatron_memory_estimator.planner.bounds import Bound, Bounds, Pipelines
from megatron_memory_estimator.planner.sharing import Grids
from megatron_memory_estimator.planner.space.choices import Option, Style
from megatron_memory_estimator.planner.space.points import Cells, Grid, Point, Shape
from megatron_memory_estimator.throughput.machine import machine


def option_of(job: TrainingJob) -> Option:
    """The optimizer's settings of a job."""
    t = job.training
    share = t.optimizer_offload_fraction if t.optimizer_cpu_offload else 0.0
    return Option(t.use_distributed_optimizer, t.use_precision_aware_optimizer, share)


def bound_of(job: TrainingJob, *, arrays: bool) -> Bound:
    """The bound of a job, as numbers, or from arrays of one element."""
    layout, t = job.layout, job.training
    alone = dataclasses.replace(
        layout,
        world_size=layout.pp,
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        expert_model_parallel_size=1,
        expert_tensor_parallel_size=1 if job.model.num_moe_experts else None,
        sequence_parallel=False,
    )
    shape = Shape(alone, virtual_stages(job.model, layout))
    point = Point(layout.tp, layout.cp, layout.ep, layout.etp)
    grid = Grid((point,), (layout.world_size,), (t.micro_batch_size,))
    style = Style(layout.cp_comm_type[0], layout.sequence_parallel)
    count = job.num_microbatches
    pipelines = Pipelines(job, [shape], [(0, count)], arrays=arrays)
    cells = Cells((0,), (0,), (0,), (0,), (count,))
    bounds = Bounds(job, machine(job.gpu, None, job.env.network_gbs), pipelines, grid, style, cells, Grids(), Grids())
    (found,) = bounds.of(t, [option_of(job)])
    return Bound(*(float(value) if isinstance(value, float | int) else float(value[0]) for value in found))
