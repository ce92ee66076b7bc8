"""Batch sizes that change during a run: the largest decides what is in flight.

Source: Megatron-LM `megatron/core/num_microbatches_calculator.py` (StepBatchsizeNumMicroBatchesCalculator: THRESHOLD:BATCH_SIZE
pairs, numbers with K, M, B or T behind them); `megatron/training/arguments.py` (validate_args: excludes global_batch_size).
"""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..wording import shown

SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def largest_batch(values: dict[str, Any]) -> None:
    """Replaces step_batch_size_schedule by the global_batch_size that it ends up needing.

    Raises ConfigError for a schedule that Megatron does not read, and for one beside another global_batch_size.
    """
    text = values.pop("step_batch_size_schedule", None)
    if text is None:
        return
    if values.get("global_batch_size") is not None:
        raise ConfigError("step_batch_size_schedule and global_batch_size exclude each other; give one")
    values["global_batch_size"] = max(_batches(text))


def _batches(text: Any) -> list[int]:
    """The batch sizes of a schedule."""
    steps = text.replace(",", " ").split() if isinstance(text, str) else []
    pairs = [[_number(word) for word in step.split(":", 1)] for step in steps]
    sizes = [pair[1] for pair in pairs if len(pair) == 2 and None not in pair and pair[1]]
    if not steps or len(sizes) < len(steps) or min(pair[0] or 0 for pair in pairs):
        raise ConfigError(
            f"step_batch_size_schedule={shown(text)} must be THRESHOLD:BATCH_SIZE pairs, the first threshold 0, "
            'such as "0:768 250B:1536"'
        )
    return [size for size in sizes if size is not None]


def _number(word: str) -> int | None:
    """A whole number, with or without a suffix; None where it is none."""
    times = SUFFIXES.get(word[-1:].upper(), 1)
    try:
        number = int(float(word[:-1] if times > 1 else word) * times)
    except (ValueError, OverflowError):
        return None
    return number if number >= 0 else None
