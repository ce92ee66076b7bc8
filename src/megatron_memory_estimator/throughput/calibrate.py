"""Fit the named efficiencies to measured steps: multipliers of the defaults, by damped least squares on log times with a prior.

The prior keeps a multiplier near 1 that the runs say nothing about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from ..dataclass import dataclass
from ..errors import ConfigError
from .machine import Efficiency, calibrated
from .step import Estimated, throughput

FITTED = ("gemm", "grouped", "attention", "hbm", "expert_link", "host", "quantization")
PRIOR = 0.15
"""Standard deviation of the logarithm of a multiplier before any run is seen, relative to NOISE of a run."""
NOISE = 0.10
ROUNDS, STEP = 5, 0.05


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
    """The multipliers that fit the runs best. Raises ConfigError without runs."""
    if not runs:
        raise ConfigError("calibration needs at least one measured run")
    import numpy as np

    base = Efficiency()

    def residuals(logs: np.ndarray) -> np.ndarray:
        chosen = calibrated(base, dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))
        found = np.array([np.log1p(error) for error in errors(runs, chosen)])
        return np.concatenate([found / NOISE, logs / PRIOR])

    logs = _least_squares(residuals, len(FITTED))
    factors = {name: float(np.exp(value)) for name, value in zip(FITTED, logs, strict=True)}
    best = calibrated(base, factors)
    before, after = (median(abs(e) for e in errors(runs, eff)) for eff in (base, best))
    if not all(map(math.isfinite, (before, after, *factors.values()))):
        raise ConfigError("no efficiencies fit the measured steps: a predicted rate or a measured one is not finite")
    return Calibration(factors, best, before, after)


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
        logs = np.clip(logs, -0.5, 0.5)
    return [float(value) for value in logs]


def leave_one_family_out(runs: Sequence[Measured]) -> list[float]:
    """The error of every run with efficiencies fitted to the other families only."""
    known: dict[tuple[str, Efficiency], float] = {}

    def remembered(some: Sequence[Measured], efficiency: Efficiency) -> list[float]:
        for run in some:
            if (run.id, efficiency) not in known:
                known[run.id, efficiency] = errors([run], efficiency)[0]
        return [known[run.id, efficiency] for run in some]

    found: dict[str, float] = {}
    for family in dict.fromkeys(run.family for run in runs):
        fitted = calibrate([run for run in runs if run.family != family], remembered).efficiency
        held = [run for run in runs if run.family == family]
        found.update(zip((run.id for run in held), remembered(held, fitted), strict=True))
    return [found[run.id] for run in runs]
