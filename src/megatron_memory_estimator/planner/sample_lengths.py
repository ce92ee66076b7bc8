"""What the lengths of samples do to a run: the microbatches that its framework makes of them, what those need, and where it breaks.

Batches of the run's size are drawn from the lengths, and the framework's own rule makes microbatches of each. The largest decides memory.
What surely fits is found as `largest` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log
from random import Random
from typing import Literal, cast

from ..dataclass import dataclass
from ..device.verdict import Event
from ..errors import ConfigError, EstimatorError
from ..estimator import Estimate, estimate
from ..job.choices import PACKING
from ..job.pipeline import virtual_stages
from ..job.training_job import TrainingJob
from ..lengths.microbatches import Limits, Rule, Shards, microbatches, of_ranks, padded, rule_of, worst
from ..lengths.samples import Samples, read_samples
from ..wording import any_of
from .largest import Largest, deciding, largest, with_tokens

DRAWN = 40_000
"""Samples that are drawn in all: of batches of the run's size 500 at most, and 8 at least."""
SEED = 2026


@dataclass(frozen=True)
class SampleLengths:
    """Sample lengths, and what they do to a run. Tokens are those of a whole microbatch, before context parallelism splits it."""

    job: TrainingJob
    """The run."""
    samples: Samples
    """The lengths."""
    bound: int
    """Tokens that the framework packs to."""
    worst: int
    """Tokens that other samples within the bound are known to reach, by the framework's rule."""
    drawn: tuple[int, ...]
    """Tokens of the largest microbatch of each step that was drawn, padded, in rising order."""
    fitting: Largest
    """The largest microbatch that fits."""
    at: Estimate | None
    """The run with the largest microbatch that was drawn; None where that is no legal run."""

    @property
    def rule(self) -> Rule:
        """How the framework makes microbatches."""
        return rule_of(str(self.job.training.packing))

    @property
    def microbatch(self) -> int:
        """Tokens of the largest microbatch that was drawn."""
        return self.drawn[-1]

    @property
    def needs(self) -> Event | None:
        """The phase that has least room with it."""
        return None if self.at is None else deciding(self.at)

    @property
    def breaks_at(self) -> int | None:
        """Tokens of a microbatch above which the run does not fit; None where it fits with as many as it may have."""
        return None if self.fitting.above is None else self.fitting.possible

    @property
    def share_of_steps(self) -> float:
        """Share of the drawn steps with a microbatch above what surely fits."""
        return sum(one > self.fitting.sure for one in self.drawn) / len(self.drawn)

    @property
    def half_by_step(self) -> int | None:
        """The step by which half of all runs have met such a microbatch; None where none was drawn."""
        share = self.share_of_steps
        return None if not share else 1 if share >= 0.5 else ceil(log(0.5) / log(1 - share))

    @property
    def share_longer(self) -> float:
        """Share of the samples that are longer than the bound."""
        return self.samples.share_longer(self.bound)


def sample_lengths(
    job: TrainingJob, lengths: str | Samples, *, stop: Callable[[], bool] | None = None
) -> SampleLengths:
    """What samples of these lengths do to a run that packs them: `lengths` is a file of lengths or of `length count` lines, a JSON list,
    `mean,p99,max`, or one length.

    Raises ConfigError for lengths that cannot be read, for a run that does not pack, and where its framework stops; StoppedError where
    `stop` says so.
    """
    t, layout = job.training, job.layout
    if t.packing is None:
        raise ConfigError(
            f"the run packs no samples by tokens: each of its rows has seq_length={t.seq_length}, whatever the samples' lengths; "
            f"--packing, one of {any_of(PACKING)}, says how a framework packs"
        )
    samples = read_samples(lengths) if isinstance(lengths, str) else lengths
    bound = t.packing_tokens or t.seq_length * t.micro_batch_size
    group = (layout.microbatch_group_size_per_vp_stage or layout.pp) if virtual_stages(job.model, layout) > 1 else 1
    limits = Limits(bound, dp=layout.readers, group=group, pp=layout.pp)
    drawn = tuple(sorted(_drawn(job, samples, limits)))
    fitting = largest(replace(job, training=replace(t, micro_batch_size=1)), "seq_length", stop=stop)
    return SampleLengths(
        job,
        samples,
        bound,
        worst(t.packing, limits, max(job.num_microbatches, 1)).attained,
        drawn,
        fitting,
        _at(job, -(-drawn[-1] // fitting.step) * fitting.step),
    )


def _at(job: TrainingJob, tokens: int) -> Estimate | None:
    try:
        return estimate(with_tokens(job, tokens))
    except EstimatorError:
        return None


def _drawn(job: TrainingJob, samples: Samples, limits: Limits) -> list[int]:
    """Tokens of the largest microbatch of each step. Samples at which the framework stops are left out: they are said apart."""
    rule = rule_of(str(job.training.packing))
    kept = (
        samples
        if rule.longer != "refused"
        else Samples(tuple((length, count) for length, count in samples.counts if length <= limits.tokens))
    )
    if not kept.counts:
        raise ConfigError(
            f"{rule.name} stops at a sample above its bound of {limits.tokens} tokens, and all are longer: the shortest has "
            f"{samples.counts[0][0]}"
        )
    size = job.training.global_batch_size or job.training.micro_batch_size * limits.dp
    random = Random(SEED)
    return [_largest(job, kept.draw(size, random), limits) for _ in range(max(8, min(500, DRAWN // size)))]


def _largest(job: TrainingJob, lengths: Sequence[int], limits: Limits) -> int:
    """Tokens of the largest microbatch of a step, padded as the framework pads it."""
    name = str(job.training.packing)
    rule = rule_of(name)
    if rule.of == "rank":
        ranks = [lengths[rank :: limits.dp] for rank in range(min(limits.dp, len(lengths)))]
        return max(_padded(job, each) for bins in of_ranks(name, ranks, limits) for each in bins)
    return max(_padded(job, each) for each in microbatches(name, lengths, limits))


def _padded(job: TrainingJob, microbatch: Sequence[int]) -> int:
    t = job.training
    recipe = t.fp8_recipe if t.fp8_recipe in ("tensorwise", "blockwise", "mxfp8") else "tensorwise"
    fp8 = cast('Literal["", "tensorwise", "blockwise", "mxfp8"]', recipe if t.fp8 else "")
    return padded(str(t.packing), microbatch, Shards(job.layout.tp, job.layout.cp, fp8))
