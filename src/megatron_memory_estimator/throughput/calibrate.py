"""Fit the named efficiencies to measured steps: multipliers of the defaults, by damped least squares on log times with a prior.

The prior keeps a multiplier near 1 that the runs say nothing about. One run does not say which efficiency is off: it moves all of them
by one multiplier, the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from ..dataclass import dataclass
from ..errors import ConfigError, NumPyError
from ..tape.tensor import total
from .machine import Efficiency, calibrated
from .step import Estimated, throughput

FITTED = ("gemm", "grouped", "attention", "hbm", "expert_link", "host", "quantization")
PRIOR = 0.15
"""Standard deviation of the logarithm of a multiplier before any run is seen, relative to NOISE of a run."""
NOISE = 0.10
ROUNDS, STEP = 5, 0.05
MOST = 0.5
"""The logarithm of a multiplier at most."""


@dataclass(frozen=True)
class Measured:
    """A job's estimate beside its measured rate."""

    id: str
    family: str
    estimate: Estimated
    tokens_per_s_gpu: float


@dataclass(frozen=True)
class Calibration:
    """Fitted multipliers, the efficiencies with them, and the median absolute error before and after."""

    factors: dict[str, float]
    efficiency: Efficiency
    before: float
    after: float


def errors(runs: Sequence[Measured], efficiency: Efficiency | None = None) -> list[float]:
    """Estimated over measured tokens/s, minus 1."""
    return [throughput(run.estimate, efficiency).tokens_per_s_gpu / run.tokens_per_s_gpu - 1 for run in runs]


Errors = Callable[[Sequence[Measured], Efficiency], list[float]]
"""`errors`, or what knows some of them already."""


def calibrate(runs: Sequence[Measured], errors: Errors = errors) -> Calibration:
    """The multipliers that fit the runs best; of one run, one multiplier of all.

    Raises ConfigError without runs, NumPyError without NumPy.
    """
    if not runs:
        raise ConfigError("calibration needs at least one measured run")
    try:
        import numpy as np
    except ModuleNotFoundError:
        raise NumPyError("calibration to measured steps needs NumPy") from None

    base = Efficiency()

    def residuals(logs: np.ndarray) -> np.ndarray:
        chosen = calibrated(base, dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))
        found = np.array([np.log1p(error) for error in errors(runs, chosen)])
        return np.concatenate([found / NOISE, logs / PRIOR])

    logs = _least_squares(residuals, len(FITTED)) if len(runs) > 1 else [_level(runs, errors)] * len(FITTED)
    factors = {name: float(np.exp(value)) for name, value in zip(FITTED, logs, strict=True)}
    best = calibrated(base, factors)
    before, after = (median(abs(e) for e in errors(runs, eff)) for eff in (base, best))
    if not all(map(math.isfinite, (before, after, *factors.values()))):
        raise ConfigError("no efficiencies fit the measured steps: a predicted rate or a measured one is not finite")
    return Calibration(factors, best, before, after)


def _level(runs: Sequence[Measured], errors: Errors) -> float:
    """The logarithm of the one multiplier of all efficiencies with which the runs are met, as nearly as MOST allows."""
    level = 0.0
    for _ in range(ROUNDS):
        found = errors(runs, calibrated(Efficiency(), dict.fromkeys(FITTED, math.exp(level))))
        level -= total(map(math.log1p, found)) / len(found)
        level = min(max(level, -MOST), MOST)
    return level


def _least_squares(residuals: Callable[..., object], size: int) -> list[float]:
    """Gauss-Newton with numerical derivatives at the start; residuals are clipped (Huber) so that one broken run cannot decide."""
    import numpy as np

    logs = np.zeros(size)
    start = np.asarray(residuals(logs))
    jacobian = np.stack([(np.asarray(residuals(STEP * unit)) - start) / STEP for unit in np.eye(size)], axis=1)
    for _ in range(ROUNDS):
        r = np.asarray(residuals(logs))
        weight = np.minimum(1.0, 1.5 / np.maximum(np.abs(r), 1e-9))
        lhs = jacobian.T @ (weight[:, None] * jacobian)
        logs = logs - np.linalg.solve(lhs, jacobian.T @ (weight * r))
        logs = np.clip(logs, -MOST, MOST)
    return [float(value) for value in logs]


def remembered(errors: Errors = errors) -> Errors:
    """The same errors, each computed once."""
    known: dict[tuple[str, Efficiency], float] = {}

    def found(runs: Sequence[Measured], efficiency: Efficiency) -> list[float]:
        for run in runs:
            if (run.id, efficiency) not in known:
                known[run.id, efficiency] = errors([run], efficiency)[0]
        return [known[run.id, efficiency] for run in runs]

    return found


def left_out(runs: Sequence[Measured], group: Callable[[Measured], str], errors: Errors) -> list[float]:
    """The error of every run with efficiencies fitted to the runs of other groups only: of families, or of machines."""
    found: dict[str, float] = {}
    for one in dict.fromkeys(map(group, runs)):
        fitted = calibrate([run for run in runs if group(run) != one], errors).efficiency
        held = [run for run in runs if group(run) == one]
        found.update(zip((run.id for run in held), errors(held, fitted), strict=True))
    return [found[run.id] for run in runs]
