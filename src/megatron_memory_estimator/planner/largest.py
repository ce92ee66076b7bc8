"""The question the other way round: the largest sequence, tokens or micro batch of a run that its GPU takes.

A run is estimated with one value after the other. Memory never falls with more tokens, so that a value is found by halving; what decides
is the stage and the phase that need most, loading and saving checkpoints apart, which know no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm

from ..dataclass import dataclass
from ..device.terms import Range
from ..device.verdict import Event
from ..errors import ConfigError, EstimatorError, StoppedError
from ..estimator import Estimate, estimate
from ..job.choices import SIZABLE, Sizable
from ..job.settings import nearest
from ..job.training_job import TrainingJob
from ..tape.tensor import ceil_div
from ..wording import any_of, counted, shown
from .changes import changed

WITHOUT_TOKENS = ("load", "save", "build")
"""Phases in which no token is on the GPU."""
BLOCK = 128
"""Tokens of a step of lengths: what low-precision GEMMs and packed rows are padded to."""
LONGEST, MOST_SEQUENCES = 2**24, 4096
"""The longest sequence, in tokens, and the largest micro batch that are tried."""


@dataclass(frozen=True)
class Largest:
    """How large a setting of a run can be."""

    setting: Sizable
    """What is asked for."""
    given: int
    """Its value in the run."""
    sure: int
    """The largest that surely fits; 0 where none does."""
    possible: int
    """The largest that may fit, without any fragmentation; 0 where none does."""
    step: int
    """The difference of values that are told apart."""
    job: TrainingJob
    """The run."""
    at: Estimate | None
    """The run with the value that surely fits."""
    above: Estimate | None
    """The run with the next value, which may not fit, or does not; None where that is no legal run."""
    refusal: str = ""
    """Why the next value is no legal run."""
    limit_bytes: int | None = None
    """The bytes of a GPU that it may have, where they are not the GPU's."""

    @property
    def room(self) -> Event | None:
        """The phase that has least room with the value that surely fits."""
        return None if self.at is None else deciding(self.at, self.limit_bytes)

    @property
    def decider(self) -> Event | None:
        """The phase that ends it: of the next value, the one that has least room."""
        return None if self.above is None else deciding(self.above, self.limit_bytes)


def largest(
    job: TrainingJob, setting: str, *, limit_bytes: int | None = None, stop: Callable[[], bool] | None = None
) -> Largest:
    """How large a setting of a run can be on its GPU, or in `limit_bytes` of one: seq_length (tokens of a sequence), micro_batch_size
    (sequences, those that divide the global batch), max_tokens_per_gpu (tokens of a microbatch on a GPU).

    Raises ConfigError for another setting, LayoutError and UnsupportedError as `estimate` does for the run itself, StoppedError where
    `stop` says so.
    """
    asked = next((one for one in SIZABLE if one == setting), None)
    if asked is None:
        raise ConfigError(f"largest asks for {any_of(SIZABLE)}, not {shown(setting)}.{nearest(setting, SIZABLE)}")
    if job.training.dynamic_context_parallel and asked != "max_tokens_per_gpu":
        raise ConfigError(
            f"dynamic_context_parallel packs rows: largest asks for max_tokens_per_gpu there, not {setting}"
        )
    estimate(job)
    values = _values(job, asked)
    tried: dict[int, Estimate | EstimatorError] = {}

    def at(index: int) -> Estimate | EstimatorError:
        """The run with a value, or why it is none."""
        if index not in tried:
            if stop is not None and stop():
                raise StoppedError(f"the largest {setting} was not found in time; {counted(len(tried), 'value')} tried")
            try:
                tried[index] = estimate(_with(job, asked, values[index]))
            except EstimatorError as error:
                tried[index] = error
        return tried[index]

    def room(index: int) -> Range | None:
        found = at(index)
        return deciding(found, limit_bytes).head_room if isinstance(found, Estimate) else None

    sure = _last(len(values), lambda index: (found := room(index)) is not None and found.low >= 0)
    possible = _last(len(values), lambda index: (found := room(index)) is not None and found.high >= 0)
    above = at(sure + 1) if sure + 1 < len(values) else None
    best = at(sure) if sure >= 0 else None
    return Largest(
        asked,
        _given(job, asked),
        _shown(job, asked, values[sure]) if sure >= 0 else 0,
        _shown(job, asked, values[possible]) if possible >= 0 else 0,
        _shown(job, asked, values.step if isinstance(values, range) else values[0]),
        job,
        best if isinstance(best, Estimate) else None,
        above if isinstance(above, Estimate) else None,
        str(above) if isinstance(above, EstimatorError) else "",
        limit_bytes,
    )


def _values(job: TrainingJob, setting: Sizable) -> Sequence[int]:
    """The values that are legal by the setting's own rule: sequences that divide the samples of a rank, or whole blocks of tokens on every
    rank."""
    layout, t = job.layout, job.training
    if setting == "micro_batch_size" and job.batch_is_assumed:
        return range(1, MOST_SEQUENCES + 1)
    if setting == "micro_batch_size":
        samples = (t.global_batch_size or t.micro_batch_size * layout.readers) // layout.readers
        return [value for value in range(1, min(samples, MOST_SEQUENCES) + 1) if samples % value == 0]
    step = lcm(BLOCK, layout.tp * (2 * layout.cp if layout.cp > 1 else 1))
    first = max(step, ceil_div(t.image_tokens + t.audio_tokens, step) * step)  # what towers hand on is in the sequence
    return range(first, LONGEST + 1, step)


def _with(job: TrainingJob, setting: Sizable, value: int) -> TrainingJob:
    """The run with a value; tokens of a GPU are those of one sequence, so that its microbatch is one."""
    if setting == "micro_batch_size":
        batch = {"global_batch_size": value * job.layout.readers * job.num_microbatches} if job.batch_is_assumed else {}
        return changed(job, {"micro_batch_size": value, **batch})
    return with_tokens(job, value, alone=setting == "max_tokens_per_gpu")


def with_tokens(job: TrainingJob, tokens: int, *, alone: bool = True) -> TrainingJob:
    """The run with sequences of so many tokens, of which a microbatch is one where `alone` says so."""
    found = changed(job, {"seq_length": tokens, **({"micro_batch_size": 1} if alone else {})})
    if found.model.position_embedding_type == "learned_absolute":
        return found
    positions = max(found.model.max_position_embeddings or 0, tokens)
    return replace(found, model=replace(found.model, max_position_embeddings=positions))


def _given(job: TrainingJob, setting: Sizable) -> int:
    """The value of the run."""
    t = job.training
    return {
        "micro_batch_size": t.micro_batch_size,
        "seq_length": t.seq_length,
        "max_tokens_per_gpu": t.seq_length * t.micro_batch_size // job.layout.cp,
    }[setting]


def _shown(job: TrainingJob, setting: Sizable, value: int) -> int:
    """A value as it is asked for: of a sequence that context parallelism splits, the tokens of a GPU are a part."""
    return value // job.layout.cp if setting == "max_tokens_per_gpu" else value


def _last(count: int, fits: Callable[[int], bool]) -> int:
    """The index of the last value that fits, of values that fit up to one and not behind it; -1 where the first does not."""
    if not count or not fits(0):
        return -1
    low, high = 0, 1
    while high < count and fits(high):
        low, high = high, 2 * high
    high = min(high, count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def deciding(found: Estimate, limit_bytes: int | None = None) -> Event:
    """The phase with tokens that has least room."""
    events = (one for one in found.verdict(limit_bytes).events if one.phase not in WITHOUT_TOKENS)
    return min(events, key=lambda one: one.head_room.low)
