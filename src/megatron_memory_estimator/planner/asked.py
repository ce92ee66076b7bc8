"""Axes that settings of a request fix."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..inputs.searched import RECOMPUTE, SWITCHES
from ..job.training_job import TrainingJob


def fixed(given: dict[str, str], values: dict[str, Any], job: TrainingJob) -> None:
    """Axes that other options fix: switches, and recomputation by Megatron's own names."""
    for name in SWITCHES:
        if values.get(name) is not None:
            given[name] = "on" if values[name] else "off"
    if values.get("recompute_granularity") is None and any(
        values.get(name) not in (None, ()) for name in RECOMPUTE[1:]
    ):
        raise ConfigError(
            "recompute_method, _num_layers and _modules go with --recompute-granularity; or use --recompute"
        )
    if any(values.get(name) not in (None, ()) for name in RECOMPUTE):
        if "recompute" in given:
            raise ConfigError("--recompute and --recompute-granularity say the same thing; give one of them")
        from .space.recompute import own_recompute

        given["recompute"] = own_recompute(job.training)
    if values.get("optimizer_cpu_offload") and "optimizer_offload_fraction" not in given:
        given["optimizer_offload_fraction"] = "1"
