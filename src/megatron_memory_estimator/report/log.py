"""What a training log says of memory, beside the estimate of the run: how far they are apart, and what may explain it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..device.outside import nccl_terms
from ..device.terms import Range, together
from ..errors import ConfigError
from ..estimator import Estimate, Stage, stage_of
from ..evidence.figures import KIND_OF, LAST, TOOLS, Figure, OutOfMemoryMessage, figures, largest, out_of_memory
from ..evidence.layers import LayerReport, layer_reports
from ..evidence.why import apart, figure
from ..job.hardware import GIB, MIB
from ..validation.logs import Reported, read_log
from ..validation.replay import at_rank, captured_later, pp_rank_of, resumed
from .quantities import document, exactly, gib, table


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


class Told(NamedTuple):
    """A figure of another line of the log, the stage that it is beside, and what is expected of that; None of host memory."""

    figure: Figure
    pp_rank: int
    expected: Range | None

    @property
    def more(self) -> int:
        """Bytes that it is more than expected; below 0 less. What is of a moment alone is never less: the peak was another moment."""
        found = apart(self.figure.nbytes, self.expected) if self.expected is not None else 0
        return found if self.figure.peak else max(found, 0)


class RanOut(NamedTuple):
    """A message of torch that memory ran out, the stage that it is beside, and what that is expected to allocate at its peak."""

    message: OutOfMemoryMessage
    pp_rank: int
    expected: int

    @property
    def needed(self) -> int:
        """Bytes that would have been allocated with what was asked for."""
        return self.message.allocated + self.message.asked


class Kept(NamedTuple):
    """What a layer keeps for its backward by a report, and by the estimate; its stage."""

    report: LayerReport
    pp_rank: int
    expected: int

    @property
    def retained(self) -> dict[str, int]:
        """Bytes that the layer keeps: the mean and the most of the report, and the estimate's."""
        return {"mean": self.report.mean_bytes, "most": self.report.most_bytes, "estimated": self.expected}

    @property
    def more(self) -> int:
        """Bytes that the report is outside the estimate, which may be anywhere from its mean to its most."""
        return -apart(self.expected, Range(self.report.mean_bytes, self.report.most_bytes))


class Log(NamedTuple):
    """What a log says of memory, beside the estimate of its run."""

    result: Estimate
    ranks: list[Compared]
    figures: list[Told]
    ran_out: list[RanOut]
    layers: list[Kept]


def compared(report: Reported, result: Estimate, pp_rank: int) -> Compared:
    """A report beside the figures of its iteration: the first step without loaded optimizer state has no moments while it runs; before
    TransformerEngine's graphs and those of whole iterations are captured nothing is kept for them. Where data-parallel ranks own whole
    parameters, the rank's own."""
    job, stage = result.job, result.stages[pp_rank]
    own = at_rank(job, report.rank)
    if own is not job:
        job, stage = own, stage_of(own, pp_rank)
    t = job.training
    figure = "peak"
    if captured_later(job, report):
        plain = dataclasses.replace(t, cuda_graph_impl="none", cuda_graph_modules=())
        stage, figure = stage_of(dataclasses.replace(job, training=plain), pp_rank), "peak before the capture"
    if report.steps == 1 and not resumed(job, report):
        return Compared(
            report, pp_rank, stage.steady_allocated_bytes, stage.first_step_peak_allocated_bytes, "first step"
        )
    return Compared(report, pp_rank, stage.steady_allocated_bytes, stage.peak_allocated_bytes, figure)


def compared_log(text: str, result: Estimate) -> Log:
    """The memory reports of every rank in a log (the last, and that of the first step), the most of every other figure, and what ran
    out, each beside the estimate of its stage. Raises ConfigError for a log without figures, or for a rank that the run lacks."""
    found = Log(
        result,
        [compared(one, result, pp_rank_of(result.job, one.rank)) for one in read_log(text)],
        [_told(one, result) for one in largest(figures(text))],
        [_ran_out(one, result) for one in out_of_memory(text)],
        _layers(layer_reports(text), result),
    )
    if not (found.ranks or found.figures or found.ran_out or found.layers):
        raise ConfigError(
            "the log has no memory lines such as [Rank 0] (after 2 iterations) memory (MB) | allocated: ... | max allocated: ...; "
            "docs/how-to/validation.md lists the formats that are read"
        )
    return found


def _stage(result: Estimate, rank: int | None) -> Stage:
    """The stage of a rank; the fullest where the log does not say which it is."""
    return result.peak_stage if rank is None else result.stages[pp_rank_of(result.job, rank)]


def _told(one: Figure, result: Estimate) -> Told:
    job = result.job
    rank = int(one.of) if one.of.isdecimal() else None
    if one.source in TOOLS and job.layout.world_size > job.gpu.gpus_per_node:
        rank = None  # a GPU of one of several hosts
    stage = _stage(result, job.layout.world_size - 1 if one.of == LAST else rank)
    kind = KIND_OF.get(one.quantity)
    if one.quantity == "NCCL":
        return Told(one, stage.pp_rank, together(nccl_terms(job)))
    return Told(one, stage.pp_rank, figure(stage, kind, first=one.iteration == 1) if kind is not None else None)


def _layers(found: list[LayerReport], result: Estimate) -> list[Kept]:
    """Each layer beside what the estimate has it keep. Raises ConfigError for a layer that the run lacks."""
    kept = {
        run.first_of(copy): (stage.pp_rank, run.trace.saved_bytes)
        for stage in result.stages
        for plan in stage.rank.plans
        for run in plan.runs
        if run.first_layer >= 0
        for copy in range(run.copies)
    }
    for one in found:
        if one.number not in kept:
            raise ConfigError(f"line {one.line}: there is no layer {one.number}: the run has {len(kept)} layers")
    return [Kept(one, *kept[one.number]) for one in found]


def _ran_out(one: OutOfMemoryMessage, result: Estimate) -> RanOut:
    stage = _stage(result, int(one.rank) if one.rank else None)
    return RanOut(one, stage.pp_rank, stage.peak_allocated_bytes)


SCHEMA = "megatron-memory-log/1"
LOG = table("log", {"schema": lambda _: SCHEMA, "sentence": lambda log: " ".join(log_lines(log))})


def log_document(log: Log) -> dict[str, Any]:
    """Schema `megatron-memory-log/1`; bytes are whole numbers."""
    return document(LOG, log)


def log_lines(log: Log) -> Iterator[str]:
    """What ran out; how far the measured peaks are from the estimate where they are farthest, and what may explain it."""
    for one in log.ran_out:
        yield from _out_lines(one)
    if log.ranks:
        yield from _rank_lines(log.ranks, log.result)
    elif log.figures:
        yield _figure_line(log.figures)
    if log.layers:
        yield _layer_line(log.layers)


def _layer_line(layers: Sequence[Kept]) -> str:
    worst = max(layers, key=lambda one: abs(one.more))
    if abs(worst.more) < NOTED * worst.expected:
        return f"Each of {len(layers)} layers keeps what is expected for its backward, within {NOTED:.0%}."
    said = f"{worst.report.mean_bytes / MIB:.1f} MiB in the mean and {worst.report.most_bytes / MIB:.1f} at most"
    return f"Layer {worst.report.number} ({worst.report.kind}) keeps {said} for its backward; {worst.expected / MIB:.1f} are expected."


NOTED = 0.02
"""Share of a layer's bytes from which a difference is said."""


def _out_lines(one: RanOut) -> Iterator[str]:
    message = one.message
    if not message.allocated:
        yield (
            f"Rank {message.rank} ran out of memory: it asked for {gib(message.asked)} GiB with {gib(message.free)} free of "
            f"{gib(message.capacity)}; {gib(one.expected)} GiB are expected to be allocated at the peak of stage {one.pp_rank}."
        )
        return
    who = f"Rank {message.rank}" if message.rank else "A rank"
    parts = (
        (message.unallocated, "reserved and free"),
        (message.outside, "of the process outside torch"),
        (message.others, "of other processes"),
    )
    beside = "".join(f", {gib(size)} {what}" for size, what in parts if size)
    yield (
        f"{who} ran out of memory: it asked for {gib(message.asked)} GiB with {gib(message.allocated)} allocated{beside}, on "
        f"a GPU of {gib(message.capacity)} GiB."
    )
    side = "more than" if one.needed > one.expected else "within"
    yield (
        f"That is {gib(one.needed)} GiB allocated, {side} the {gib(one.expected)} GiB expected at the peak of stage {one.pp_rank}."
    )


def figure_text(one: Told) -> str:
    """Which figure it is, of whom, and when."""
    figure = one.figure
    whose = {"": "", LAST: ", last rank"}.get(figure.of, f", {'GPU' if figure.source in TOOLS else 'rank'} {figure.of}")
    when = f", iteration {figure.iteration}" if figure.iteration is not None else ""
    if figure.quantity == "NCCL":
        return f"What NCCL {'allocated' if figure.peak else 'has for NVLS'}{whose}"
    return f"{figure.source}: {'peak' if figure.peak else 'now'} {figure.quantity}{whose}{when}"


def _figure_line(found: Sequence[Told]) -> str:
    worst = max(found, key=lambda one: abs(one.more))
    if not worst.more:
        return "Every figure is within what is expected of its stage (figures of a moment are lower bounds)."
    side, expected = "above" if worst.more > 0 else "below", worst.expected or Range(0, 0)
    measured = gib(worst.figure.nbytes)
    said = f"{figure_text(worst)} is {measured} GiB, {gib(abs(worst.more))} {side} the {exactly(expected)} GiB expected"
    if worst.figure.quantity == "NCCL":
        return f"{said}: --nccl-gib {measured} counts what it says."
    return f"{said} of stage {worst.pp_rank}: megatron-memory why --measured {measured}GiB says what may explain it."


def _rank_lines(rows: Sequence[Compared], result: Estimate) -> Iterator[str]:
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
