"""Measured steps in a file, for calibration: one JSON object per line."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, EstimatorError
from ..estimator import estimate
from ..inputs.catalog import entries
from ..inputs.hf.load import HUB_ID
from ..inputs.text_files import is_within
from ..job.training_job import TrainingJob
from ..throughput.calibrate import Measured
from ..wording import shown
from .json_lines import (
    ARGUMENTS,
    FLAG,
    GPUS,
    NAME,
    OBJECT,
    OBJECT_OR_NAME,
    TEXT,
    Kind,
    Line,
    lines,
    refuse_taken,
)

SLOWEST, FASTEST = 0.001, 1e9
"""Tokens per second of one GPU; one in a quarter of an hour, and a thousand times what a small model reaches."""


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and SLOWEST <= value <= FASTEST


RATE = Kind("a number of tokens per second from 0.001 to 1e9", _is_rate)
KINDS = {
    "id": TEXT, "family": TEXT, "source": TEXT, "model": OBJECT_OR_NAME, "args": ARGUMENTS, "bridge": OBJECT_OR_NAME, "num_gpus": GPUS,
    "gpu": NAME, "settings": OBJECT, "tokens_per_s_gpu": RATE, "primary": FLAG,
}  # fmt: skip
NEEDED = ("num_gpus", "tokens_per_s_gpu")
MAKE: dict[str, Callable[..., TrainingJob]] = {
    "model": TrainingJob.from_hf, "args": TrainingJob.from_megatron_args, "bridge": TrainingJob.from_bridge,
}  # fmt: skip


def read_measured(path: str) -> list[Measured]:
    """The runs of a file. Each has `model` (a name), `args` or `bridge`, `num_gpus`, `gpu`, `tokens_per_s_gpu`, and may have
    `settings`, `id` and `family`. Raises ConfigError with the line that is wrong."""
    folder = os.path.dirname(os.path.abspath(os.path.expanduser(path)))
    found = [_measured(line, folder) for line in lines(path, KINDS, NEEDED)]
    if not found:
        raise ConfigError(f"{path} holds no measured steps")
    return found


def _measured(line: Line, folder: str) -> Measured:
    record = line.record
    kinds = [name for name in MAKE if name in record]
    if len(kinds) != 1:
        raise ConfigError(f"{line.where}: give one of model, args, bridge")
    refuse_taken(line, frozenset(("num_gpus", *(["gpu"] if "gpu" in record else []))))
    settings: dict[str, Any] = {**record.get("settings", {}), **({"gpu": record["gpu"]} if "gpu" in record else {})}
    (kind,) = kinds
    what = record[kind]
    try:
        if isinstance(what, str):
            what = _confined(kind, what, folder)
        result = estimate(MAKE[kind](what, record["num_gpus"], **settings))
    except EstimatorError as error:
        raise ConfigError(f"{line.where}: {error}") from None
    name = record.get("id") or f"line {line.number}"
    return Measured(name, record.get("family") or name, result, float(record["tokens_per_s_gpu"]))


def _confined(kind: str, name: str, folder: str) -> str:
    """A path below the folder of the records, with every link resolved, or for a model its name in the catalogue or on the Hub.

    Records come from others: one must not open any file of the machine, nor wait for standard input.
    """
    if name.isprintable() and name != "-" and ".." not in name.split("/"):
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            if kind == "model" and os.path.isdir(path):
                path = os.path.join(path, "config.json")
            path = os.path.realpath(path)
            if os.path.isfile(path) and is_within(folder, path):
                return path
        elif kind == "model" and (name in entries() or HUB_ID.fullmatch(name)):
            if not os.path.exists(name):
                return name
            raise ConfigError(
                f"model: {shown(name)} is a path in the working directory too, which is not the folder of the records"
            )
    names = "a model of the catalogue, a Hub id, or " if kind == "model" else ""
    raise ConfigError(f"{kind} must be {names}the path of a file below the folder of the records, not {shown(name)}")
