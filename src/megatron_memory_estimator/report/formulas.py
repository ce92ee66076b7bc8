"""The published formulas beside the simulated estimate."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..estimator import Estimate
from ..formulas.beside import published
from ..job.training_job import TrainingJob
from .quantities import gib

TITLES = {"bridge": "Megatron-Bridge formula", "megatron_lm": "Megatron-LM formula"}


def formulas_section(job: TrainingJob) -> dict[str, Any]:
    """Bytes of each formula's most loaded GPU; `refused` says why a formula has no value."""
    return {
        found.formula: {
            "weight_and_optimizer_bytes": found.weight_and_optimizer_bytes,
            "activation_bytes": found.activation_bytes,
            "total_bytes": found.total_bytes,
            "refused": found.refused or None,
        }
        for found in published(job)
    }


def print_formulas(estimate: Estimate, console: Console) -> None:
    """A table of state, the rest, and the total of the fullest GPU, in GiB."""
    top = estimate.peak_stage
    shares = top.breakdown_bytes
    state = shares["weights"] + shares["gradients"] + shares["optimizer"]
    table = Table("GiB of the fullest GPU", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model state", "the rest", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    total = top.peak_allocated_bytes
    table.add_row(f"this estimate (stage {top.pp_rank})", gib(state), gib(total - state), gib(total))
    for found in published(estimate.job):
        if found.weight_and_optimizer_bytes is None or found.activation_bytes is None or found.total_bytes is None:
            table.add_row(TITLES[found.formula], "-", "-", found.refused)
            continue
        sizes = (found.weight_and_optimizer_bytes, found.activation_bytes, found.total_bytes)
        table.add_row(TITLES[found.formula], *map(gib, sizes))
    console.print()
    console.print(table)
