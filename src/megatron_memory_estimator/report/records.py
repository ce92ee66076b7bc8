"""An estimate as records, one per pipeline stage: plain numbers with the unit in the column name, for tables of other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..estimator import Estimate
from .document import STAGE, VERDICT
from .quantities import record

Record = dict[str, Any]


def stage_records(estimate: Estimate) -> list[Record]:
    """One record per stage; bytes of a GPU, those of the parts at the stage's peak; what is of the run and not of the stage is `run_`."""
    found = record(VERDICT, estimate.verdict())
    of_gpu = {"gpu": found.pop("gpu"), "gpu_memory_bytes": found.pop("limit_bytes")}
    stages = [record(STAGE, stage) for stage in estimate.stages]
    names = [name for name in found if name not in stages[0]]
    return [{**stage, **of_gpu, **{f"run_{name}": found[name] for name in names}} for stage in stages]


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Comma-separated values with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def as_markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table."""
    return markdown_table(list(records[0]), ([str(value) for value in one.values()] for one in records))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of cells, bars in them escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


FORMATS: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {"csv": as_csv, "markdown": as_markdown}
