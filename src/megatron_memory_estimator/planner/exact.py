"""The figures of one layout, as `estimate` and `throughput` give them; layouts with the same degrees share their units."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

from ..device.terms import Range, widest
from ..device.verdict import device_range
from ..job.training_job import TrainingJob
from ..modules.layers import Declaration
from ..rank.build import build_rank, context_of
from ..rank.chunks import TracedUnit
from ..rank.declare import Declarer
from ..rank.peak import find_peak
from ..rank.rank import Rank
from ..states.optimizers import OPTIMIZERS
from ..tape.tensor import total
from ..throughput.machine import Machine
from ..throughput.step import step_parts
from .space.stages import different_stages, stands

NANOSECONDS = 1e9
"""A second has so many. Steps of a search are whole nanoseconds: layouts that are as fast tie, whatever order their parts are added in."""


class Figures(NamedTuple):
    """Seconds of a step and their parts, allocated bytes of the fullest stage, and the range of device bytes."""

    step: float
    parts: dict[str, float]
    peak: int
    needed: Range


class _Stages(NamedTuple):
    """A job with its stages that are different, and the seconds of its step with their parts."""

    job: TrainingJob
    ranks: list[Rank]
    seconds: tuple[float, dict[str, float]]


class Exact:
    """Evaluates layouts of one model on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._units: dict[Any, tuple[dict[object, Declaration], dict[object, TracedUnit]]] = {}

    def figures(self, job: TrainingJob) -> Figures:
        """The figures of a legal layout, from its stages that are different."""
        return self._figures(self._stages(job))

    def figures_below(self, job: TrainingJob, step: float) -> Figures | None:
        """The figures of a legal layout whose step is shorter than that; of others no bytes are looked for."""
        stages = self._stages(job)
        return self._figures(stages) if stages.seconds[0] < step else None

    def _stages(self, job: TrainingJob) -> _Stages:
        declarer = Declarer(context_of(job))
        layout, t = job.layout, job.training
        key = (layout.tp, layout.cp, layout.ep, layout.etp, layout.sequence_parallel, layout.cp_comm_type, t)
        declarer.share(*self._units.setdefault(key, ({}, {})))
        stages = different_stages(declarer, job.model, layout)
        if OPTIMIZERS[t.optimizer].by_matrix:  # which stage is fullest is a matter of the sizes of its parameters
            stages = [(chunks, (rank,)) for chunks, ranks in stages for rank in ranks]
        ranks = [build_rank(declarer, chunks, job.num_microbatches, job.gpu, job.env) for chunks, _ in stages]
        parts = step_parts(self.machine, declarer, ranks, job.num_microbatches, stands(stages))
        step = round(total(parts.values()) * NANOSECONDS) / NANOSECONDS
        return _Stages(job, ranks, (step, parts))

    def _figures(self, stages: _Stages) -> Figures:
        found = [(rank, find_peak(rank)) for rank in stages.ranks]
        needed = reduce(widest, (device_range(stages.job, rank, peak) for rank, peak in found))
        return Figures(*stages.seconds, max(peak.nbytes for _, peak in found), needed)
