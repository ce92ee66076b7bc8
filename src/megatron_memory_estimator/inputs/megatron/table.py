"""Every argument of Megatron-LM (August 2026), and those of DeepSeek-V4 in its dev branch (2f2f8ebae), from the table beside this file.

Source: Megatron-LM `megatron/training/arguments.py`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from ...tables import rows_beside


class Argument(NamedTuple):
    """One command-line flag: what it sets, how, and whether memory depends on it.

    `type` is int, float, bool or empty for a word; `nargs` is empty for one value, or +, *, 3.
    """

    flag: str
    dest: str
    kind: str
    type: str
    nargs: str
    default: Any
    category: str
    since: str


@lru_cache(maxsize=1)
def arguments() -> tuple[dict[str, Argument], dict[str, Argument]]:
    """All arguments by flag and by destination (underscored)."""
    by_flag: dict[str, Argument] = {}
    by_dest: dict[str, Argument] = {}
    for row in rows_beside(__file__, "arguments.csv"):
        found = Argument(
            row["flag"], row["dest"], row["kind"], row["type"], row["nargs"], json.loads(row["default"]), row["class"], row["since"]
        )  # fmt: skip
        by_flag[found.flag] = found
        by_dest.setdefault(found.dest, found)
    return by_flag, by_dest
