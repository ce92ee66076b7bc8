"""Where a layout stands in a space, and the plan that it is."""

from __future__ import annotations

import dataclasses

from ..dataclass import dataclass
from ..device.terms import Range
from ..job.training import Training
from ..job.training_job import TrainingJob
from .counting import LegalSpace
from .found import Plan
from .ideas import Idea
from .space.choices import Option, Style, training_with
from .space.points import at_point

Order = tuple[int, int, int, int, int]
"""Structure, style, training, option and cell by number: the order in which layouts are evaluated."""
NANOSECONDS = 1e9
"""A second has so many. Steps of a search are whole nanoseconds: layouts that are as fast tie, whatever order their parts are added in."""


@dataclass(frozen=True)
class Place:
    """Where a layout stands: its choices, its cell (shape, GPUs, point, micro batch size, microbatches), and its figures."""

    order: Order
    style: Style
    recompute: str
    training: Training
    option: Option
    cell: tuple[int, ...]
    step: float
    peak: int
    low: int
    high: int
    idea: Idea
    """What it has in common with layouts that differ in details."""

    @property
    def structure(self) -> int:
        """The number of its structure."""
        return self.order[0]


def plan_of(base: TrainingJob, legal: LegalSpace, place: Place) -> Plan:
    """A place as a layout with its figures."""
    shape, world, point, micro, count = place.cell
    grid = legal.structures[place.structure].grid
    gpus = grid.worlds[world]
    moe = bool(base.model.num_moe_experts)
    layout = dataclasses.replace(
        at_point(legal.shapes[shape].layout, grid.points[point], place.style, moe=moe),
        world_size=gpus,
        num_distributed_optimizer_instances=base.layout.num_distributed_optimizer_instances,
    )
    training = dataclasses.replace(training_with(place.training, place.option), micro_batch_size=grid.micro[micro])
    job = dataclasses.replace(base, layout=layout, training=training, num_microbatches=count, assumptions=())
    assert training.global_batch_size is not None
    tokens = training.global_batch_size * training.seq_length / place.step / gpus
    return Plan(
        job, place.recompute, place.style.precision, place.step, tokens, place.peak, Range(place.low, place.high)
    )
