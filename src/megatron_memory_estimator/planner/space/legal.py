"""Which GPUs a pipeline and its degrees divide, and how many layouts each rule takes out.

Every rule is `legality`'s own. The rules of degrees are asked once for each set of degrees, those of the pipeline once for each shape,
those of GPUs for both together, those of the schedule for each number of microbatches.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from ...job.layout import Layout
from ...job.training import Training
from ...job.training_job import TrainingJob
from ...legality import Violation, beside_pipeline, violations
from ...legality.grid import world
from ...legality.precision import gpu
from .points import Grid, Shape

BATCH = "global_batch_size is not divisible by micro_batch_size*data_parallel_size"


def reasons(job: TrainingJob, layout: Layout, training: Training, count: int) -> tuple[Violation, ...]:
    """Every violated rule of one layout, those of the GPU too."""
    return (*violations(job.model, layout, training, count), *gpu(training, job.gpu))


def hopeless(job: TrainingJob, layout: Layout, training: Training) -> bool:
    """Whether a layout breaks a rule that pipelines with the same `pipeline_sides` break too."""
    return any(True for rules in (beside_pipeline(job.model, layout, training), gpu(training, job.gpu)) for _ in rules)


Replicas = dict[int, list[list[int]]]
"""Data parallel sizes by pipeline stages: a row for each number of GPUs with a value for each point, 0 where they do not divide."""


def replicas(
    job: TrainingJob, shapes: Sequence[Shape], grid: Grid, allowed: Sequence[bool], each: int, ruled_out: Counter[str]
) -> Replicas:
    """Number of copies of a pipeline that the GPUs hold. A cell counts `each` layouts where a rule rules it out."""
    members = Counter(shape.pp for shape in shapes)
    return {
        shape.pp: _replicas(job, shape, grid, allowed, members[shape.pp] * len(grid.micro) * each, ruled_out)
        for shape in {shape.pp: shape for shape in shapes}.values()
    }


def _replicas(
    job: TrainingJob, shape: Shape, grid: Grid, allowed: Sequence[bool], each: int, ruled_out: Counter[str]
) -> list[list[int]]:
    """Data parallel size of each (GPUs, point), 0 where the GPUs do not divide."""
    moe = bool(job.model.num_moe_experts)
    table = [[0] * len(grid.points) for _ in grid.worlds]
    for w, gpus in enumerate(grid.worlds):
        for p, point in enumerate(grid.points):
            if not allowed[p]:
                continue
            layout = dataclasses.replace(
                shape.layout,
                world_size=gpus,
                tensor_model_parallel_size=point.tp,
                context_parallel_size=point.cp,
                expert_model_parallel_size=point.ep,
                expert_tensor_parallel_size=point.etp if moe else None,
            )
            broken = next(iter(world(job.model, layout)), None)
            if broken:
                ruled_out[broken.rule] += each
            else:
                table[w][p] = gpus // (point.tp * point.cp * shape.pp)
    return table
