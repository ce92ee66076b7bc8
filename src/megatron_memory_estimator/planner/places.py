"""Where a layout stands in a space, and the plan that it is.

Plans that are one idea: the same but for details, of which a reader wants the best once and not ten of it.

An idea is the GPUs, tp, pp, ep, etp, sequence parallelism, precision, the optimizer's settings and the kind of recomputation (none,
selective, full). Details are the split, vpp, the micro batch size, context parallelism, and what exactly is recomputed. An idea is
shown by one plan: of those within `NEAR` of its best in the objective and in seconds, the best of the plainest split (even, then
uneven, then a generated layout). The others within `NEAR` are counted beside it, each once; what is further behind is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..device.terms import Range
from ..job.layout import Layout
from ..job.training import Training
from ..job.training_job import TrainingJob
from .counting import LegalSpace
from .found import Plan
from .space.choices import Option, Style, training_with
from .space.points import Point, Shape, at_point

Order = tuple[int, int, int, int, int]
"""Structure, style, training, option and cell by number: the order in which layouts are evaluated."""
NANOSECONDS = 1e9
"""A second has so many. Steps of a search are whole nanoseconds: layouts that are as fast tie, whatever order their parts are added in."""


@dataclass(frozen=True)
class Place:
    """A layout of a search: its choices, its cell (shape, GPUs, point, micro batch size, microbatches), and its figures."""

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


NEAR = 1.01
"""Plans of one idea are alike up to this ratio."""


class Idea(NamedTuple):
    """What plans of one idea have in common."""

    num_gpus: int
    tp: int
    pp: int
    ep: int
    etp: int
    sequence_parallel: bool
    precision: str
    option: Option
    recompute: str


def idea_of(gpus: int, point: Point, shape: Shape, style: Style, option: Option, training: Training) -> Idea:
    """The idea of one layout."""
    kind = training.recompute_granularity or "none"
    parallel, precision = style.sequence_parallel, style.precision
    return Idea(gpus, point.tp, shape.pp, point.ep, point.etp, parallel, precision, option, kind)


def near(key: Any, step: Any, best: Any, best_step: Any) -> Any:
    """Whether plans are as good as the best of their idea, or nearly; element by element for arrays."""
    return (key <= NEAR * best) & (step <= NEAR * best_step)


def shown(alike: Sequence[Plan]) -> Plan:
    """The plan that stands for those of one idea, best first, with the others beside it, each once."""
    different: dict[object, Plan] = {}
    for one in sorted(
        alike, key=lambda plan: split_rank(plan.job.layout)
    ):  # stable: the best of equal splits stays first
        different.setdefault(_figures(one), one)
    first, *rest = different.values()
    return dataclasses.replace(first, alike=tuple(rest))


def split_rank(layout: Layout) -> int:
    """0 for layers split evenly over stages, 1 for other counts on the first or the last, 2 for a layout in words."""
    if layout.pipeline_model_parallel_layout is not None:
        return 2
    ends = (layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage)
    return 0 if ends == (None, None) else 1


def _figures(plan: Plan) -> object:
    """What two spellings of one layout have in common."""
    layout, t = plan.job.layout, plan.job.training
    degrees = (layout.tp, layout.cp, layout.cp_comm_type if layout.cp > 1 else (), layout.pp, t.micro_batch_size)
    return (*degrees, plan.step, plan.peak_allocated_bytes, plan.needed)
