"""A run and what was measured of it, as a line of `validate --against`: its arguments, and neither names nor paths."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..job.training_job import TrainingJob
from ..validation.logs import Reported, read_log
from ..validation.replay import captured_later, pp_rank_of, resumed
from .launch import environment, megatron_lm, plain_value


def record(job: TrainingJob, rank: int | str, measured: Mapping[str, Any], phase: str = "first-run") -> dict[str, Any]:
    """The line; `rank` is a number, or `last` or `all` (docs/how-to/validation.md). Versions of libraries are in it where
    they were given."""
    launch = megatron_lm(job)
    versions = {
        name: value
        for name in ("transformer_engine_version", "megatron_core_version")
        if name in job.given and (value := getattr(job.training, name))
    }
    found = {
        "gpu": job.gpu.name,
        "num_gpus": job.layout.world_size,
        "rank": rank,
        "phase": phase,
        "args": launch.arguments,
        "settings": {**versions, **{name: plain_value(value) for name, value in launch.beside.items()}},
        "env": environment(job),
        "measured": dict(measured),
    }
    whose = f"rank {rank}" if isinstance(rank, int) else f"rank: {rank}"
    alone = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "id": f"{job.layout.world_size} x {job.gpu.name}, {job.layout.degrees or 'no parallelism'}, {whose}, {alone}",
        **found,
    }


def records_of_log(job: TrainingJob, text: str) -> list[dict[str, Any]]:
    """A line for every rank that reports in a log of Megatron's. Raises ConfigError for a log without reports, for a rank that the run
    lacks, and for a last report from before CUDA graphs were captured, which is no peak."""
    reports: dict[int, list[Reported]] = {}
    for one in read_log(text):
        reports.setdefault(one.rank, []).append(one)
    if not reports:
        raise ConfigError(
            "the log has no memory lines of Megatron, such as [Rank 0] (after 2 iterations) memory (MB) | allocated: ..."
        )
    found = []
    for rank, (*first, last) in reports.items():
        pp_rank_of(job, rank)
        if captured_later(job, last):
            raise ConfigError(
                f"rank {rank} reports last after iteration {last.iteration}, before CUDA graphs are captured: record a later iteration"
            )
        phase = "resumed" if resumed(job, last) else "first-run"
        measured = {"allocated_bytes": last.allocated_bytes}
        if last.steps > 1 or phase == "resumed":
            measured["max_allocated_bytes"] = last.max_allocated_bytes
        if phase == "first-run" and (one := (*first, last)[0]).steps == 1:
            measured["first_step_max_allocated_bytes"] = one.max_allocated_bytes
        found.append({**record(job, rank, measured, phase), "iteration": last.iteration})
    return found
