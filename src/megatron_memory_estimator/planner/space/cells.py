"""The legal cells of a space: pipelines, GPUs, degrees and micro batch sizes that divide the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...job.training_job import TrainingJob
from ...legality.pipeline import schedule
from .legal import BATCH, replicas
from .points import Cells, Grid, Shape

Cell = tuple[int, int, int, int, int]
"""Shape, GPUs, point and micro batch size by index, and the microbatches."""


def legal_cells(
    job: TrainingJob, shapes: Sequence[Shape], grid: Grid, allowed: Sequence[bool], each: int, ruled_out: Counter[str]
) -> Cells:
    """The legal cells of the allowed points. Every cell stands for `each` layouts in the counts of what is ruled out."""
    sizes = replicas(job, shapes, grid, allowed, each, ruled_out)
    found: list[Cell] = []
    for number, shape in enumerate(shapes):
        found += _of_shape(job, number, shape, sizes[shape.pp], grid, each, ruled_out)
    columns: Any = zip(*found, strict=True) if found else [()] * 5
    return Cells(*columns)


def _of_shape(
    job: TrainingJob,
    number: int,
    shape: Shape,
    sizes: Sequence[Sequence[int]],
    grid: Grid,
    each: int,
    ruled_out: Counter[str],
) -> list[Cell]:
    """The legal cells of one shape."""
    batch = job.training.global_batch_size
    assert batch is not None
    divides: list[Cell] = []
    uneven = 0
    for world, row in enumerate(sizes):
        for point, replica in enumerate(row):
            for micro, size in enumerate(grid.micro if replica else ()):
                count, rest = divmod(batch, replica * size)
                if rest or not count:
                    uneven += 1
                else:
                    divides.append((number, world, point, micro, count))
    ruled_out[BATCH] += uneven * each
    members = Counter(count for *_, count in divides)
    fine = set()
    for count in sorted(members):
        broken = next(iter(schedule(shape.of(job.model), shape.layout, count)), None)
        if broken is None:
            fine.add(count)
        else:
            ruled_out[broken.rule] += members[count] * each
    return [cell for cell in divides if cell[-1] in fine]
