"""Measured runs: the project's own table, and files in the same schema."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from ..errors import ConfigError
from ..wording import MOST_DIGITS, shown
from .json_lines import (
    GPUS,
    MOST_GPUS,
    NAME,
    OBJECT,
    TEXT,
    TEXT_BY_NAME,
    TEXTS,
    Kind,
    Line,
    hold,
    is_whole,
    lines,
    one_of,
    refuse_taken,
)

TABLE = os.path.join(os.path.dirname(__file__), "runs.jsonl")
RANKS = ("first", "last", "any", "all")
PHASES = ("first-run", "resumed")


def _is_bytes(value: Any) -> bool:
    return is_whole(value, 10**MOST_DIGITS)


BYTES = Kind("bytes as a positive whole number", _is_bytes)
BYTES_OF_RANKS = Kind(
    "a list of bytes as positive whole numbers", lambda value: isinstance(value, list) and all(map(_is_bytes, value))
)
ITERATION = Kind("an iteration, from 1", lambda value: is_whole(value, 10**MOST_DIGITS))
RANK = Kind(
    f"a rank, from 0, or one of {', '.join(RANKS)}",
    lambda value: is_whole(value, MOST_GPUS, 0) or (isinstance(value, str) and value in RANKS),
)
KINDS = {
    "id": NAME, "group": TEXT, "family": TEXT, "features": TEXTS, "source": TEXT, "date": TEXT, "gpu": NAME, "num_gpus": GPUS,
    "phase": one_of(*PHASES), "rank": RANK, "args": OBJECT, "bridge": OBJECT, "env": TEXT_BY_NAME, "settings": OBJECT,
    "measured": OBJECT, "printed": TEXT, "iteration": ITERATION,
}  # fmt: skip
MEASURED = {
    "allocated_bytes": BYTES, "max_allocated_bytes": BYTES, "first_step_max_allocated_bytes": BYTES,
    "per_rank_max_allocated_bytes": BYTES_OF_RANKS,
}  # fmt: skip
NEEDED = ("id", "gpu", "num_gpus", "measured")
TAKEN = frozenset(("gpu", "num_gpus", "env"))


@dataclass(frozen=True)
class Run:
    """A measured run. Bytes are what torch counted; `rank` says whose: a number, or the first rank's, the last's, the highest, or all.

    What ran is `args`, Megatron-LM arguments, or `bridge`, the sections of a Megatron-Bridge ConfigContainer.
    `printed` is the figure as its source prints it, where bytes had to be made from it. `iteration` is the last one whose figures are
    in these; None where the source does not say it.
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
    rank: str | int = "last"
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    printed: str = ""
    iteration: int | None = None

    @property
    def own_rank(self) -> int | None:
        """The rank that was measured, by its number; None where it is the highest, or all are."""
        return {"first": 0, "last": self.num_gpus - 1}.get(self.rank) if isinstance(self.rank, str) else self.rank


def read_runs(path: str = TABLE) -> list[Run]:
    """The runs of a file, one JSON object per line. Raises ConfigError with the line that is wrong."""
    found = [_run(line) for line in lines(path, KINDS, NEEDED)]
    if not found:
        raise ConfigError(f"{path} holds no runs")
    for name, count in Counter(run.id for run in found).items():
        if count > 1:
            raise ConfigError(f"{path} has two runs with the id {shown(name)}")
    return found


def _run(line: Line) -> Run:
    record, where = line.record, line.where
    if "bridge" in record and "args" in record:
        raise ConfigError(f"{where}: args and bridge say the same thing; give one of them")
    if not record.get("bridge") and "args" not in record:
        raise ConfigError(f"{where}: args (Megatron-LM arguments) or bridge (sections that are not empty) is missing")
    refuse_taken(line, TAKEN)
    measured = record["measured"]
    hold(Line(f"{where}: measured", line.number, measured), MEASURED, (), "measurement")
    per_rank = measured.get("per_rank_max_allocated_bytes")
    if not measured:
        raise ConfigError(f"{where}: measured must hold bytes: at least one of {', '.join(MEASURED)}")
    if per_rank is not None and len(per_rank) != record["num_gpus"]:
        raise ConfigError(f"{where}: per_rank_max_allocated_bytes must have one value for each of the num_gpus ranks")
    if isinstance(rank := record.get("rank"), int) and rank >= record["num_gpus"]:
        raise ConfigError(f"{where}: rank {rank} is none of the {record['num_gpus']} ranks, which count from 0")
    if rank == "all" and per_rank is None:
        raise ConfigError(f"{where}: rank all goes with per_rank_max_allocated_bytes")
    return Run(
        **{**record, "group": record.get("group") or record["id"], "features": tuple(record.get("features", ()))}
    )
