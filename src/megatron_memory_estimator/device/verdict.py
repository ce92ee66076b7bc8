"""Device memory of a rank in each phase of its run, and what a run is on a GPU (docs/explanation/verdicts.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..dataclass import dataclass
from ..job.tower import lacking
from ..job.training_job import TrainingJob
from ..rank.peak import Peak
from ..rank.rank import Rank
from .outside import outside_terms
from .phases import build, built_apart, first_step_range, load_range, save_range
from .reserved import beyond_peak, built_high, freed_bytes, loaded_high, slack, unused_bytes
from .terms import Range, Term, together, widest

if TYPE_CHECKING:
    from .rollout import RolloutPhase

Word = Literal["fits", "fits only without fragmentation", "tight", "does not fit"]
VERDICTS: tuple[Word, ...] = get_args(Word)
"""What a run may be on a GPU, the best first."""


@dataclass(frozen=True)
class Event:
    """What one phase of a run needs of a GPU: the bytes of the stage that needs most, and the word for them.

    The low end of `device` is without any fragmentation, the high end is surely enough; `unfragmented` is surely enough with expandable
    segments, on every stage.
    """

    phase: str
    word: Word
    pp_rank: int
    device: Range
    memory_bytes: int
    unfragmented: int

    @property
    def head_room(self) -> Range:
        """The memory minus what is needed: at worst, and at best. Negative bytes are too much."""
        return Range(self.memory_bytes - self.device.high, self.memory_bytes - self.device.low)


@dataclass(frozen=True)
class Verdict:
    """What a run is on a GPU: the word of its worst phase, and what each phase needs, training first.

    `device`, `phase`, `pp_rank` and `head_room` are those of the phase that decides: the first with the word; where all fit, the one that
    needs most.
    """

    word: Word
    """What the run is in the phase that decides."""
    gpu: str
    """The GPU."""
    memory_bytes: int
    """Its memory, or what the run may take of it."""
    events: tuple[Event, ...]
    """What each phase needs, training first."""
    not_counted: str = ""
    """What of the model these bytes are without, as a clause."""

    def __str__(self) -> str:
        return self.word

    @property
    def fits(self) -> bool:
        """Whether the high end of every phase fits."""
        return self.word == "fits"

    def event(self, phase: str) -> Event:
        """What one of the phases needs that are judged."""
        return next(one for one in self.events if one.phase == phase)

    @property
    def decides(self) -> Event:
        """The phase that decides."""
        if self.fits:
            return max(self.events, key=lambda one: one.device.high)
        return next(one for one in self.events if one.word == self.word)

    @property
    def device(self) -> Range:
        """Device bytes of the phase that decides, on the stage that needs most."""
        return self.decides.device

    @property
    def phase(self) -> str:
        """The phase that decides."""
        return self.decides.phase

    @property
    def pp_rank(self) -> int:
        """The stage that needs most in it."""
        return self.decides.pp_rank

    @property
    def head_room(self) -> Range:
        """The memory minus what is needed: at worst, and at best. Negative bytes are too much."""
        return self.decides.head_room


class Allocated(NamedTuple):
    """What does not depend on the allocator: bytes of each phase that torch allocates, at least and at most; those that are freed at some
    time while it trains; what is outside torch; and what an engine takes in the phases that have one beside them."""

    peak: int
    freed: int
    phases: dict[str, Range]
    outside: Range
    beside: dict[str, Range]


def allocated(job: TrainingJob, rank: Rank, peak: Peak, rollout: tuple[RolloutPhase, ...] = ()) -> Allocated:
    """The allocated bytes of the phases that are held. `build` has at most what building allocates in all, not at once."""
    outside = together(outside_terms(job, rank.context))
    makers: dict[str, Callable[[], Range]] = {
        "training": lambda: _trained(job, rank, peak),
        "first_step": lambda: first_step_range(rank, peak),
        "load": lambda: load_range(rank),
        "save": lambda: Range(*(peak.steady + more for more in save_range(rank))),
        "build": lambda: Range(build(rank), built_apart(rank)),
    }
    without = () if job.training.chunked_optimizer_state_offload else ("first_step",)
    found = {phase: makers[phase]() for phase in makers if phase in job.env.phases and phase not in without}
    around = [phase for phase in rollout if phase.name in job.env.phases]
    found |= {phase.name: phase.allocated for phase in around}
    beside = {phase.name: phase.beside for phase in around}
    if job.rollout.shares_gpus:
        from .rollout import asleep

        engine = asleep(job)
        beside |= {"training": Range(engine.low, engine.high)} if engine else {}
    return Allocated(peak.nbytes, freed_bytes(rank, peak), found, outside, beside)


def _trained(job: TrainingJob, rank: Rank, peak: Peak) -> Range:
    return Range(*(peak.nbytes + more for more in together(beyond_peak(job, rank, peak))))


def phase_ranges(job: TrainingJob, found: Allocated) -> dict[str, Range]:
    """Device bytes of the phases that are held.

    The low end is allocated memory and the low end of what is outside torch: when a request fails, torch first gives free cached blocks
    back to the driver (pytorch `c10/cuda/CUDACachingAllocator.cpp`, release_available_cached_blocks, release_cached_blocks), so
    fragmentation that a run shows with room to spare is no proof that it needs it. The high end is what the allocator cannot give back
    by its rules, and the high end outside torch. Of expandable segments every free page can be given back.
    """
    kept: dict[str, Callable[[Any], Any]] = {
        "training": lambda high: high + unused_bytes(job, found.peak, found.freed),
        "load": lambda high: loaded_high(job, high),
        "save": lambda high: high,
        "build": lambda high: built_high(job, high),
    }
    ranges = {}
    for phase, (low, high) in found.phases.items():
        beside = found.beside.get(phase, Range(0, 0))
        most = kept[phase](high) if phase in kept else high + unused_bytes(job, high, found.freed)
        ranges[phase] = Range(low + found.outside.low + beside.low, most + found.outside.high + beside.high)
    return ranges


def device_range(job: TrainingJob, rank: Rank, peak: Peak) -> Range:
    """Device bytes of a rank: of its phases the most, at either end."""
    return reduce(widest, phase_ranges(job, allocated(job, rank, peak)).values())


def unfragmented(job: TrainingJob) -> TrainingJob:
    """The same with the allocator setting that leaves least unused (docs/explanation/device_memory.md)."""
    return dataclasses.replace(job, env=dataclasses.replace(job.env, expandable_segments=True))


Ranges = list[tuple[int, str, Range]]
"""Device bytes by stage and phase."""


def on_memory(job: TrainingJob, ranges: Ranges, memory_bytes: int) -> Ranges:
    """The ranges on a GPU of another size: an engine takes a share of its memory in the phases that it is awake in."""
    r = job.rollout
    if not r.shares_gpus or r.rollout_memory_share is None or memory_bytes == job.gpu.memory_bytes:
        return ranges
    more = int(r.rollout_memory_share * memory_bytes) - int(r.rollout_memory_share * job.gpu.memory_bytes)
    awake = ("generation",) if r.rollout_sleeps else ("generation", "log_probs", "reference", "training")
    return [
        (stage, name, Range(found.low + more, found.high + more) if name in awake else found)
        for stage, name, found in ranges
    ]


def verdict(job: TrainingJob, ranges: Ranges, unbroken: Ranges, memory_bytes: int, gpu: str) -> Verdict:
    """What a run is on so many bytes of a GPU; `unbroken` are its ranges with expandable segments."""
    here, apart = on_memory(job, ranges, memory_bytes), on_memory(job, unbroken, memory_bytes)
    events = tuple(
        _event(name, [one for one in here if one[1] == name], [one for one in apart if one[1] == name], memory_bytes)
        for name in dict.fromkeys(name for _, name, _ in here)
    )
    word = max((one.word for one in events), key=VERDICTS.index)
    left_out = lacking(job.model.towers, job.training)
    return Verdict(word, gpu, memory_bytes, events, left_out)


def _event(phase: str, ranges: Ranges, unbroken: Ranges, memory_bytes: int) -> Event:
    """One phase on all stages."""
    most = reduce(widest, (found for _, _, found in ranges))
    unfragmented = max(found.high for _, _, found in unbroken)
    word = judged(most, unfragmented, memory_bytes)
    end = "low" if word == "does not fit" else "high"
    pp_rank, _, device = max(ranges, key=lambda one: getattr(one[2], end))
    return Event(phase, word, pp_rank, device, memory_bytes, unfragmented)


def judged(device: Range, expandable_high: int, memory_bytes: int) -> Word:
    """The word for a device range: "does not fit" where its low end does not, "fits" where its high end does, between them "fits only
    without fragmentation" where the high end with expandable segments fits, else "tight"."""
    if device.low > memory_bytes:
        return "does not fit"
    if device.high <= memory_bytes:
        return "fits"
    return "fits only without fragmentation" if expandable_high <= memory_bytes else "tight"


def explain_terms(job: TrainingJob, rank: Rank, peak: Peak) -> list[Term]:
    """Every term between the allocated peak of training and device memory, for reports."""
    return [slack(job, rank, peak), *beyond_peak(job, rank, peak), *outside_terms(job, rank.context)]
