"""The memory lines of a training log beside the estimate of the run: how far they are apart, and what may explain it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..estimator import Estimate, stage_of
from ..job.hardware import GIB, MIB
from ..validation.logs import Reported, read_log
from ..wording import counted
from .quantities import document, table


class Compared(NamedTuple):
    """A report of a rank, and what the estimate of its stage says of that iteration: bytes allocated between two steps, the largest so far,
    and which of the estimate's figures that is."""

    report: Reported
    pp_rank: int
    allocated_bytes: int
    max_allocated_bytes: int
    figure: str

    @property
    def allocated(self) -> dict[str, int]:
        """Bytes allocated between two steps, measured and estimated."""
        return {"measured": self.report.allocated_bytes, "estimated": self.allocated_bytes}

    @property
    def max_allocated(self) -> dict[str, int]:
        """The largest bytes so far, measured and estimated."""
        return {"measured": self.report.max_allocated_bytes, "estimated": self.max_allocated_bytes}

    @property
    def above(self) -> int:
        """Bytes that the measured peak is above the estimate."""
        return self.report.max_allocated_bytes - self.max_allocated_bytes

    @property
    def share(self) -> float:
        """The error of the estimated peak, as a share of the measured one."""
        return abs(self.above) / max(self.report.max_allocated_bytes, 1)


def compared(report: Reported, result: Estimate, pp_rank: int) -> Compared:
    """A report beside the figures of its iteration: the first step without loaded optimizer state has no moments while it runs; before
    TransformerEngine's graphs and those of whole iterations are captured nothing is kept for them."""
    job, stage = result.job, result.stages[pp_rank]
    t = job.training
    figure = "peak"
    if t.cuda_graph_impl in ("transformer_engine", "full_iteration") and report.steps <= t.cuda_graph_warmup_steps:
        plain = dataclasses.replace(t, cuda_graph_impl="none", cuda_graph_modules=())
        stage, figure = stage_of(dataclasses.replace(job, training=plain), pp_rank), "peak before the capture"
    if report.steps == 1 and not (report.loaded and t.load_optim):
        return Compared(
            report, pp_rank, stage.steady_allocated_bytes, stage.first_step_peak_allocated_bytes, "first step"
        )
    return Compared(report, pp_rank, stage.steady_allocated_bytes, stage.peak_allocated_bytes, figure)


def compared_log(text: str, result: Estimate) -> list[Compared]:
    """The last memory report of every rank in a log beside the estimate of its stage. Raises ConfigError for a rank that the run lacks."""
    gpus = result.job.layout.world_size
    found = read_log(text)
    beyond = next((report.rank for report in found if report.rank >= gpus), None)
    if beyond is not None:
        raise ConfigError(
            f"the log has rank {beyond}, but the run has {counted(gpus, 'GPU')} (ranks count from 0); give --num-gpus of the logged run"
        )
    return [compared(report, result, report.rank // (gpus // len(result.stages))) for report in found]


SCHEMA = "megatron-memory-log/1"
LOG = table(
    "log",
    {
        "schema": lambda _: SCHEMA,
        "sentence": lambda both: " ".join(log_lines(*both)),
        "ranks": lambda both: both[0],
    },
)
"""Of reports beside their estimates, and the whole estimate."""


def log_document(rows: Sequence[Compared], result: Estimate) -> dict[str, Any]:
    """Schema `megatron-memory-log/1`; bytes are whole numbers."""
    return document(LOG, (rows, result))


def log_lines(rows: Sequence[Compared], result: Estimate) -> Iterator[str]:
    """How far the measured peak is from the estimate where it is farthest, and the tensors whose bytes are nearest to that."""
    from ..callback import NOTABLE, explained

    worst = max(rows, key=lambda row: row.share)
    where = f"stage {worst.pp_rank} (rank {worst.report.rank}, iteration {worst.report.iteration})"
    if worst.share <= NOTABLE:
        rest = max(abs(row.report.allocated_bytes / max(row.allocated_bytes, 1) - 1) for row in rows)
        yield (
            f"Every measured peak is within {worst.share:.1%} of the estimate (the farthest: {where}), and what is allocated between steps "
            f"within {rest:.1%}."
        )
        return
    side, high = ("above", "low") if worst.above > 0 else ("below", "high")
    size = f"{abs(worst.above) / GIB:.1f} GiB" if abs(worst.above) > GIB / 10 else f"{abs(worst.above) / MIB:.0f} MiB"
    yield f"The measured peak is {size} {side} the estimate on {where}: the estimate is {100 * worst.share:.2f} % too {high}."
    at_peak = worst.figure == "peak"  # before it moments, or graphs, are not there yet
    if at_peak and (why := explained(result.stages[worst.pp_rank].rows, worst.above, worst.report.max_allocated_bytes)):
        yield f"Tensors to look at: {why}."
    yield "docs/how-to/real_figure.md says what else makes a run take more or less."
