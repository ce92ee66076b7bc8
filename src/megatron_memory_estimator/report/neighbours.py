"""Two runs beside each other: what the second has more and less at its peak, by part and tensor, and what its step takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ..errors import EstimatorError
from ..estimator import Estimate, estimate
from ..job.hardware import GIB
from ..planner.changes import changed, low_precision_weights
from .largest import largest
from .quantities import gib

PLACE = re.compile(r"^(?:chunk \d+\.)?layers\.[0-9-]+\.| ?chunk \d+")
"""Of a tensor's name the chunk and the layers that it is in, which a layout moves."""
LITTLE = GIB // 20
"""Bytes that are not worth a name."""
PARTS_NAMED, NAMED = 3, 2
"""Parts that are named, and tensors of each."""

Sizes = Counter[tuple[str, str]]


def change(before: Estimate, after: Estimate) -> str:
    """The difference of two runs in sentences: bytes at the peaks of their fullest stages, by part with the tensors that make most of it,
    seconds of a step, and a setting that would take a part away."""
    return " ".join((*_bytes(before, after), *_seconds(before, after), *_taken_away(after)))


def _sizes(one: Estimate) -> Sizes:
    """Bytes by part and tensor at the peak, state by parameter, whatever chunk and layers they are in."""
    found: Sizes = Counter()
    for share in largest(one.peak_stage, "peak", "parameter"):
        for part, nbytes in share.parts.items():
            found[part, PLACE.sub("", share.name)] += nbytes
    return found


def _bytes(before: Estimate, after: Estimate) -> Iterator[str]:
    """How far the peaks are apart, and what makes it."""
    more = after.peak_stage.peak_allocated_bytes - before.peak_stage.peak_allocated_bytes
    spread = _sizes(after)
    spread.subtract(_sizes(before))
    parts: Counter[str] = Counter()
    for (part, _), nbytes in spread.items():
        parts[part] += nbytes
    order = sorted(parts.items(), key=lambda one: -abs(one[1]))
    said = [
        f"{part} {_signed(nbytes)}{_tensors(spread, part, nbytes)}"
        for part, nbytes in order[:PARTS_NAMED]
        if abs(nbytes) >= LITTLE
    ]
    rest = sum(nbytes for _, nbytes in order[PARTS_NAMED:])
    if abs(rest) >= LITTLE:
        said.append(f"the rest {_signed(rest)}")
    if abs(more) < LITTLE:
        yield f"The peak is the same{': ' if said else ''}{'; '.join(said)}."
        return
    yield f"The peak is {gib(abs(more))} GiB {'higher' if more > 0 else 'lower'}: {'; '.join(said)}."


def _tensors(spread: Sizes, part: str, change: int) -> str:
    """The tensors that change most in the way in which their part does."""
    own = sorted(
        ((nbytes, name) for (of, name), nbytes in spread.items() if of == part and nbytes * change > 0),
        key=lambda one: (-abs(one[0]), one[1]),
    )
    named = [f"{name} {_signed(nbytes)}" for nbytes, name in own[:NAMED] if abs(nbytes) >= LITTLE]
    return f" ({', '.join(named)}{', ...' if len(own) > NAMED else ''})" if named else ""


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else '-'}{gib(abs(nbytes))}"


def _seconds(before: Estimate, after: Estimate) -> Iterator[str]:
    """What a token takes, where the GPUs' rates are known."""
    if before.job.gpu.chip_unknown or after.job.gpu.chip_unknown:
        return
    first, second = before.throughput, after.throughput
    share = first.tokens_per_s_gpu / second.tokens_per_s_gpu - 1
    if abs(share) < 0.0005:
        yield "A token takes as long."
        return
    yield f"A token takes {abs(share):.1%} {'more' if share > 0 else 'less'} GPU time."


def _taken_away(after: Estimate) -> Iterator[str]:
    """What the run would save by keeping its weights in low precision alone."""
    for one in low_precision_weights(after.job):
        try:
            other = estimate(changed(after.job, one.values()))
        except EstimatorError:
            continue
        saved = after.peak_stage.peak_allocated_bytes - other.peak_stage.peak_allocated_bytes
        if saved >= LITTLE:
            words = " ".join(f"--{name.replace('_', '-')}" for name, _ in one.settings)
            yield f"{words} would save {gib(saved)} GiB of weights."
