"""What a whole training run takes: the share of its time in which it steps (goodput), its days, and its dollars.

A run takes `save_interval` steps and writes a checkpoint, which stops it, again and again. GPUs fail independently of each other, so that
a run of them all fails every M seconds on average; a failure costs what was done since the last checkpoint, and the restart R. Steps of
t seconds and a save of d seconds then take, on average,

    M e^(R/M) (e^((t + d)/M) - 1)

and the interval that costs least is

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 2M / 9) - d        (M where d >= 2M)

Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22
(2006): the complete cost function, and its minimum. No figure of a run is assumed: whoever asks gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, expm1, sqrt
from typing import NamedTuple

from ..device.host import GB, checkpoint_bytes
from ..errors import ConfigError
from ..job.hardware import Environment
from ..job.training_job import TrainingJob
from ..rank.rank import Rank
from ..wording import all_of

HOUR, DAY, MINUTE = 3600, 86400, 60
FAILURES = ("gpu_mtbf_hours", "restart_minutes", "storage_gbs")
"""Settings that goodput needs, all of them."""


class WholeRun(NamedTuple):
    """What a whole run takes; None where what it follows from is not given."""

    tokens_per_s: float
    """Tokens a second of all GPUs together, with saves and failures where they are given."""
    goodput: float | None
    """The share of the run's time in which it takes steps that are kept."""
    save_interval: int | None
    """Steps between checkpoints: as given, or as many as cost least."""
    save_s: float | None
    """Seconds of a save."""
    checkpoint_bytes: int | None
    """Bytes of a checkpoint with its optimizer state."""
    failures_per_day: float | None
    """Failures of the run a day."""
    tokens_per_dollar: float | None
    """Tokens for a dollar."""
    days: float | None
    """Days until train_tokens are passed."""
    dollars: float | None
    """Dollars until then."""


def whole_run(job: TrainingJob, ranks: Iterable[Rank], step: float) -> WholeRun | None:
    """What a run with steps of so many seconds takes, as far as it follows from what the job's environment gives; None where nothing is.

    `ranks` are those of all pipeline stages. Raises ConfigError where goodput is asked for, and something that it needs is not given.
    """
    e = job.env
    if not asked(e):
        return None
    assert job.training.global_batch_size is not None
    tokens = job.training.global_batch_size * job.training.seq_length / step
    goodput = interval = save = size = failures = None
    if e.gpu_mtbf_hours is not None:
        size = checkpoint_bytes(job, ranks)
        save = size / (_given(e, "storage_gbs") * GB)
        mean = e.gpu_mtbf_hours * HOUR / job.layout.world_size
        interval = e.save_interval or best_interval(step, save, mean)
        goodput = share_of_steps(interval * step, save, _given(e, "restart_minutes") * MINUTE, mean)
        tokens, failures = tokens * goodput, DAY / mean
    price = None if e.gpu_hour_dollars is None else e.gpu_hour_dollars * job.layout.world_size / HOUR
    seconds = None if e.train_tokens is None else e.train_tokens / tokens
    return WholeRun(
        tokens,
        goodput,
        interval,
        save,
        size,
        failures,
        None if price is None else tokens / price,
        None if seconds is None else seconds / DAY,
        None if seconds is None or price is None else seconds * price,
    )


def asked(e: Environment) -> bool:
    """Whether anything of a whole run is asked for. Raises ConfigError where only a part of what goodput needs is given."""
    given = [name for name in FAILURES if getattr(e, name) is not None]
    missing = [name for name in FAILURES if name not in given]
    if given and missing:
        raise ConfigError(
            f"goodput needs {all_of(FAILURES)}: {all_of(missing)} {'is' if len(missing) == 1 else 'are'} not given"
        )
    return bool(given) or e.train_tokens is not None or e.gpu_hour_dollars is not None


def _given(e: Environment, name: str) -> float:
    value: float = getattr(e, name)
    return value


def share_of_steps(steps: float, save: float, restart: float, mean: float) -> float:
    """The share of a run's time that its steps take: `steps` seconds of them between saves, failures every `mean` seconds on average."""
    return steps / mean / (exp(restart / mean) * expm1((steps + save) / mean))


def best_interval(step: float, save: float, mean: float) -> int:
    """Steps between two saves that cost least."""
    part = save / (2 * mean)
    seconds = mean if part >= 1 else sqrt(2 * save * mean) * (1 + sqrt(part) / 3 + part / 9) - save
    return max(round(seconds / step), 1)
