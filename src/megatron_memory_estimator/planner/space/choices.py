"""What may be chosen beside degrees: precision, ways of communication, settings of the optimizer."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

from ...dataclass import dataclass
from ...job.training import Training
from ...job.training_job import TrainingJob
from .axes import Space

PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"fp8": None, "fp4": None},
    "delayed": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp4": None},
    "tensorwise": {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp4": None},
    "blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise", "fp4": None},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp4": None},
    "nvfp4": {"fp4": "e2m1", "fp8": None},
}
"""Precisions of TransformerEngine's linears by name."""


@dataclass(frozen=True)
class Style:
    """Settings of a point that change which tensors a layer has, beside the degrees and recomputation."""

    cp_comm_type: str
    sequence_parallel: bool


@dataclass(frozen=True)
class Option:
    """Settings of the optimizer: they change model state only."""

    distributed: bool
    precision_aware: bool
    offloaded: float

    def settings(self) -> dict[str, Any]:
        """As settings of a training."""
        found: dict[str, Any] = {
            "use_distributed_optimizer": self.distributed,
            "use_precision_aware_optimizer": self.precision_aware,
            "optimizer_cpu_offload": self.offloaded > 0,
        }
        if self.offloaded:
            found["optimizer_offload_fraction"] = self.offloaded
        return found


def precision_settings(job: TrainingJob, name: str) -> dict[str, Any]:
    """The settings of a precision; the job's own are kept."""
    return {} if name == precision_of(job.training) else PRECISIONS[name]


def precision_of(training: Training) -> str:
    """The job's own precision as a value of the axis."""
    return training.low_precision or "bf16"


def training_with(training: Training, option: Option) -> Training:
    """A training with the optimizer's settings of an option."""
    return dataclasses.replace(training, **option.settings())


def options(space: Space) -> list[Option]:
    """All settings of the optimizer."""
    axes = (space.use_distributed_optimizer, space.use_precision_aware_optimizer, space.optimizer_offload_fraction)
    found = [Option(zero, aware or share > 0, share) for zero, aware, share in product(*axes)]  # offloading demands it
    return list(dict.fromkeys(found))


def styles(space: Space, *, tp: bool, cp: bool) -> list[Style]:
    """All styles where tp and cp are above 1 or not: without them there is nothing to choose."""
    ways = space.cp_comm_type if cp else space.cp_comm_type[:1]
    parallel = space.sequence_parallel if tp else (False,)
    return [Style(way, on) for way in ways for on in parallel]
