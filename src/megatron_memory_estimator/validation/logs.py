"""Megatron's own memory lines in a training log.

Sources: Megatron-LM `megatron/training/utils/common_utils.py` (report_memory), Megatron-Bridge
`src/megatron/bridge/training/utils/train_utils.py`. MB is 2^20 bytes; Bridge's GB is 10^9, with five digits.
"""

from __future__ import annotations

import dataclasses
import re

from ..dataclass import dataclass
from ..errors import ConfigError
from ..wording import MOST_DIGITS, shown, whole

LINE = re.compile(
    r"\[Rank ([0-9]+)\] \((?:after|before save_checkpoint for iteration|after save_checkpoint for iteration) ([0-9]+)"
    r"(?: iterations)?\) memory \((MB|GB)\)(.*)"
)
FIGURE = re.compile(r"[-+]?[0-9.][-+0-9.eE]*")
NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,2})?")
ALLOCATED = ("allocated", "mem-allocated-gigabytes")
MAX_ALLOCATED = ("max allocated", "mem-max-allocated-gigabytes")
UNITS = {"MB": 2**20, "GB": 10**9}
MOST_BYTES = 10**15
"""More than any GPU has."""
LOADED = re.compile(r"successfully loaded checkpoint from .* at iteration +([0-9]{1,15})")
"""What Megatron-LM prints when a load is over (`megatron/training/checkpointing.py`, load_checkpoint)."""


@dataclass(frozen=True)
class Reported:
    """A report of a rank, in bytes; `iteration` counts from 1, `loaded` is that of the checkpoint that the run began with."""

    rank: int
    iteration: int
    allocated_bytes: int
    max_allocated_bytes: int
    loaded: int = 0

    @property
    def steps(self) -> int:
        """Steps of this process so far."""
        return max(self.iteration - self.loaded, 0)


def read_log(text: str) -> list[Reported]:
    """The last memory report of every rank in a log, and before it that of its first step.

    Raises ConfigError for one with impossible figures.

    Lines that are no report, and reports without both figures, are passed over.
    """
    found: dict[tuple[int, bool], Reported] = {}
    loaded = 0
    for number, line in enumerate(text.split("\n"), 1):
        if (begins := LOADED.search(line)) is not None:
            loaded = int(begins[1])
        match = LINE.search(line)
        report = _reported(match, f"line {number} of the log") if match else None
        if report is not None:
            report = dataclasses.replace(report, loaded=loaded)
            found[report.rank, report.steps > 1] = report
    return [found[key] for key in sorted(found)]


def _reported(match: re.Match[str], where: str) -> Reported | None:
    rank, iteration = whole(match[1]), whole(match[2])
    if rank is None or iteration is None:
        raise ConfigError(f"{where}: rank and iteration must be whole numbers of at most {MOST_DIGITS} digits")
    values = {}
    for part in match[4].split("|")[1:]:
        name, _, value = part.partition(":")
        if figure := FIGURE.match(value.lstrip()):
            values[name.strip()] = figure[0]
    figures = []
    for names in (ALLOCATED, MAX_ALLOCATED):
        name = next((name for name in names if name in values), None)
        if name is None:
            return None
        figures.append(_bytes(values[name], match[3], f"{where}: {name}"))
    return Reported(rank, iteration, *figures)


def _bytes(word: str, unit: str, what: str) -> int:
    """The bytes of a figure; a number is read only where it is one."""
    size = float(word) * UNITS[unit] if NUMBER.fullmatch(word) else MOST_BYTES + 1
    if size > MOST_BYTES:
        raise ConfigError(f"{what} must be a number of {unit} below 10^15 bytes, not {shown(word)}")
    return round(size)
