"""Why a measured figure is another than the estimate's: which quantity it is, and what would make it so.

Each cause is estimated as a run of its own: the stage that peaks with another setting, an older library, other routing, another
iteration or stage. What no estimate says (another process on the GPU, a microbatch of other tokens) is what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..device.terms import Range
from ..errors import ConfigError, EstimatorError
from ..estimator import Estimate, Stage, estimate, stage_of
from ..job.hardware import LIBRARIES, before, text_of
from ..job.training_job import TrainingJob
from ..rank.build import context_of
from ..versions import changes_of
from . import KINDS, Kind
from .trials import options, told, tried

NAMES: dict[Kind, str] = {
    "allocated": "what torch has allocated at the peak (max_memory_allocated)",
    "reserved": "what torch has reserved (max_memory_reserved)",
    "nvidia-smi": "what nvidia-smi shows",
}
NEAR = 0.01
"""Share of a figure within which two are the same."""
HALF = 0.5
"""Share of the difference that a cause leaves at most, to be named."""
ARGUMENTS = "Megatron prints its arguments at the start: look for it in the log"
IMPORTED = {
    "transformer_engine_version": "python -c 'import transformer_engine; print(transformer_engine.__version__)'",
    "megatron_core_version": "python -c 'import megatron.core; print(megatron.core.__version__)'",
}


class Cause(NamedTuple):
    """What would make a figure what it is: in words, the figure with it, and how to see whether it is so."""

    says: str
    figure: Range
    check: str


class Why(NamedTuple):
    """A measured figure, the quantity that it is taken for, what is expected of it, and the causes that come near it, the nearest first."""

    measured: int
    kind: Kind
    pp_rank: int
    expected: Range
    others: tuple[Kind, ...]
    """Quantities that are expected to be just that."""
    causes: tuple[Cause, ...]
    tokens: float | None
    """Of so many times the tokens a microbatch would have to be, where nothing else differs."""

    @property
    def more(self) -> int:
        """Bytes that it is more than expected; below 0 it is less, 0 where it is expected."""
        return apart(self.measured, self.expected)


UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
FIGURE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def bytes_of(text: str, name: str = "measured") -> int:
    """The bytes of a figure with its unit. Raises ConfigError."""
    match = FIGURE.fullmatch(text)
    if match is None or match[2].lower() not in UNITS or (not match[2] and "." in match[1]):
        raise ConfigError(f"{name} {text!r} must be a number with its unit, such as 85.3GiB, 87347MiB or 91.6GB")
    return int(float(match[1]) * UNITS[match[2].lower()])


def why(job: TrainingJob, measured: int, kind: Kind | None = None) -> Why:
    """Why a run has a figure. Without its kind it is taken for the quantity that it is nearest to. Raises as `estimate`."""
    run = estimate(job)
    stage = run.peak_stage
    near = {one: abs(apart(measured, figure(stage, one))) for one in KINDS}
    nearest: Kind = min(KINDS, key=lambda one: near[one])
    taken = nearest if kind is None else kind
    expected = figure(stage, taken)
    others = tuple(one for one in KINDS if one != taken and near[one] <= NEAR * measured)
    gap = abs(apart(measured, expected))
    found: dict[tuple[int, int], Cause] = {}
    if gap > NEAR * measured:
        for cause in _causes(job, run, stage, taken):
            if abs(apart(measured, cause.figure)) <= HALF * gap:
                found.setdefault((cause.figure.low, cause.figure.high), cause)
    causes = sorted(found.values(), key=lambda cause: abs(apart(measured, cause.figure)))
    tokens = _tokens(job, stage, taken, measured) if gap > NEAR * measured else None
    return Why(measured, taken, stage.pp_rank, expected, others, tuple(causes), tokens)


def apart(measured: int, expected: Range) -> int:
    """Bytes that a figure is outside what is expected: above 0 it is more, below less."""
    if expected.low <= measured <= expected.high:
        return 0
    return measured - (expected.high if measured > expected.high else expected.low)


def figure(stage: Stage, kind: Kind, *, first: bool = False) -> Range:
    """What is expected of a stage; in the `first` iteration, before moments exist, that."""
    of = {
        "allocated": Range(stage.peak_allocated_bytes, stage.peak_allocated_bytes),
        "reserved": stage.reserved,
        "nvidia-smi": stage.device_used,
    }
    less = stage.peak_allocated_bytes - stage.first_step_peak_allocated_bytes if first else 0
    return Range(of[kind].low - less, of[kind].high - less)


def _causes(job: TrainingJob, run: Estimate, stage: Stage, kind: Kind) -> Iterator[Cause]:
    for other in run.stages:
        if other is not stage:
            says = f"it is of a rank of stage {other.pp_rank}"
            yield Cause(says, figure(other, kind), "look which rank printed it: pipeline stages are outermost")
    yield Cause(
        "it is of the first iteration, before moments exist", figure(stage, kind, first=True),
        "read the line of a later iteration",
    )  # fmt: skip
    for settings in tried(job):
        if (there := _with(job, stage.pp_rank, settings)) is not None:
            yield Cause(f"it ran with {options(settings)}", figure(there, kind), ARGUMENTS)
    for one in job.open_versions:
        for change in changes_of(job, one, loading=False):
            version = text_of(before(change.since))
            if (there := _with(job, stage.pp_rank, {one.setting: version})) is not None:
                says = f"it ran with {LIBRARIES[one.setting]} {version} or older ({change.before})"
                yield Cause(says, figure(there, kind), IMPORTED[one.setting])
    factors = context_of(job).routing
    if factors is not None:
        for factor in (factors.low, factors.high, 1.5, 2.0, 3.0):
            if (there := _with(job, stage.pp_rank, {"router_imbalance": round(float(factor), 4)})) is not None:
                says = f"a rank got {factor:.2f} times the rows of balanced routing"
                yield Cause(
                    says, figure(there, kind), "see whether it grows with the steps; --router-imbalance says how much"
                )


def _with(job: TrainingJob, pp_rank: int, settings: dict[str, object]) -> Stage | None:
    """The stage with other settings; None where that is no run."""
    try:
        return stage_of(told(job, settings), pp_rank)
    except EstimatorError:
        return None


def _tokens(job: TrainingJob, stage: Stage, kind: Kind, measured: int) -> float | None:
    """Of how many times the tokens a microbatch would have that figure, by the bytes of twice the tokens."""
    twice = _with(job, stage.pp_rank, {"seq_length": 2 * job.training.seq_length})
    if twice is None:
        return None
    now, then = figure(stage, kind), figure(twice, kind)
    each = then.high - now.high
    times = 1 + (measured - (now.high if measured > now.high else now.low)) / each if each > 0 else 0.0
    return times if times > 0 else None
