"""timeline(estimate, rank): a training step of one stage with its peak, as records, as a document, as a figure.

Seconds of every moment: when each forward and backward of each stage runs, as each waits for the stage before it and for its own lane;
data parallelism and the optimizer before and after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ..dataclass import dataclass
from ..job.hardware import GIB
from ..rank.rank import PARTS, Rank
from ..states.fsdp import active
from ..throughput.machine import machine
from ..throughput.stages import ChunkTime, chunk_times
from ..throughput.step import Estimated, step_parts
from .axis import Axis, Stretch, seconds_of, state_bytes, stretches
from .moments import NONE, Moment, capture, moments
from .passes import MOST_PASSES, LeftOut, Listed, Pass, listed_passes, passes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# -- seconds of every moment -------------------------------------------------------------------------------------------


class Seconds(NamedTuple):
    """When everything of a step happens on one rank. `step` is the throughput model's time of the step."""

    step: float
    passes: list[Span]
    others: dict[str, Span]
    """What comes before and after the passes, by event."""


def seconds(estimate: Estimated, plan: Listed) -> list[Seconds]:
    """The seconds of the listed passes of every rank and of what is around them.

    Parameters are gathered before the first pass. Behind its last one a rank reduces gradients; the optimizer waits for all ranks.
    """
    m = machine(estimate.job.gpu, None, estimate.job.env.network_gbs)
    ranks = [stage.rank for stage in estimate.stages]
    parts = step_parts(m, estimate.declarer, ranks, plan.num_microbatches)
    times = chunk_times(m, estimate.declarer, ranks)
    reduced = parts["gradient reduction"]
    if active(estimate.declarer.context) and plan.pp == 1:  # of every microbatch
        each = reduced / (plan.num_microbatches * plan.vp)
        times = [[one._replace(backward=one.backward + each) for one in chunks] for chunks in times]
        reduced = 0.0
    return _of_ranks(plan, ranks, times, parts, reduced)


def _of_ranks(
    plan: Listed, ranks: list[Rank], times: list[list[ChunkTime]], parts: dict[str, Any], reduced: float
) -> list[Seconds]:
    """The seconds of every rank, whose chunks take so long."""
    schedules = [plan.schedule(rank.pp_rank) for rank in ranks]
    found = lanes([list(passes(one, (0,) * plan.vp)) for one in schedules], times)
    cuts = [plan.cut(one) for one in schedules]
    gap = _left_out(plan, found, cuts, times) if plan.left_out else 0.0
    first = parts["parameter gather"]
    over = first + gap + max(lane[-1].end for lane in found) + reduced
    done = over + parts["optimizer"]
    every = []
    for lane, cut in zip(found, cuts, strict=True):
        own = [
            Span(first + start + later, first + end + later)
            for place, (start, end) in enumerate(lane)
            for later in (gap if plan.left_out and place >= cut else 0.0,)
        ]
        others = {
            "begin": Span(0.0, first),
            "drain": Span(own[-1].end, own[-1].end),
            "finalize": Span(own[-1].end, over),
            "optimizer": Span(over, done),
            "end": Span(done, done + parts["other"]),
        }
        every.append(Seconds(sum(parts.values()), own, others))
    return every


def _left_out(plan: Listed, found: list[list[Span]], cuts: list[int], times: list[list[ChunkTime]]) -> float:
    """Seconds of what is left out: the slowest stage's last period before it, again and again."""
    slowest = max(range(len(times)), key=lambda stage: sum(map(sum, times[stage])))
    lane, cut = found[slowest], cuts[slowest]
    return (lane[cut].start - lane[cut - plan.span(plan.period)].start) * (plan.left_out / plan.period)


class Span(NamedTuple):
    """Seconds from the start of the pipeline at which something starts and ends."""

    start: float
    end: float


Key = tuple[str, int, int, int]
"""A forward ("F") or backward ("B") of a stage, its chunk, its microbatch."""


def lanes(orders: Sequence[Sequence[Pass]], times: Sequence[Sequence[ChunkTime]]) -> list[list[Span]]:
    """When each pass of each stage runs."""
    ended: dict[Key, float] = {}
    found: list[list[Span]] = [[] for _ in orders]
    left = sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            left -= _advance(stage, order, times, ended, found[stage])
        assert left < before, "the passes of the stages wait for one another"
    return found


def _advance(
    stage: int, order: Sequence[Pass], times: Sequence[Sequence[ChunkTime]], ended: dict[Key, float], lane: list[Span]
) -> int:
    """Run a stage until it waits for another: how many passes that were."""
    first, last, last_chunk = len(lane), len(times) - 1, len(times[0]) - 1
    while len(lane) < len(order):
        step, microbatch, beside, _ = order[len(lane)]
        start, seconds = lane[-1].end if lane else 0.0, 0.0
        runs = [(step.direction, step.chunk, microbatch)] + ([("B", step.beside, beside)] if beside >= 0 else [])
        for direction, chunk, index in runs:
            needs = _before(direction, stage, chunk, index, last, last_chunk)
            if needs is not None:
                if needs not in ended:
                    return len(lane) - first
                start = max(start, ended[needs])
            seconds += times[stage][chunk][0 if direction == "F" else 1]
        for direction, chunk, index in runs:
            ended[direction, stage, chunk, index] = start + seconds
        lane.append(Span(start, start + seconds))
    return len(lane) - first


def _before(direction: str, stage: int, chunk: int, microbatch: int, last: int, last_chunk: int) -> Key | None:
    """The pass that hands its tensor to this one; the last stage hands its forwards to the next chunk of the first."""
    if direction == "F":
        if stage:
            return "F", stage - 1, chunk, microbatch
        return ("F", last, chunk - 1, microbatch) if chunk else None
    if stage < last:
        return "B", stage + 1, chunk, microbatch
    return ("B", 0, chunk + 1, microbatch) if chunk < last_chunk else None


Record = dict[str, Any]
SCHEMA = "megatron-memory-timeline/1"


@dataclass(frozen=True)
class Timeline:
    """One training step of a pipeline stage once the optimizer's moments exist, in the order in which it runs.

    Bytes are what torch counts as allocated.
    """

    name: str
    """The model."""
    pp_rank: int
    """The pipeline stage."""
    gpu: str
    """The GPU."""
    gpu_memory_bytes: int
    """Its memory."""
    moments: tuple[Moment, ...]
    """What is allocated, moment by moment."""
    step_s: float
    """Seconds of the step by the throughput model, in which the mean stage fills and drains the pipeline; the last moment ends when
    every stage has taken its own time."""
    capture: Moment | None = None
    """The capture of CUDA graphs, once in a run, outside of the step."""
    left_out: LeftOut | None = None
    """The microbatches that are left out, where there are some."""

    def __repr__(self) -> str:
        top = self.peak
        return (
            f"<Timeline of stage {self.pp_rank} of {self.name or 'model'}: {len(self.moments)} moments, at most "
            f"{top.highest_bytes / GIB:.2f} GiB allocated ({top.label})>"
        )

    @property
    def every(self) -> tuple[Moment, ...]:
        """The moments, and the capture of CUDA graphs first where there is one."""
        return (*([self.capture] if self.capture else ()), *self.moments)

    @cached_property
    def peak(self) -> Moment:
        """The moment with most memory, of equal ones the first that does something."""
        return max(self.every, key=lambda moment: (moment.highest_bytes, moment.event not in ("begin", "end")))

    def largest(self, most: int) -> list[tuple[Moment, int]]:
        """So many of the largest moments, the first of equal ones with how many of those listed are like it."""
        alike: dict[tuple[int, str], list[Moment]] = {}
        for moment in self.every:
            alike.setdefault((moment.highest_bytes, moment.label), []).append(moment)
        return [(alike[key][0], len(alike[key])) for key in sorted(alike, key=lambda key: -key[0])[:most]]

    @property
    def steady_allocated_bytes(self) -> int:
        """Bytes between two steps: those with which the step begins and ends."""
        return self.moments[-1].end_bytes

    @property
    def staying_bytes(self) -> int:
        """Bytes of the state (weights, gradients, optimizer, workspace) that stay through the whole step."""
        return min(sum(state_bytes(moment).values()) for moment in self.moments)

    @property
    def sentence(self) -> str:
        """How much is allocated at most, when and by what, and how much of it stays."""
        top = self.peak
        when = "once in a run, before" if top is self.capture else f"{seconds_of(top)[0]:.2f} s into"
        return (
            f"Stage {self.pp_rank} of {self.name or 'model'} has at most {top.highest_bytes / GIB:.2f} GiB allocated, {when} a step of "
            f"{self.step_s:.2f} s: {top.label}; {self.staying_bytes / GIB:.2f} GiB stay through the step."
        )

    def index(self, place: int) -> int:
        """Which moment of the whole step one of the listed is."""
        behind = self.left_out is not None and place >= self.left_out.behind
        return place + (self.left_out.moments if self.left_out and behind else 0)

    def table(self) -> list[Record]:
        """One record for each moment with plain numbers, bytes and seconds in columns that say so; `pandas.DataFrame` takes it."""
        found = [record(self.index(place), moment) for place, moment in enumerate(self.moments)]
        return [record(None, self.capture), *found] if self.capture else found

    def to_dict(self) -> Record:
        """The JSON document (schema `megatron-memory-timeline/1`)."""
        return {
            "schema": SCHEMA,
            "sentence": self.sentence,
            "model": self.name,
            "pp_rank": self.pp_rank,
            "gpu": self.gpu,
            "gpu_memory_bytes": self.gpu_memory_bytes,
            "steady_allocated_bytes": self.steady_allocated_bytes,
            "peak_allocated_bytes": self.peak.highest_bytes,
            "peak_event": self.peak.label,
            "step_s": self.step_s,
            "timeline_s": self.moments[-1].end_s,
            "left_out": self.left_out._asdict() if self.left_out else None,
            "moments": self.table(),
        }

    def stretches(self, axis: Axis = "seconds") -> list[Stretch]:
        """Bytes along the step without a hole, also while the stage waits for another."""
        return list(stretches(self.moments, self.left_out, axis))

    def place(self, moment: Moment, axis: Axis = "seconds") -> float | None:
        """Where on an axis a moment begins; None for the capture of CUDA graphs, which is no part of the step."""
        if moment is self.capture:
            return None
        return seconds_of(moment)[0] if axis == "seconds" else float(self.moments.index(moment))

    def plot(self, path: str | None = None, *, axis: Axis = "seconds") -> Figure:
        """The step as a figure of matplotlib, also written to `path` (.png, .svg, .pdf). Needs the extra `plot`."""
        from .figure import figure, save

        title = f"{self.name} stage {self.pp_rank}: {self.peak.highest_bytes / GIB:.2f} GiB at {self.peak.label}"
        mark = self.place(self.peak, axis), self.peak.highest_bytes
        found = figure(self.stretches(axis), axis, title, mark, (self.gpu, self.gpu_memory_bytes))
        if path is not None:
            save(found, path)
        return found


def record(index: int | None, moment: Moment) -> Record:
    """A moment as plain numbers; null where it has no chunk, no microbatch or no seconds."""
    places = {
        "chunk": moment.chunk, "microbatch": moment.microbatch,
        "beside_chunk": moment.beside, "beside_microbatch": moment.beside_microbatch,
    }  # fmt: skip
    return {
        "index": index,
        "event": moment.event,
        **{name: None if place == NONE else place for name, place in places.items()},
        "in_flight": moment.in_flight,
        "start_s": moment.start_s,
        "end_s": moment.end_s,
        "start_bytes": moment.start_bytes,
        "highest_bytes": moment.highest_bytes,
        "end_bytes": moment.end_bytes,
        **{f"{name}_bytes": moment.parts[name] for name in PARTS},
        "highest_event": moment.label,
    }


def timeline(estimate: Estimated, rank: Rank, most: int = MOST_PASSES) -> Timeline:
    """The step of one rank of an estimate; of more than `most` passes the middle is left out."""
    plan, own = listed_passes(estimate.declarer.context, rank, most)
    return _timeline(estimate, rank, plan, own, seconds(estimate, plan)[rank.pp_rank])


def timelines(estimate: Estimated, most: int = MOST_PASSES) -> list[Timeline]:
    """The step of every rank, in the time of little more than one."""
    c = estimate.declarer.context
    ranks = [stage.rank for stage in estimate.stages]
    found = [listed_passes(c, rank, most) for rank in ranks]
    times = seconds(estimate, found[0][0])
    return [
        _timeline(estimate, rank, plan, own, its) for rank, (plan, own), its in zip(ranks, found, times, strict=True)
    ]


def _timeline(estimate: Estimated, rank: Rank, plan: Listed, own: list[Pass], times: Seconds) -> Timeline:
    left_out = plan.hole(rank.pp_rank)
    spans = iter(times.passes)
    found = []
    for place, moment in enumerate(moments(rank, own)):
        span = times.others[moment.event] if moment.event in times.others else next(spans)
        moved = left_out.microbatches if left_out and place >= left_out.behind else 0
        found.append(moment.later(moved)._replace(start_s=span.start, end_s=span.end))
    job, gpu = estimate.job, estimate.job.gpu
    return Timeline(
        job.name, rank.pp_rank, gpu.name, gpu.memory_bytes, tuple(found), times.step, capture(rank), left_out
    )
