"""Which cells of a space are legal, and how many layouts each rule takes out.

Every rule is `legality`'s own. The rules of degrees are asked once for each set of degrees, those of the pipeline once for each shape,
those of GPUs for both together, those of the schedule for each number of microbatches.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from ..job import TrainingJob
from ..layout import Layout
from ..legality import Violation, beside_pipeline, violations
from ..legality.precision import gpu
from ..legality.sharding import world
from ..legality.stages import schedule
from ..settings import LARGEST_INTEGER
from ..training import Training
from .shapes import Shape
from .space import Style
from .tables import Grid

Array = np.ndarray[Any, Any]
BATCH = "global_batch_size does not divide by micro_batch_size*data_parallel_size"

MICROBATCHES = 2 * LARGEST_INTEGER
"""More than any run has: no global batch is larger than LARGEST_INTEGER."""


@dataclass(frozen=True)
class Cells:
    """Legal cells by index: shape, GPUs, point, micro batch size; and the microbatches of each."""

    shape: Array
    world: Array
    point: Array
    micro: Array
    count: Array

    def __len__(self) -> int:
        return len(self.shape)

    def at(self, where: Any) -> Cells:
        """Those of some places."""
        return Cells(*(getattr(self, f.name)[where] for f in dataclasses.fields(self)))

    def counts(self) -> tuple[list[tuple[int, int]], Array]:
        """Every different (shape, microbatches), and which of them each cell has."""
        found, which = np.unique(self.shape * MICROBATCHES + self.count, return_inverse=True)
        return [divmod(pair, MICROBATCHES) for pair in found.tolist()], which.ravel()


def at_point(base: Layout, point: tuple[int, int, int, int], style: Style, *, moe: bool) -> Layout:
    """A layout with the degrees of a point, on as few GPUs as they need."""
    tp, cp, ep, etp = point
    return dataclasses.replace(
        base, world_size=lcm(tp * cp, ep * etp) * base.pp, tensor_model_parallel_size=tp, context_parallel_size=cp,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp if moe else None,
        sequence_parallel=style.sequence_parallel, cp_comm_type=(style.cp_comm_type,),
    )  # fmt: skip


def reasons(job: TrainingJob, layout: Layout, training: Training, count: int) -> tuple[Violation, ...]:
    """Every violated rule of one layout, those of the GPU too."""
    return (*violations(job.model, layout, training, count), *gpu(training, job.gpu))


def hopeless(job: TrainingJob, layout: Layout, training: Training) -> bool:
    """Whether a layout breaks a rule that pipelines with the same `pipeline_sides` break too."""
    return any(True for rules in (beside_pipeline(job.model, layout, training), gpu(training, job.gpu)) for _ in rules)


def cells(
    job: TrainingJob, shapes: Sequence[Shape], grid: Grid, allowed: Sequence[bool], each: int, ruled_out: Counter[str]
) -> Cells:
    """The legal cells of the allowed points. Every cell stands for `each` layouts in the counts of what is ruled out."""
    batch = job.training.global_batch_size
    assert batch is not None
    worlds, moe = len(grid.worlds), bool(job.model.num_moe_experts)
    sizes: dict[int, Array] = {}
    micro = np.array(grid.micro)
    by_pp = {shape.pp: shape for shape in shapes}
    members = Counter(shape.pp for shape in shapes)
    for pp, shape in by_pp.items():  # data parallel size of each (GPUs, point), 0 where the GPUs do not divide
        table = np.zeros((worlds, len(grid.points)), dtype=np.int64)
        for w, gpus in enumerate(grid.worlds):
            for p, point in enumerate(grid.points):
                if not allowed[p]:
                    continue
                tp, cp, ep, etp = point
                layout = dataclasses.replace(
                    shape.layout, world_size=gpus, tensor_model_parallel_size=tp, context_parallel_size=cp,
                    expert_model_parallel_size=ep, expert_tensor_parallel_size=etp if moe else None,
                )  # fmt: skip
                broken = next(iter(world(job.model, layout)), None)
                if broken:
                    ruled_out[broken.rule] += members[pp] * len(micro) * each
                else:
                    table[w, p] = gpus // (tp * cp * pp)
        sizes[pp] = table
    parts: list[tuple[Array, ...]] = []
    for q, shape in enumerate(shapes):
        per_step: Array = sizes[shape.pp][:, :, None] * micro
        whole: Array = np.maximum(per_step, 1)
        counts: Array = np.floor_divide(batch, whole)
        rest: Array = np.remainder(batch, whole)
        divides = (per_step > 0) & (rest == 0) & (counts > 0)
        ruled_out[BATCH] += int(((per_step > 0) & ~divides).sum()) * each
        cell = np.nonzero(divides)
        number_of = counts[cell]
        known, which = np.unique(number_of, return_inverse=True)
        unscheduled = [next(iter(schedule(job.model, shape.layout, int(value))), None) for value in known]
        fine = np.array([one is None for one in unscheduled], dtype=bool)
        for one, number in zip(unscheduled, np.bincount(which, minlength=len(known)).tolist(), strict=True):
            if one:
                ruled_out[one.rule] += number * each
        keep = fine[which] if len(known) else np.zeros(0, dtype=bool)
        parts.append((np.full(int(keep.sum()), q), *(index[keep] for index in cell), number_of[keep]))
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Cells(empty, empty, empty, empty, empty)
    return Cells(*(np.concatenate(column) for column in zip(*parts, strict=True)))
