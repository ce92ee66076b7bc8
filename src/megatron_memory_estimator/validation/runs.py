"""Measured runs: the project's own table, and files in the same schema."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..inputs.text_files import read_text

TABLE = os.path.join(os.path.dirname(__file__), "runs.jsonl")
RANKS = ("first", "last", "any", "all")
KEYS = {
    "id", "group", "family", "features", "source", "date", "gpu", "num_gpus", "phase", "rank", "args", "bridge", "env", "settings",
    "measured", "printed",
}  # fmt: skip
MEASURED = {
    "allocated_bytes", "max_allocated_bytes", "first_step_max_allocated_bytes", "per_rank_max_allocated_bytes",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A measured run. Bytes are what torch counted; `rank` says whose: the first rank's, the last's, the highest, or all.

    What ran is `args`, Megatron-LM arguments, or `bridge`, the sections of a Megatron-Bridge ConfigContainer.
    `printed` is the figure as its source prints it, where bytes had to be made from it.
    """

    id: str
    gpu: str
    num_gpus: int
    measured: Mapping[str, Any]
    args: Mapping[str, Any] = field(default_factory=dict)
    bridge: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    family: str = "own"
    features: tuple[str, ...] = ()
    source: str = ""
    date: str = ""
    phase: str = "first-run"
    rank: str = "last"
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    printed: str = ""


def read_runs(path: str = TABLE) -> list[Run]:
    """The runs of a file, one JSON object per line. Raises ConfigError with the line that is wrong."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            found.append(_run(line, f"{os.path.basename(path)} line {number}"))
    if not found:
        raise ConfigError(f"{path} holds no runs")
    for name, count in Counter(run.id for run in found).items():
        if count > 1:
            raise ConfigError(f'{path} has two runs with the id "{name}"')
    return found


def _run(line: str, where: str) -> Run:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{where} must be a JSON object")
    for name in record.keys() - KEYS:
        from ..settings import nearest

        raise ConfigError(f'{where}: unknown key "{name}".{nearest(name, KEYS)}')
    what = "bridge" if "bridge" in record and "args" not in record else "args"
    if "bridge" in record and "args" in record:
        raise ConfigError(f"{where}: args and bridge say the same thing; give one of them")
    for name, kind in (("id", str), ("gpu", str), ("num_gpus", int), (what, dict), ("measured", dict)):
        if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
            raise ConfigError(f"{where}: {name} is missing or is not of type {kind.__name__}")
    measured = record["measured"]
    for name in measured.keys() - MEASURED:
        raise ConfigError(f'{where}: unknown measurement "{name}"; the names are {", ".join(sorted(MEASURED))}')
    per_rank = measured.get("per_rank_max_allocated_bytes")
    numbers = [
        *(per_rank if isinstance(per_rank, list) else []),
        *(v for k, v in measured.items() if not k.startswith("per_")),
    ]
    if not numbers or not all(type(value) is int and value > 0 for value in numbers):
        raise ConfigError(f"{where}: measured must hold bytes as positive whole numbers")
    if per_rank is not None and (not isinstance(per_rank, list) or len(per_rank) != record["num_gpus"]):
        raise ConfigError(f"{where}: per_rank_max_allocated_bytes must have one value for each of the num_gpus ranks")
    if record.get("rank", "last") not in RANKS:
        raise ConfigError(f"{where}: rank must be one of {', '.join(RANKS)}")
    return Run(
        **{**record, "group": record.get("group") or record["id"], "features": tuple(record.get("features", ()))}
    )
