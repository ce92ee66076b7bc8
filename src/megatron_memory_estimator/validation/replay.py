"""A measured run beside the estimate of the same arguments.

Sums over replays: one score per group of near-duplicates, then medians and percentiles.

Pairs of measured runs that differ in one thing: the measured difference beside the estimated one.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..dataclass import dataclass
from ..errors import ConfigError, EstimatorError
from ..estimator import Estimate, Stage, estimate
from ..formulas.beside import published
from ..job.hardware import GIB, MIB
from ..job.training_job import TrainingJob
from ..states.buffers import deals_whole
from ..wording import counted
from .json_lines import TEXT, Kind, lines, one_of
from .logs import Reported
from .runs import Run, read_runs


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
    return job if run.own_rank is None else at_rank(job, run.own_rank)


def at_rank(job: TrainingJob, rank: int) -> TrainingJob:
    """The job as one of its ranks; where data-parallel ranks own whole parameters they differ. Raises ConfigError for one that it lacks."""
    pp_rank_of(job, rank)
    layout = job.layout
    if not deals_whole(job.training) or job.training.data_parallel_rank is not None:
        return job
    owner = rank // layout.tp % (layout.dp * layout.cp)
    return replace(job, training=replace(job.training, data_parallel_rank=owner))


def pp_rank_of(job: TrainingJob, rank: int) -> int:
    """The pipeline stage of a rank: stages are outermost (Megatron-Core `parallel_state.py`). Raises ConfigError for one that it lacks."""
    layout = job.layout
    if rank >= layout.world_size:
        raise ConfigError(
            f"there is no rank {rank}: the run has {counted(layout.world_size, 'GPU')}, and ranks count from 0; give --num-gpus of the "
            "measured run"
        )
    return rank // (layout.world_size // layout.pp)


def resumed(job: TrainingJob, report: Reported) -> bool:
    """Whether the optimizer's moments were there from the start."""
    return bool(report.loaded and job.training.load_optim)


def captured_later(job: TrainingJob, report: Reported) -> bool:
    """Whether a report is from before TransformerEngine's graphs, or that of the whole iteration, are captured."""
    t = job.training
    return t.cuda_graph_impl in ("transformer_engine", "full_iteration") and report.steps <= t.cuda_graph_warmup_steps


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
        pairs = [(result.stages[pp_rank_of(result.job, rank)], value) for rank, value in enumerate(per_rank)]
        return max(pairs, key=lambda pair: abs(pair[0].peak_allocated_bytes / pair[1] - 1))
    stage = result.peak_stage if run.own_rank is None else result.stages[pp_rank_of(result.job, run.own_rank)]
    return stage, run.measured.get("max_allocated_bytes")


class Score(NamedTuple):
    """A group: the mean of the absolute errors of its runs (None if none was measured), and how many are refused."""

    group: str
    family: str
    runs: int
    refused: int
    steady: float | None
    peak: float | None
    first_step: float | None
    beyond_state: float | None
    signed_peak: float | None


class Summary(NamedTuple):
    """Median, 90th percentile and largest of the groups' scores."""

    groups: int
    median: float
    p90: float
    worst: float


class Repeat(NamedTuple):
    """A configuration that was run more than once: its runs, and the least and the largest error of their peaks."""

    name: str
    moe: bool
    runs: int
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Spread of the errors of equal runs. No estimate of the configuration can be nearer to all of them than half of it."""
        return self.high - self.low


def repeats(replays: Iterable[Replay]) -> list[Repeat]:
    """Configurations that were run more than once, on machines of one size, those with the largest spread first."""
    equal: dict[str, list[Replay]] = {}
    for found in replays:
        run = found.run
        if found.peak:
            key = json.dumps([run.num_gpus, run.args, run.bridge], sort_keys=True)
            equal.setdefault(key, []).append(found)
    result = []
    for members in equal.values():
        errors = [member.peak.error for member in members if member.peak]
        if len(errors) > 1:
            name = members[0].run.id.split("/")[1:3][-1]
            result.append(Repeat(name, members[0].moe, len(errors), min(errors), max(errors)))
    return sorted(result, key=lambda one: -one.spread)


def scores(replays: Iterable[Replay]) -> list[Score]:
    """One score per group, worst peak first."""
    groups: dict[str, list[Replay]] = {}
    for found in replays:
        groups.setdefault(found.run.group, []).append(found)
    result = []
    for name, members in groups.items():
        result.append(
            Score(
                group=name,
                family=members[0].run.family,
                runs=len(members),
                refused=sum(bool(member.refused) for member in members),
                steady=_mean(members, "steady"),
                peak=_mean(members, "peak"),
                first_step=_mean(members, "first_step"),
                beyond_state=_mean(members, "beyond_state"),
                signed_peak=_mean(members, "peak", signed=True),
            )
        )
    return sorted(result, key=lambda score: -(score.peak or 0))


def _mean(members: Sequence[Replay], name: str, *, signed: bool = False) -> float | None:
    pairs: list[Pair | None] = [getattr(member, name) for member in members]
    errors = [pair.error if signed else abs(pair.error) for pair in pairs if pair is not None]
    return statistics.fmean(errors) if errors else None


def summary(values: Iterable[float | None]) -> Summary | None:
    """Median, 90th percentile (nearest rank) and largest; None without values."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return None
    rank = max(0, -(-9 * len(found) // 10) - 1)
    return Summary(len(found), statistics.median(found), found[rank], found[-1])


def large_peaks(replays: Sequence[Replay]) -> Summary | None:
    """Absolute errors of the single runs whose measured peak is above 16 GiB."""
    return summary(abs(found.peak.error) for found in replays if found.peak and found.peak.measured > 16 * GIB)


def under_estimated(replays: Iterable[Replay], by: float = 0.0) -> list[Replay]:
    """Runs whose peak is under-estimated by more than a fraction, worst first."""
    low = [
        (found.peak.error, index, found) for index, found in enumerate(replays) if found.peak and found.peak.error < -by
    ]
    return [found for _, _, found in sorted(low)]


def steady_outside(replays: Iterable[Replay]) -> list[str]:
    """Groups whose mean steady error is above 1.2 % and, in the mean, above 8 MiB."""
    groups: dict[str, list[Pair]] = {}
    for found in replays:
        if found.steady:
            groups.setdefault(found.run.group, []).append(found.steady)
    return [
        name
        for name, pairs in groups.items()
        if statistics.fmean(abs(pair.error) for pair in pairs) > 0.012
        and statistics.fmean(abs(pair.estimated - pair.measured) for pair in pairs) > 8 * MIB
    ]


def sums(replays: Sequence[Replay]) -> dict[str, dict[str, Summary | None]]:
    """Steady, peak, first step and the part beyond state; of all groups, dense ones, MoE ones and each family."""
    kinds: dict[str, list[Replay]] = {"all": list(replays)}
    kinds["dense"] = [replay for replay in replays if not replay.moe]
    kinds["moe"] = [replay for replay in replays if replay.moe]
    for replay in replays:
        kinds.setdefault(f"family {replay.run.family}", []).append(replay)
    for replay in replays:
        for feature in replay.run.features:
            kinds.setdefault(f"feature {feature}", []).append(replay)
    result = {}
    for name, members in kinds.items():
        of_groups = scores(members)
        result[name] = {
            "steady": summary(score.steady for score in of_groups),
            "peak": summary(score.peak for score in of_groups),
            "first_step": summary(score.first_step for score in of_groups),
            "beyond_state": summary(score.beyond_state for score in of_groups),
        }
    return result


PAIRS = os.path.join(os.path.dirname(__file__), "differences.jsonl")
FIGURES = {
    "peak": "max_allocated_bytes", "steady": "allocated_bytes", "first_step": "first_step_max_allocated_bytes",
}  # fmt: skip
SIDE = Kind("the id of a run, or an object", lambda value: isinstance(value, str | dict))
KINDS = {
    "what": TEXT, "figure": one_of(*FIGURES), "before": SIDE, "after": SIDE, "source": TEXT,
    "measured_bytes": Kind("whole bytes", lambda value: type(value) is int),
}  # fmt: skip
RELATIVE, ABSOLUTE = 0.25, 0.3 * GIB
"""A difference agrees when it has the right sign and its size is within one of these."""


@dataclass(frozen=True)
class Difference:
    """Bytes of the second run minus those of the first, measured and estimated."""

    what: str
    figure: str
    measured: int
    estimated: int
    source: str

    @property
    def agrees(self) -> bool:
        """Right sign, and the size within 25 % or 0.3 GiB."""
        off = abs(self.estimated - self.measured)
        return self.estimated * self.measured > 0 and off <= max(RELATIVE * abs(self.measured), ABSOLUTE)


def differences(path: str = PAIRS) -> list[Difference]:
    """All pairs of the project's table.

    A side is the id of a measured run, or a model with GPUs and settings whose difference alone is published.
    """
    runs = {run.id: run for run in read_runs()}
    found = []
    for _, _, record in lines(path, KINDS):
        figure = record["figure"]
        sizes = []
        for side in (record["before"], record["after"]):
            if isinstance(side, str):
                run = runs[side]
                stage, _ = measured_stage(run, estimate(job_of(run)))
            else:
                stage = estimate(_job(side)).peak_stage
            sizes.append(_bytes(stage, figure))
        measured = record.get("measured_bytes")
        if measured is None:
            key = FIGURES[figure]
            measured = runs[record["after"]].measured[key] - runs[record["before"]].measured[key]
        found.append(Difference(record["what"], figure, measured, sizes[1] - sizes[0], record["source"]))
    return found


def _job(side: Mapping[str, Any]) -> TrainingJob:
    if "bridge" in side:
        return TrainingJob.from_bridge(side["bridge"], side["num_gpus"], gpu=side["gpu"], **side.get("settings", {}))
    return TrainingJob.from_hf(side["model"], side["num_gpus"], gpu=side["gpu"], **side["settings"])


def _bytes(stage: Stage, figure: str) -> int:
    if figure == "steady":
        return stage.steady_allocated_bytes
    return stage.peak_allocated_bytes if figure == "peak" else stage.first_step_peak_allocated_bytes
