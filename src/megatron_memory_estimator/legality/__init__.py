"""Rules of Megatron-Core that a layout and its settings must keep; each violation is one sentence with a fix.

Sources: Megatron-LM `megatron/training/arguments.py` (validate_args), `megatron/core/transformer/transformer_config.py`,
`megatron/core/parallel_state.py`, `megatron/core/model_parallel_config.py`, `megatron/core/optimizer/optimizer_config.py`,
`megatron/core/pipeline_parallel/schedules.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import LayoutError
from ..layout import Layout
from ..model import Model
from ..training import Training
from .sharding import attention, experts, world
from .stages import balanced_split, pipeline, schedule, shared_indexers
from .switches import (
    checkpoints,
    expert_modules,
    fully_sharded,
    gpu,
    graphs,
    interleaved,
    low_precision,
    offloading,
    optimizer,
    other,
)  # fmt: skip

if TYPE_CHECKING:
    from ..job import TrainingJob

__all__ = ["balanced_split", "beside_pipeline", "check", "pipeline_sides", "violations"]

MOST_STAGES = 4096
DEGREES = {
    "world_size": "num_gpus",
    "tensor_model_parallel_size": "tensor_model_parallel_size",
    "pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
    "expert_model_parallel_size": "expert_model_parallel_size",
    "expert_tensor_parallel_size": "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size": "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage": "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage": "num_layers_in_last_pipeline_stage",
    "num_layers_per_virtual_pipeline_stage": "num_layers_per_virtual_pipeline_stage",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_vp_stage",
    "num_distributed_optimizer_instances": "num_distributed_optimizer_instances",
}


def check(job: TrainingJob) -> None:
    """Raise LayoutError with every violated rule, or return."""
    reasons = violations(job.model, job.layout, job.training, job.num_microbatches)
    reasons += tuple(gpu(job.training, job.gpu))
    if reasons:
        raise LayoutError(reasons)


def violations(model: Model, layout: Layout, training: Training, num_microbatches: int) -> tuple[str, ...]:
    """One sentence per violated rule; empty for a legal run."""
    wrong = tuple(degrees(layout))
    if wrong:
        return wrong
    found = [
        *world(model, layout),
        *_parts(model, layout, training),
        *pipeline(model, layout, overlap_p2p_comm=training.overlap_p2p_comm),
        *_switches(model, layout, training),
    ]
    if not found:
        found += [*schedule(model, layout, num_microbatches), *shared_indexers(model, layout)]
    return tuple(dict.fromkeys(found))


def beside_pipeline(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    """The violated rules that see of the pipeline only whether it has stages and chunks (`pipeline_sides`), and not the GPUs."""
    yield from _parts(model, layout, training)
    yield from _switches(model, layout, training)


def pipeline_sides(model: Model, layout: Layout) -> tuple[bool, bool]:
    """Whether there are several stages, and several chunks of one."""
    return layout.pp > 1, interleaved(model, layout)


def _parts(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    yield from attention(model, layout, training)
    yield from expert_modules(model, training)
    yield from graphs(model, training)
    yield from experts(model, layout, training)


def _switches(model: Model, layout: Layout, training: Training) -> Iterator[str]:
    yield from optimizer(layout, training)
    yield from low_precision(model, layout, training)
    yield from fully_sharded(model, layout, training)
    yield from offloading(model, layout, training)
    yield from checkpoints(model, training)
    yield from other(model, layout, training)


def degrees(layout: Layout) -> Iterator[str]:
    """Every degree is at least 1."""
    for name, shown in DEGREES.items():
        value = getattr(layout, name)
        if value is not None and value < 1:
            yield f"{shown}={value} must be at least 1"
    if layout.pp > MOST_STAGES:
        yield f"pipeline_model_parallel_size={layout.pp} is more than {MOST_STAGES}, the most that is accepted"
