"""Every argument of Megatron-LM (August 2026), from the table beside this file.

Source: Megatron-LM `megatron/training/arguments.py`.
"""

from __future__ import annotations

import csv
import json
import os
from functools import lru_cache
from typing import Any, NamedTuple


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


@lru_cache(maxsize=1)
def arguments() -> tuple[dict[str, Argument], dict[str, Argument]]:
    """All arguments by flag and by destination (underscored)."""
    with open(os.path.join(os.path.dirname(__file__), "arguments.csv"), encoding="ascii") as file:
        text = file.read()
    by_flag: dict[str, Argument] = {}
    by_dest: dict[str, Argument] = {}
    for row in csv.DictReader(text.splitlines()):
        found = Argument(
            row["flag"], row["dest"], row["kind"], row["type"], row["nargs"], json.loads(row["default"]), row["class"]
        )  # fmt: skip
        by_flag[found.flag] = found
        by_dest.setdefault(found.dest, found)
    return by_flag, by_dest


@lru_cache(maxsize=1)
def fork_arguments() -> dict[str, str]:
    """Arguments that Megatron-LM does not have and that decide memory, with the fork that has them.

    Sources: Ascend/MindSpeed-LLM, microsoft/Megatron-DeepSpeed, alibaba/Pai-Megatron-Patch, older releases of NVIDIA/Megatron-LM:
    their `arguments.py`, and public launch scripts.
    """
    with open(os.path.join(os.path.dirname(__file__), "fork_arguments.csv"), encoding="ascii") as file:
        return {row["flag"]: row["fork"] for row in csv.DictReader(file)}


TELLING = (
    "lora",
    "offload",
    "recompute",
    "checkpoint_act",
    "swap",
    "zero_",
    "quant",
    "hybrid_",
    "layer_list",
    "freeze",
    "fsdp",
    "_parallel_size",
)
"""Parts of names that decide memory in whatever program has them."""


def decides_memory(name: str, values: list[str]) -> str:
    """The fork that an unknown argument (underscored) belongs to if it decides memory, else nothing."""
    if name == "zero_stage" and values == ["0"]:
        return ""
    found = fork_arguments().get(name)
    return found if found is not None else "a fork" if any(part in name.lower() for part in TELLING) else ""
