"""Points of a space: pipelines, degrees, and cells of both with GPUs and micro batch sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import gcd, lcm
from typing import Any, NamedTuple

from ...dataclass import dataclass
from ...job.layout import Layout, fewest_gpus
from ...job.model import Model
from ...modules.kinds import shapes_of
from ...rank.schedule import enough_microbatches
from ...tape.tensor import largest
from .choices import Style


class Point(NamedTuple):
    """The degrees of a layout beside its pipeline."""

    tp: int
    cp: int
    ep: int
    etp: int


@dataclass(frozen=True)
class Shape:
    """A pipeline: its degrees and split, every other degree 1; of a hybrid with borders in its pattern, the model that has them."""

    layout: Layout
    vp: int
    bordered: Model | None = None

    def of(self, model: Model) -> Model:
        """The model as this pipeline cuts it."""
        return self.bordered or model

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.layout.pp

    def with_instances(self, instances: int) -> Shape:
        """The pipeline of a layout with so many instances of the distributed optimizer."""
        if self.layout.num_distributed_optimizer_instances == instances:
            return self
        return dataclasses.replace(
            self, layout=dataclasses.replace(self.layout, num_distributed_optimizer_instances=instances)
        )

    def effective(self, count: int) -> int:
        """So few microbatches that the schedule passes through the same steps."""
        return enough_microbatches(self.pp, self.vp, count, self.group)

    @property
    def group(self) -> int:
        """Microbatches that run through one chunk before the next."""
        return self.layout.microbatch_group_size_per_vp_stage or self.pp


class Structure(NamedTuple):
    """The structure that points share: the side of every border that a declaration asks about."""

    tp_many: bool
    cp_many: bool
    ep_many: bool
    etp_many: bool
    tp_and_groups: tuple[int, ...]
    """-1, 0 or 1: fewer tensor-parallel ranks than query groups, as many, or more; of every shape of layers."""
    tp_and_etp: int
    """The same of the experts' tensor-parallel ranks, where experts are not reduced over ranks of their own anyway."""
    local_experts: int
    """0 or 1: one expert on a rank, or several."""


def structure_of(model: Model, point: Point) -> Structure:
    """The structure of a point: points of one structure have the same tensors, of other sizes."""
    tp, cp, ep, etp = point
    experts = model.num_moe_experts or 0
    return Structure(
        tp > 1,
        cp > 1,
        ep > 1,
        etp > 1,
        tuple(_heads(tp, shape) for shape, _ in shapes_of(model)),
        _side(tp, etp) if experts and ep == 1 else 0,
        _side(experts // ep, 1) if experts else 0,
    )


def heads_in_fours(model: Model, tp: int) -> tuple[int, ...]:
    """1, 2 or 4, of every shape of layers: what the attention heads of a rank have in common with four."""
    return tuple(gcd(shape.num_attention_heads // tp, 4) for shape, _ in shapes_of(model))


def _heads(tp: int, shape: Model) -> int:
    """-1, 0 or 1: as many tensor-parallel ranks as query groups, fewer or more; 2: one head on each of more ranks."""
    side = _side(tp, shape.groups)
    return 2 if side > 0 and tp == shape.num_attention_heads else side


def _side(value: int, limit: int) -> int:
    """-1, 0 or 1: below, at or above a limit."""
    return (value > limit) - (value < limit)


@dataclass(frozen=True)
class Grid:
    """The degrees, GPUs and micro batch sizes of one structure."""

    points: tuple[Point, ...]
    worlds: tuple[int, ...]
    micro: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Worlds, points, micro batch sizes."""
        return len(self.worlds), len(self.points), len(self.micro)

    def layout(self, base: Layout, pp: Any, gpus: Any, style: Style, *, arrays: bool) -> Layout:
        """A layout with its degrees, of `arrays` for all points; on GPUs enough for one replica, so that every figure is defined."""
        degrees: list[Any] = [*self.points[0]]
        if arrays:
            import numpy as np

            degrees = [np.array(column).reshape(-1, 1) for column in zip(*self.points, strict=True)]
        tp, cp, ep, etp = degrees
        instances = base.num_distributed_optimizer_instances  # over the ranks of data and context parallelism together
        return dataclasses.replace(
            base,
            world_size=largest(gpus, largest(tp * largest(cp, instances), ep * etp * instances) * pp),
            tensor_model_parallel_size=tp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            pipeline_model_parallel_size=pp,
            sequence_parallel=style.sequence_parallel,
            cp_comm_type=(style.cp_comm_type,),
        )


@dataclass(frozen=True)
class Cells:
    """Legal cells by index: shape, GPUs, point, micro batch size; and the microbatches of each."""

    shape: Sequence[int]
    world: Sequence[int]
    point: Sequence[int]
    micro: Sequence[int]
    count: Sequence[int]

    def __len__(self) -> int:
        return len(self.shape)

    def at(self, where: Any) -> Cells:
        """Those of some places."""
        return Cells(*(getattr(self, f.name)[where] for f in dataclasses.fields(self)))


def at_point(base: Layout, point: Point, style: Style, *, moe: bool) -> Layout:
    """A layout with the degrees of a point, on as few GPUs as they need, for every instance of the distributed optimizer."""
    tp, cp, ep, etp = point
    instances = base.num_distributed_optimizer_instances
    return dataclasses.replace(
        base,
        world_size=fewest_gpus(tp * lcm(cp, instances), ep * etp * instances, base.pp),
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp if moe else None,
        sequence_parallel=style.sequence_parallel,
        cp_comm_type=(style.cp_comm_type,),
    )
