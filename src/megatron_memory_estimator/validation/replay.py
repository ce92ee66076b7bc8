"""A measured run beside the estimate of the same arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..dataclass import dataclass
from ..errors import EstimatorError
from ..estimator import Estimate, Stage, estimate
from ..formulas.beside import published
from ..job.training_job import TrainingJob
from ..states.buffers import deals_whole
from .runs import Run


@dataclass(frozen=True)
class Pair:
    """A measured and an estimated number of bytes."""

    measured: int
    estimated: int

    @property
    def error(self) -> float:
        """Relative error; negative where the estimate is too low."""
        return self.estimated / self.measured - 1


@dataclass(frozen=True)
class Replay:
    """One run: steady and peak memory (None where not measured), or why it is refused.

    `beyond_state` is the peak without what stays between two steps; `formulas` are the totals of the published formulas. `moe`: whether
    it has routed experts; `forced`: whether their rows are forced to be balanced.
    """

    run: Run
    steady: Pair | None = None
    peak: Pair | None = None
    first_step: Pair | None = None
    beyond_state: Pair | None = None
    when: str = ""
    formulas: tuple[tuple[str, Pair], ...] = ()
    refused: str = ""
    moe: bool = False
    forced: bool = False


def job_of(run: Run) -> TrainingJob:
    """The job of a run; where data-parallel ranks own whole parameters, as the rank that was measured."""
    settings: dict[str, Any] = {**run.settings, "gpu": run.gpu, "env": dict(run.env)}
    if run.bridge:
        job = TrainingJob.from_bridge(run.bridge, run.num_gpus, **settings)
    else:
        job = TrainingJob.from_megatron_args(run.args, run.num_gpus, **settings)
    measured = {"last": job.layout.dp * job.layout.cp - 1, "first": 0}.get(run.rank)
    if measured is None or not deals_whole(job.training) or job.training.data_parallel_rank is not None:
        return job
    return replace(job, training=replace(job.training, data_parallel_rank=measured))


def replay(run: Run) -> Replay:
    """Estimate a run and compare. A refused run says why."""
    try:
        job = job_of(run)
        result = estimate(job)
    except EstimatorError as error:
        return Replay(run, refused=str(error))
    stage, peak = measured_stage(run, result)
    steady = run.measured.get("allocated_bytes")
    first = run.measured.get("first_step_max_allocated_bytes")
    floor = stage.steady_allocated_bytes if steady is not None else stage.peak.persistent
    resting = steady if steady is not None else floor
    beyond = None
    if peak is not None and peak > resting:
        beyond = Pair(peak - resting, stage.peak_allocated_bytes - floor)
    totals = [(found.formula, found.total_bytes) for found in published(job)]
    return Replay(
        run,
        steady=Pair(steady, stage.steady_allocated_bytes) if steady else None,
        peak=Pair(peak, stage.peak_allocated_bytes) if peak else None,
        first_step=Pair(first, stage.first_step_peak_allocated_bytes) if first and run.phase == "first-run" else None,
        beyond_state=beyond,
        moe=job.model.has_moe,
        forced=job.training.routing_phase == "forced_balance",
        when=stage.peak.candidate.label,
        formulas=tuple((name, Pair(peak, total)) for name, total in totals if peak and total),
    )


def measured_stage(run: Run, result: Estimate) -> tuple[Stage, int | None]:
    """The stage that was measured, and its peak; of all ranks, the one with the largest error."""
    per_rank = run.measured.get("per_rank_max_allocated_bytes")
    if per_rank:
        per_stage = len(per_rank) // len(result.stages)
        pairs = [(result.stages[rank // per_stage], value) for rank, value in enumerate(per_rank)]
        return max(pairs, key=lambda pair: abs(pair[0].peak_allocated_bytes / pair[1] - 1))
    ends = {"any": result.peak_stage, "first": result.stages[0]}
    stage = ends.get(run.rank, result.stages[-1])
    return stage, run.measured.get("max_allocated_bytes")
