"""Megatron's own memory lines in a training log.

Sources: Megatron-LM `megatron/training/utils/common_utils.py` (report_memory), Megatron-Bridge
`src/megatron/bridge/training/utils/train_utils.py`. MB is 2^20 bytes; Bridge's GB is 10^9, with five digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigError

LINE = re.compile(
    r"\[Rank (\d+)\] \((after|before save_checkpoint for iteration|after save_checkpoint for iteration) (\d+)"
    r"(?: iterations)?\) memory \((MB|GB)\)(.*)"
)
ALLOCATED = ("allocated", "mem-allocated-gigabytes")
MAX_ALLOCATED = ("max allocated", "mem-max-allocated-gigabytes")
UNITS = {"MB": 2**20, "GB": 10**9}


@dataclass(frozen=True)
class Reported:
    """The last report of a rank, in bytes."""

    rank: int
    iteration: int
    allocated_bytes: int
    max_allocated_bytes: int


def read_log(text: str) -> list[Reported]:
    """The last memory report of every rank in a log. Raises ConfigError if there is none."""
    found: dict[int, Reported] = {}
    for match in LINE.finditer(text):
        rank, _, iteration, unit, rest = match.groups()
        values = dict(re.findall(r"\|\s*([^:|]+?)\s*:\s*([0-9.]+(?:[eE][-+]?\d+)?)", rest))
        allocated = next((values[name] for name in ALLOCATED if name in values), None)
        most = next((values[name] for name in MAX_ALLOCATED if name in values), None)
        if allocated is not None and most is not None:
            scale = UNITS[unit]
            report = Reported(int(rank), int(iteration), round(float(allocated) * scale), round(float(most) * scale))
            found[report.rank] = report
    if not found:
        raise ConfigError(
            "the log has no memory lines such as [Rank 0] (after 2 iterations) memory (MB) | allocated: ... | max allocated: ..."
        )
    return [found[rank] for rank in sorted(found)]
