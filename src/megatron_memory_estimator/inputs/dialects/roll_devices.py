"""Devices of a worker of ROLL: `list(range(0,8))`, `range(8,16)`, `[0, 1, 2]` and sums of such, read and never evaluated.

Source: alibaba/ROLL `roll/configs/worker_config.py` (device_mapping).
"""

from __future__ import annotations

import re
from typing import Any

from ...errors import ConfigError
from ...wording import shown

PART = re.compile(
    r"(?:list\(\s*)?range\(\s*(?P<numbers>[0-9]{1,9}(?:\s*,\s*[0-9]{1,9}){0,2})\s*,?\s*\)(?:\s*\))?"
    r"|\[\s*(?P<listed>[0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)?\s*,?\s*\]|(?P<one>[0-9]{1,9})"
)
MOST = 100_000
"""Devices of a run."""


def devices(given: Any, where: str) -> frozenset[int] | None:
    """The devices that a mapping says, or None where it says none. Raises ConfigError for one that is not read."""
    if given is None or given == "":
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        return frozenset((given,))
    if isinstance(given, list):
        if len(given) > MOST or not all(isinstance(one, int) and not isinstance(one, bool) for one in given):
            raise ConfigError(f"{where}={shown(given)} must be numbers of devices")
        return frozenset(given)
    if not isinstance(given, str) or len(given) > 10_000:
        raise ConfigError(f"{where}={shown(given)} must be devices such as list(range(0,8))")
    found: set[int] = set()
    for part in given.split("+"):
        match = PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{where}={shown(given)} is not read; give it as list(range(0,8)) or as numbers")
        found.update(_numbers(match, where))
        if len(found) > MOST:
            raise ConfigError(f"{where}={shown(given)} has more than {MOST} devices")
    return frozenset(found)


def _numbers(match: re.Match[str], where: str) -> range | list[int]:
    if match["one"] is not None:
        return [int(match["one"])]
    if match["numbers"] is None:
        return [int(each) for each in (match["listed"] or "").split(",") if each.strip()]
    ends = [int(each) for each in match["numbers"].split(",")]
    if len(ends) == 3 and ends[2] == 0:
        raise ConfigError(f"{where} has a range with a step of 0")
    numbers = range(*ends)
    if len(numbers) > MOST:
        raise ConfigError(f"{where} has a range of more than {MOST} devices")
    return numbers
