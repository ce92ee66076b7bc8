"""Pairs of measured runs that differ in one thing: the measured difference beside the estimated one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..dataclass import dataclass
from ..estimator import Stage, estimate
from ..job.hardware import GIB
from ..job.training_job import TrainingJob
from .json_lines import TEXT, Kind, lines, one_of
from .replay import job_of, measured_stage
from .runs import read_runs

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
