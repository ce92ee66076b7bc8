"""Jobs of one structure as arrays: the memory of all of them from one pass through the engine.

Jobs have the same structure when the same tensors exist: the same model, settings and pipeline, the same schedule, and degrees on the
same side of every border that a declaration asks about (tp above 1, above the query groups, ...). What may differ is degrees, GPUs and
micro batch; they become arrays, and every size in the engine with them. Nothing about memory is written here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ...dataclass import dataclass
from ...job.layout import Layout
from ...job.pipeline import build_pipeline
from ...job.training_job import TrainingJob
from ...modules.context import Context
from ...rank.build import build_rank, context_of
from ...rank.declare import Declarer
from ...rank.peak import find_peak
from ...rank.rank import Rank
from ...rank.schedule import enough_microbatches
from ..space.axes import DEGREES
from ..space.points import Point, heads_in_fours, structure_of
from ..space.stages import different_stages

COLUMNS = ("world_size", *DEGREES)
"""Fields of a layout that may differ within a batch."""


@dataclass(frozen=True)
class Batch:
    """Jobs of one structure. `index` says which of the given jobs they are; `job` is the first."""

    job: TrainingJob
    index: tuple[int, ...]
    layout: Layout
    micro_batch_size: Any


@dataclass(frozen=True)
class StagePeaks:
    """Bytes of one stage of every job of a batch: arrays of the batch's length."""

    pp_rank: int
    rank: Rank
    peak: Any
    first_step: Any
    steady: Any


def structure(job: TrainingJob) -> tuple[Any, ...]:
    """What jobs of one batch have in common."""
    layout, model, t = job.layout, job.model, job.training
    vp = layout.virtual_pipeline_model_parallel_size or layout.num_layers_per_virtual_pipeline_stage or 1
    borders = structure_of(model, Point(layout.tp, layout.cp, layout.ep, layout.etp))
    ones: dict[str, Any] = dict.fromkeys(COLUMNS, 1)
    rest = dataclasses.replace(layout, **ones)
    plain = dataclasses.replace(t, micro_batch_size=1, global_batch_size=None)
    group = layout.microbatch_group_size_per_vp_stage or layout.pp
    alike = enough_microbatches(
        layout.pp, vp, job.num_microbatches, group, a2a_overlap=t.overlap_moe_expert_parallel_comm
    )
    fours = tuple(heads * t.micro_batch_size % 4 == 0 for heads in heads_in_fours(model, layout.tp))
    return (id(model), job.gpu.name, job.env, rest, plain, borders, alike, t.micro_batch_size > 1, fours)


def batches(jobs: Iterable[TrainingJob]) -> Iterator[Batch]:
    """The jobs by structure."""
    groups: dict[tuple[Any, ...], list[tuple[int, TrainingJob]]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(structure(job), []).append((index, job))
    for members in groups.values():
        first = members[0][1]
        columns: dict[str, Any] = {name: np.array([_degree(job, name) for _, job in members]) for name in COLUMNS}
        micro = np.array([job.training.micro_batch_size for _, job in members])
        yield Batch(first, tuple(i for i, _ in members), dataclasses.replace(first.layout, **columns), micro)


def _degree(job: TrainingJob, name: str) -> int:
    return job.layout.etp if name == "expert_tensor_parallel_size" else int(getattr(job.layout, name))


def context(batch: Batch) -> Context:
    """What module declarations see: arrays as degrees and as micro batch."""
    training = dataclasses.replace(batch.job.training, micro_batch_size=batch.micro_batch_size)
    return dataclasses.replace(context_of(batch.job), layout=batch.layout, training=training)


def engine(batch: Batch) -> tuple[Declarer, list[Rank]]:
    """The traced units and the pipeline ranks of a batch, with arrays as sizes."""
    declarer, job = Declarer(context(batch)), batch.job
    chunks = build_pipeline(job.model, job.layout).chunks
    return declarer, [build_rank(declarer, stage, job.num_microbatches, job.gpu, job.env) for stage in chunks]


def fullest(batch: Batch) -> tuple[Declarer, list[tuple[Rank, tuple[int, ...]]]]:
    """The same for `different_stages` only. With each stage go the ranks that it stands for."""
    declarer, job = Declarer(context(batch)), batch.job
    return declarer, [
        (build_rank(declarer, stage, job.num_microbatches, job.gpu, job.env), ranks)
        for stage, ranks in different_stages(declarer, job.model, job.layout)
    ]


def stage_peaks(batch: Batch) -> Iterator[StagePeaks]:
    """The memory of every pipeline stage of every job, exactly that of `estimate`."""
    size = len(batch.index)
    for rank in engine(batch)[1]:
        found = find_peak(rank)
        values = (np.broadcast_to(np.asarray(value), size) for value in (found.nbytes, found.first_step, found.steady))
        yield StagePeaks(rank.pp_rank, rank, *values)
