"""estimate(job): from a job to the memory of every pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .device.host import host_terms
from .device.phases import Phase, phases
from .device.reserved import reserved_bytes
from .device.terms import Range, Term
from .device.verdict import device_bytes, enough_bytes, needed_bytes, verdict
from .errors import ConfigError, UnsupportedError
from .job.hardware import GIB, GPUS
from .job.pipeline import Chunk, build_pipeline
from .job.training_job import TrainingJob
from .legality import check
from .rank.build import build_rank, context_of
from .rank.declare import Declarer
from .rank.peak import Peak, find_peak
from .rank.rank import Rank, Row, parameters
from .rank.rows import breakdown, rows_at_peak, rows_at_rest

if TYPE_CHECKING:
    from .device.replay import Replayed


@dataclass(frozen=True)
class Stage:
    """The memory of one pipeline rank. Bytes are what torch counts as allocated unless named otherwise."""

    job: TrainingJob
    rank: Rank
    peak: Peak
    reserved: Range
    device: Range
    host: tuple[Term, ...] = ()
    """Host memory of one GPU's process during training."""

    @property
    def host_bytes(self) -> Range:
        """Host memory of one GPU's process."""
        return Range(sum(term.low for term in self.host), sum(term.high for term in self.host))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Build, load and save with allocated peaks of their own."""
        return phases(self.job, self.rank, self.peak.steady)

    def __repr__(self) -> str:
        return f"<Stage {self.pp_rank}: {self.peak_allocated_bytes / GIB:.2f} GiB allocated at the peak ({self.peak.candidate.label})>"

    @property
    def pp_rank(self) -> int:
        """Pipeline rank."""
        return self.rank.pp_rank

    @property
    def peak_allocated_bytes(self) -> int:
        """torch.cuda.max_memory_allocated once the optimizer's moments exist."""
        return self.peak.nbytes

    @property
    def first_step_peak_allocated_bytes(self) -> int:
        """The same after the first step of a fresh run."""
        return self.peak.first_step

    @property
    def steady_allocated_bytes(self) -> int:
        """torch.cuda.memory_allocated between two steps."""
        return self.peak.steady

    @cached_property
    def needed_bytes(self) -> int:
        """Device bytes without any fragmentation, at the low end of what is outside torch."""
        return needed_bytes(self.job, self.rank, self.peak)

    @cached_property
    def enough_bytes(self) -> int:
        """Device bytes that are surely enough: what torch cannot give back by its rules, at the high end of what is outside torch."""
        return enough_bytes(self.job, self.rank, self.peak)

    def replay(self, place: int = 0) -> Replayed:
        """What torch reserves, by the allocator's rules played over the whole run of the `place`-th GPU of the stage.

        Takes milliseconds to seconds. Raises UnsupportedError for runs that are not played.
        """
        from .device.replay import replay

        return replay(self.job, self.rank, place, expandable=self.job.env.expandable_segments)

    @cached_property
    def load_bytes(self) -> Range:
        """Device bytes of loading a checkpoint with optimizer state: the load's range beside what is outside torch."""
        found = next(phase for phase in self.phases if phase.name == "load")
        outside = [getattr(self.device, end) - getattr(self.reserved, end) for end in ("low", "high")]
        return Range(found.low + outside[0], found.high + outside[1])

    @property
    def in_flight(self) -> int:
        """Most chunk-microbatches alive at once."""
        return self.rank.schedule.max_in_flight

    @cached_property
    def num_parameters(self) -> tuple[int, int]:
        """(dense, expert) parameters of one GPU."""
        return parameters(self.rank)

    @cached_property
    def rows(self) -> list[Row]:
        """Every tensor alive at the peak."""
        return rows_at_peak(self.rank, self.peak)

    @cached_property
    def steady_rows(self) -> list[Row]:
        """Every tensor alive between two steps."""
        return rows_at_rest(self.rank)

    def at(self, moment: str) -> tuple[str, int, list[Row]]:
        """(what the moment is, bytes allocated, tensors) of "peak" or "steady". Raises ConfigError for another word."""
        if moment == "peak":
            return f"peak: {self.peak.candidate.label}", self.peak_allocated_bytes, self.rows
        if moment == "steady":
            return "between two steps", self.steady_allocated_bytes, self.steady_rows
        raise ConfigError(f"at={moment!r} is not one of peak, steady")

    @cached_property
    def breakdown_bytes(self) -> dict[str, int]:
        """Bytes at the peak by part; they sum to `peak_allocated_bytes`."""
        return breakdown(self.rows)


@dataclass(frozen=True)
class Estimate:
    """The result of `estimate`: the job and one `Stage` per pipeline rank."""

    job: TrainingJob
    stages: tuple[Stage, ...]
    declarer: Declarer = field(repr=False, compare=False)
    """The traced units that the stages are made of."""

    def __repr__(self) -> str:
        top, job = self.peak_stage, self.job
        gpus = f"{job.layout.world_size} {job.gpu.name}"
        where = f"stage {top.pp_rank} of {len(self.stages)} peaks at {top.peak_allocated_bytes / GIB:.2f} GiB allocated"
        return f"<Estimate {job.name or 'model'} on {gpus} ({job.layout.degrees}): {self.verdict(job.gpu.memory_bytes)}, {where}>"

    @property
    def peak_stage(self) -> Stage:
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.peak_allocated_bytes)

    def stage(self, pp_rank: int | None) -> Stage:
        """The stage of a pipeline rank, None for the highest peak. Raises ConfigError for one that does not exist."""
        if pp_rank is None:
            return self.peak_stage
        if not 0 <= pp_rank < len(self.stages):
            raise ConfigError(f"stage {pp_rank} does not exist; the stages are 0 to {len(self.stages) - 1}")
        return self.stages[pp_rank]

    def verdicts(self) -> list[tuple[str, int, str]]:
        """(GPU name, memory bytes, one of VERDICTS in device/verdict.py) for every GPU of the catalogue."""
        return [(gpu.name, gpu.memory_bytes, self.verdict(gpu.memory_bytes)) for gpu in GPUS]

    def verdict(self, memory_bytes: int) -> str:
        """What the run is on a GPU with so much memory: one of VERDICTS in device/verdict.py."""
        return verdict(self.needed_bytes, self.enough_bytes, memory_bytes, self.load_low)

    @cached_property
    def needed_bytes(self) -> int:
        """Device bytes that no allocator can do without, on the fullest stage."""
        return max(stage.needed_bytes for stage in self.stages)

    @cached_property
    def enough_bytes(self) -> int:
        """Device bytes that are surely enough, on the fullest stage."""
        return max(stage.enough_bytes for stage in self.stages)

    @cached_property
    def load_low(self) -> int:
        """Device bytes that loading a checkpoint with optimizer state needs at least, on the fullest stage."""
        return max(stage.load_bytes.low for stage in self.stages)

    def table(self) -> list[dict[str, Any]]:
        """One record per stage with plain numbers, bytes in columns that say so; `pandas.DataFrame` takes it."""
        from .report.records import stage_records

        return stage_records(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document (schema `megatron-memory-estimate/1`)."""
        from .report.document import document

        return document(self)


def estimate(job: TrainingJob) -> Estimate:
    """The memory of every pipeline stage.

    Raises LayoutError for a layout that Megatron-Core refuses and UnsupportedError for features that are not modelled.
    """
    if not isinstance(job, TrainingJob):
        raise ConfigError(
            "estimate takes a TrainingJob; make one with TrainingJob.from_hf, from_config or from_megatron_args"
        )
    if job.refusal:
        raise UnsupportedError(job.refusal)
    check(job.model, job.layout, job.training, job.gpu, job.num_microbatches)
    pipeline = build_pipeline(job.model, job.layout)
    declarer = Declarer(context_of(job))
    stages = tuple(_stage(job, declarer, chunks) for chunks in pipeline.chunks)
    if job.training.peft != "none" and not any(stage.rank.buffers for stage in stages):
        raise ConfigError(
            f"peft_target_modules={','.join(job.training.peft_target_modules)} names no linear of this model"
        )
    return Estimate(job, stages, declarer)


def _stage(job: TrainingJob, declarer: Declarer, chunks: tuple[Chunk, ...]) -> Stage:
    rank = build_rank(declarer, chunks, job.num_microbatches, job.gpu, job.env)
    peak = find_peak(rank)
    reserved = reserved_bytes(job, rank, peak)
    return Stage(job, rank, peak, reserved, device_bytes(job, rank, reserved), tuple(host_terms(job, rank)))
