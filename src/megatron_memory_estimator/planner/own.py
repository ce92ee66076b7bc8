"""The layout that a run came with, beside the plans: its figures, and what leaves it out of the space where it is not searched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import EstimatorError
from ..estimator import estimate
from ..job.pipeline import build_pipeline, virtual_stages
from ..job.training_job import TrainingJob
from ..throughput.machine import machine
from .counting import shapes
from .exact import Exact
from .found import Found, Plan
from .space.axes import DEGREES, Space
from .space.choices import Option, options, precision_of
from .space.modelled import NO_RECOMPUTATION
from .space.points import Shape
from .space.recompute import own_recompute, recompute_settings


class Own(NamedTuple):
    """A run as it came, with its figures, and what of its layout the space does not have."""

    plan: Plan
    left_out: tuple[str, ...]


def own(found: Found) -> Own | None:
    """The run that was planned; None for a model by its name, on other GPUs, and where it cannot be estimated."""
    asked = found.asked
    if asked is None or asked.by_name or asked.layout.world_size not in found.space.num_gpus:
        return None
    try:
        job = estimate(asked).job
        figures = Exact(machine(job.gpu, found.efficiency, job.env.network_gbs)).figures(job)
    except EstimatorError:
        return None
    t = job.training
    assert t.global_batch_size is not None
    rate = t.global_batch_size * t.seq_length / figures.step / job.layout.world_size
    plan = Plan(job, own_recompute(t), precision_of(t), figures.step, figures.parts, rate, figures.peak, figures.needed)
    return Own(plan, tuple(left_out(job, found.space)))


def left_out(job: TrainingJob, space: Space) -> Iterator[str]:
    """What a run's layout has that a space does not."""
    layout, t, vp = job.layout, job.training, virtual_stages(job.model, job.layout)
    values = {name: getattr(layout, name) for name in DEGREES} | {
        "expert_tensor_parallel_size": layout.etp if job.model.num_moe_experts else 1,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": vp,
        "micro_batch_size": t.micro_batch_size,
        "precision": precision_of(t),
    }
    yield from (f"{name} {value}" for name, value in values.items() if value not in getattr(space, name))
    if layout.tp > 1 and layout.sequence_parallel not in space.sequence_parallel:
        yield f"sequence_parallel {layout.sequence_parallel}"
    if layout.cp > 1 and layout.cp_comm_type not in [(way,) for way in space.cp_comm_type]:
        yield f"cp_comm_type {'+'.join(layout.cp_comm_type)}"
    if not any(_recomputes(job, word) for word in space.recompute):
        yield f"recompute {own_recompute(t)}"
    share = t.optimizer_offload_fraction if t.optimizer_cpu_offload else 0.0
    chosen = Option(t.use_distributed_optimizer, t.use_precision_aware_optimizer, share)
    if chosen not in options(space):
        yield ", ".join(f"{name} {value}" for name, value in chosen.settings().items())
    if layout.pp > 1 and not any(_split_alike(job, one) for one in _pipelines(job, space, vp)):
        yield "its split of layers over stages"


def _recomputes(job: TrainingJob, word: str) -> bool:
    """Whether a set of recomputation is the run's."""
    training = dataclasses.replace(job.training, **{**NO_RECOMPUTATION, **recompute_settings(word)})
    mine, theirs = own_recompute(job.training), own_recompute(training)
    return set(mine.split("+")) == set(theirs.split("+"))


def _pipelines(job: TrainingJob, space: Space, vp: int) -> Iterator[Shape]:
    """The pipelines of a space with the run's stages and chunks."""
    only = dataclasses.replace(
        space, pipeline_model_parallel_size=(job.layout.pp,), virtual_pipeline_model_parallel_size=(vp,)
    )
    return (one for one in shapes(job, only) if isinstance(one, Shape))


def _split_alike(job: TrainingJob, shape: Shape) -> bool:
    """Whether a pipeline has the run's split of layers."""
    mine = [chunk.layers for row in build_pipeline(job.model, job.layout).chunks for chunk in row]
    theirs = [chunk.layers for row in build_pipeline(shape.of(job.model), shape.layout).chunks for chunk in row]
    return mine == theirs
