"""estimate(job): from a job to the memory of every pipeline stage."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from .accept import accepted
from .dataclass import dataclass
from .device.host import HostTerm, host_terms
from .device.phases import Phase, phases
from .device.reserved import reserved_bytes
from .device.terms import Range, together, widest
from .device.verdict import Allocated, Ranges, Verdict, allocated, phase_ranges, unfragmented, verdict
from .doors import door
from .errors import ConfigError
from .frames import frame
from .job.hardware import GIB, GPUS
from .job.pipeline import Chunk
from .job.training_job import TrainingJob
from .legality.precision import has_recipe
from .rank.build import build_rank
from .rank.declare import Declarer
from .rank.peak import Peak, find_peak
from .rank.rank import Rank, Row, parameters
from .rank.rows import parts_at_peak, rows_at_peak, rows_at_rest
from .wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from .device.replay import Replayed
    from .device.rollout import RolloutPhase
    from .throughput import Throughput
    from .timeline import Timeline


@dataclass(frozen=True)
class Stage:
    """The memory of one pipeline rank. Bytes are what torch counts as allocated unless named otherwise."""

    job: TrainingJob
    """The run."""
    rank: Rank
    """Its buffers, states, chunks and schedule."""
    peak: Peak
    """The moment when most is allocated."""
    reserved: Range
    """Bytes that torch's caching allocator takes during training where there is room, as torch.cuda.max_memory_reserved."""

    @cached_property
    def host(self) -> tuple[HostTerm, ...]:
        """Host memory of one GPU's process during training."""
        return tuple(host_terms(self.job, self.rank))

    @property
    def host_bytes(self) -> Range:
        """Host memory of one GPU's process."""
        return together(self.host)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Build, load and save with allocated peaks of their own, and a first step that may need more than later ones."""
        return phases(self.rank, self.peak)

    @cached_property
    def rollout(self) -> tuple[RolloutPhase, ...]:
        """Phases of reinforcement learning beside training, in the order of a step."""
        if self.job.rollout.rollout_engine is None:
            return ()
        from .device.rollout import rollout_phases

        return rollout_phases(self.job, self.rank)

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
    def phase_ranges(self) -> dict[str, Range]:
        """Device bytes of each phase that verdicts hold (`Environment.phases`): without fragmentation, and surely enough."""
        return phase_ranges(self.job, self.allocated)

    @cached_property
    def allocated(self) -> Allocated:
        """What torch allocates in each of those phases, and what is outside it."""
        return allocated(self.job, self.rank, self.peak, self.rollout)

    @property
    def device(self) -> Range:
        """Device bytes that training can live in: without fragmentation, and surely enough."""
        return self.phase_ranges["training"]

    @property
    def device_used(self) -> Range:
        """What nvidia-smi shows of the process in training where the device has room: reserved, and what is outside torch."""
        outside = self.allocated.outside
        return Range(self.reserved.low + outside.low, self.reserved.high + outside.high)

    @cached_property
    def needed(self) -> Range:
        """The most device bytes of any phase, at either end: what a search compares."""
        return reduce(widest, self.phase_ranges.values())

    def replay(self, place: int = 0) -> Replayed:
        """What torch reserves, by the allocator's rules played over the whole run of the `place`-th GPU of the stage.

        Takes milliseconds to seconds. Raises UnsupportedError for runs that are not played.
        """
        from .device.replay import replay

        return replay(self.job, self.rank, place, expandable=self.job.env.expandable_segments)

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

    def to_frame(self) -> DataFrame:
        """`rows` as a frame of pandas."""
        return frame([row._asdict() for row in self.rows])

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
        return parts_at_peak(self.rank, self.peak)


@dataclass(frozen=True)
class Estimate:
    """The result of `estimate`: the job and one `Stage` per pipeline rank."""

    job: TrainingJob
    """The run."""
    stages: tuple[Stage, ...]
    """What every pipeline stage holds, from stage 0."""
    declarer: Declarer = field(repr=False, compare=False)
    """The traced units that the stages are made of."""

    def __repr__(self) -> str:
        top, job = self.peak_stage, self.job
        gpus = f"{job.layout.world_size} {job.gpu.name}"
        where = f"stage {top.pp_rank} of {len(self.stages)} peaks at {top.peak_allocated_bytes / GIB:.2f} GiB allocated"
        return f"<Estimate {job.name or 'model'} on {gpus} ({job.layout.degrees}): {self.verdict()}, {where}>"

    @property
    def peak_stage(self) -> Stage:
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.peak_allocated_bytes)

    def stage(self, pp_rank: int | None) -> Stage:
        """The stage of a pipeline rank, None for the highest peak. Raises ConfigError for one that does not exist."""
        if pp_rank is None:
            return self.peak_stage
        if not 0 <= pp_rank < len(self.stages):
            raise ConfigError(
                f"stage {pp_rank} does not exist; the run has {counted(len(self.stages), 'stage')}, counted from 0"
            )
        return self.stages[pp_rank]

    def verdicts(self) -> list[Verdict]:
        """The verdict for every GPU of the catalogue whose tensor cores have the numbers of the run."""
        return [self.verdict(gpu.memory_bytes, gpu.name) for gpu in GPUS if has_recipe(self.job.training, gpu)]

    def verdict(self, memory_bytes: int | None = None, gpu: str = "") -> Verdict:
        """What the run is on the job's GPU, or where it may take so many bytes of one."""
        if memory_bytes is None:
            memory_bytes, gpu = self.job.gpu.memory_bytes, self.job.gpu.name
        return verdict(self.job, self._ranges, self._unbroken, memory_bytes, gpu or self.job.gpu.name)

    @cached_property
    def _ranges(self) -> Ranges:
        """Device bytes of every stage and phase."""
        return [(one.pp_rank, name, found) for one in self.stages for name, found in one.phase_ranges.items()]

    @cached_property
    def _unbroken(self) -> Ranges:
        """The same with expandable segments."""
        ranges = ((one.pp_rank, phase_ranges(unfragmented(self.job), one.allocated)) for one in self.stages)
        return [(stage, name, found) for stage, each in ranges for name, found in each.items()]

    @property
    def device(self) -> Range:
        """Device bytes that training can live in, of the stage that needs most: without fragmentation, and surely enough."""
        return self.verdict().events[0].device

    @cached_property
    def needed(self) -> Range:
        """The most device bytes of any phase and stage, at either end: what a search compares."""
        return reduce(widest, (stage.needed for stage in self.stages))

    @cached_property
    def without_fragmentation(self) -> int:
        """Device bytes that are surely enough in every phase with expandable segments."""
        return max(found.high for _, _, found in self._unbroken)

    @property
    def phases(self) -> dict[str, Range]:
        """Device bytes of each phase that the verdict holds, of the stage that needs most: training, load, save, build, and those of a step
        of reinforcement learning."""
        return {one.phase: one.device for one in self.verdict().events}

    @cached_property
    def throughput(self) -> Throughput:
        """How long a step takes; where no global batch was given, one of 4 Mi tokens."""
        found: Throughput = door("throughput of estimate")(self)
        return found

    def timeline(self, stage: int | None = None) -> Timeline:
        """One training step of a stage, event by event: bytes and seconds; None for the highest peak."""
        found: Timeline = door("timeline of estimate")(self, self.stage(stage).rank)
        return found

    def memory_snapshot(self, stage: int | None = None) -> dict[str, Any]:
        """A step of a stage for PyTorch's memory visualizer. Raises UnsupportedError where a forward runs beside a backward."""
        found: dict[str, Any] = door("snapshot of estimate")(self, self.stage(stage).rank)
        return found

    def table(self) -> list[dict[str, Any]]:
        """One record per stage with plain numbers, bytes in columns that say so."""
        found: list[dict[str, Any]] = door("estimate as records")(self)
        return found

    def to_frame(self) -> DataFrame:
        """`table()` as a frame of pandas."""
        return frame(self.table())

    def plot(self, path: str | None = None) -> Figure:
        """The stages as a figure of matplotlib, also written to `path` (.png, .svg, .pdf). Needs the extra `plot`."""
        found: Figure = door("estimate as figure")(self, path)
        return found

    def __str__(self) -> str:
        """What the command prints."""
        return str(door("estimate as text")(self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(door("estimate as html")(self))

    def to_dict(self) -> dict[str, Any]:
        """The JSON document (schema `megatron-memory-estimate/1`)."""
        found: dict[str, Any] = door("estimate as document")(self)
        return found


def estimate(job: TrainingJob) -> Estimate:
    """The memory of every pipeline stage.

    Raises LayoutError for a layout that Megatron-Core refuses and UnsupportedError for features that are not modelled.
    """
    if not isinstance(job, TrainingJob):
        raise ConfigError(
            "estimate takes a TrainingJob; make one with TrainingJob.from_hf, from_config or from_megatron_args"
        )
    pipeline, declarer = accepted(job)
    return Estimate(job, tuple(_stage(job, declarer, chunks) for chunks in pipeline.chunks), declarer)


def stage_of(job: TrainingJob, pp_rank: int) -> Stage:
    """The memory of one pipeline stage alone. Raises as `estimate` what that stage cannot be."""
    pipeline, declarer = accepted(job, declared=False)
    return _stage(job, declarer, pipeline.chunks[pp_rank])


def _stage(job: TrainingJob, declarer: Declarer, chunks: tuple[Chunk, ...]) -> Stage:
    rank = build_rank(declarer, chunks, job.num_microbatches, job.gpu, job.env)
    if job.rollout.has_phases:
        params = [pair for plan in rank.plans for pair in plan.params]
        from .states.state import second_models

        others = second_models(rank.context, job.rollout, rank.states, params)
        rank = replace(rank, states=(*rank.states, *others))
    peak = find_peak(rank)
    return Stage(job, rank, peak, reserved_bytes(job, rank, peak))
