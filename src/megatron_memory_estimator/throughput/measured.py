"""Measured steps in a file, for calibration: one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, EstimatorError
from ..estimator import estimate
from ..inputs.text_files import read_text
from ..job import TrainingJob
from ..settings import nearest
from .calibrate import Measured

KEYS = (
    "id",
    "family",
    "source",
    "model",
    "args",
    "bridge",
    "num_gpus",
    "gpu",
    "settings",
    "tokens_per_s_gpu",
    "primary",
)


def read_measured(path: str) -> list[Measured]:
    """The runs of a file. Each has `model` (a name), `args` or `bridge`, `num_gpus`, `gpu`, `tokens_per_s_gpu`, and may have
    `settings`, `id` and `family`. Raises ConfigError with the line that is wrong."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            found.append(_measured(line, f"{os.path.basename(path)} line {number}", number))
    if not found:
        raise ConfigError(f"{path} holds no measured steps")
    return found


def _measured(line: str, where: str, number: int) -> Measured:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(record, Mapping):
        raise ConfigError(f"{where} must be a JSON object")
    for name in record.keys() - set(KEYS):
        raise ConfigError(f'{where}: unknown key "{name}".{nearest(name, KEYS)}')
    kinds = [name for name in ("model", "args", "bridge") if name in record]
    if len(kinds) != 1:
        raise ConfigError(f"{where}: give one of model, args, bridge")
    rate, gpus = record.get("tokens_per_s_gpu"), record.get("num_gpus")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0:
        raise ConfigError(f"{where}: tokens_per_s_gpu must be a positive number")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise ConfigError(f"{where}: num_gpus must be a whole number of at least 1")
    settings: dict[str, Any] = {**record.get("settings", {}), **({"gpu": record["gpu"]} if "gpu" in record else {})}
    make: dict[str, Any] = {
        "model": TrainingJob.from_hf,
        "args": TrainingJob.from_megatron_args,
        "bridge": TrainingJob.from_bridge,
    }
    try:
        result = estimate(make[kinds[0]](record[kinds[0]], gpus, **settings))
    except EstimatorError as error:
        raise ConfigError(f"{where}: {error}") from None
    name = str(record.get("id") or f"line {number}")
    return Measured(name, str(record.get("family") or name), result, float(rate))
