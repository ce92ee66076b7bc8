"""How fast a run is: seconds of a step, the rates that come of them, and what a step is spent with."""

from __future__ import annotations

from typing import NamedTuple

from ..estimator import Estimate
from ..planner.advise import priced
from ..throughput.certainty import Likely, likely
from ..throughput.step import Throughput
from .quantities import table

WORDS = {
    "compute": "kernels of forward and backward",
    "recompute": "recomputation",
    "tp": "tp communication",
    "gtp": "weight shards' communication",
    "cp": "cp communication",
    "ep": "ep communication",
    "pp": "pipeline sends",
    "host": "kernel launches",
    "bubble": "pipeline bubble",
    "optimizer": "the optimizer step",
    "other": "overhead",
}
"""Parts of a step in words."""


def largest_part(time: Throughput) -> tuple[str, float]:
    """The largest part of a step beside the kernels of forward and backward, in words, and its share."""
    parts = {name: value for name, value in time.parts.items() if name != "compute"}
    name = max(parts, key=parts.__getitem__)
    return WORDS.get(name, name), parts[name] / time.step


def limit_text(time: Throughput) -> str:
    """The same in words."""
    name, share = largest_part(time)
    return f"{name} {share:.0%}"


class Speed(NamedTuple):
    """The step time of a run by part, what published runs like it reached of their predictions, and the samples of the step that is
    timed: of the run where it says them, else as many as `plan` and `advise` take."""

    time: Throughput
    likely: Likely
    samples: int


def speed(estimate: Estimate) -> Speed:
    """How fast a run is. Raises as `throughput`."""
    timed, _ = priced(estimate.job)
    samples = timed.layout.readers * timed.training.micro_batch_size * timed.num_microbatches
    return Speed(estimate.throughput, likely(estimate.job), samples)


SPEED = table(
    "speed",
    {
        "likely_low": lambda one: one.time.tokens_per_s_gpu * one.likely.low,
        "likely_high": lambda one: one.time.tokens_per_s_gpu * one.likely.high,
        "limit_text": lambda one: limit_text(one.time),
    },
)
"""The figures of a `Speed`."""
