"""The legal cells of a space as arrays, for all pipelines and degrees at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...job.training_job import TrainingJob
from ...legality.pipeline import schedule
from .legal import BATCH, replicas
from .points import Array, Cells, Grid, Shape


def cells(
    job: TrainingJob, shapes: Sequence[Shape], grid: Grid, allowed: Sequence[bool], each: int, ruled_out: Counter[str]
) -> Cells:
    """The legal cells of the allowed points. Every cell stands for `each` layouts in the counts of what is ruled out."""
    sizes = replicas(job, shapes, grid, allowed, each, ruled_out)
    parts = [
        _of_shape(job, number, shape, np.array(sizes[shape.pp]), grid, each, ruled_out)
        for number, shape in enumerate(shapes)
    ]
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Cells(empty, empty, empty, empty, empty)
    return Cells(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _of_shape(
    job: TrainingJob, number: int, shape: Shape, replicas: Array, grid: Grid, each: int, ruled_out: Counter[str]
) -> tuple[Array, ...]:
    """The legal cells of one shape: its number, GPUs, point, micro batch size and microbatches."""
    batch: Any = job.training.global_batch_size
    per_step: Array = replicas[:, :, None] * np.array(grid.micro)
    counts: Array = np.floor_divide(batch, np.maximum(per_step, 1))
    rest: Array = np.remainder(batch, np.maximum(per_step, 1))
    divides = (per_step > 0) & (rest == 0) & (counts > 0)
    ruled_out[BATCH] += int(((per_step > 0) & ~divides).sum()) * each
    places = np.nonzero(divides)
    count_of = counts[places]
    known, which = np.unique(count_of, return_inverse=True)
    unscheduled = [next(iter(schedule(job.model, shape.layout, int(count))), None) for count in known]
    for broken, cells_of in zip(unscheduled, np.bincount(which, minlength=len(known)).tolist(), strict=True):
        if broken:
            ruled_out[broken.rule] += cells_of * each
    fine = np.array([broken is None for broken in unscheduled], dtype=bool)
    keep = fine[which] if len(known) else np.zeros(0, dtype=bool)
    return (np.full(int(keep.sum()), number), *(index[keep] for index in places), count_of[keep])
