"""An estimate as records, one per pipeline stage: plain numbers with the unit in the column name, for tables of other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..device.verdict import Verdict
from ..estimator import Estimate, Stage

Record = dict[str, Any]


def stage_records(estimate: Estimate) -> list[Record]:
    """One record per stage; bytes of a GPU, those of the parts at the stage's peak."""
    return [_record(estimate, stage) for stage in estimate.stages]


def _record(estimate: Estimate, stage: Stage) -> Record:
    found = estimate.verdict()
    chunks = [plan.chunk for plan in stage.rank.plans]
    return {
        "pp_rank": stage.pp_rank,
        "num_layers": sum(len(chunk.layers) for chunk in chunks),
        "embedding": any(chunk.embedding for chunk in chunks),
        "mtp": any(chunk.mtp for chunk in chunks),
        "output": any(chunk.output for chunk in chunks),
        "num_parameters": sum(stage.num_parameters),
        **{f"{name}_bytes": nbytes for name, nbytes in stage.breakdown_bytes.items()},
        "peak_allocated_bytes": stage.peak_allocated_bytes,
        "first_step_peak_allocated_bytes": stage.first_step_peak_allocated_bytes,
        "steady_allocated_bytes": stage.steady_allocated_bytes,
        "device_low_bytes": stage.device.low,
        "device_high_bytes": stage.device.high,
        "gpu": found.gpu,
        "gpu_memory_bytes": found.memory_bytes,
        "verdict": found.word,
        "phase": found.phase,
        "not_counted": found.not_counted,
        "head_room_low_bytes": found.head_room.low,
        "head_room_high_bytes": found.head_room.high,
        "peak_event": stage.peak.candidate.label,
    }


def verdict_record(found: Verdict) -> Record:
    """What a run is within a limit, and the bytes that decide it."""
    return {
        "device_low_bytes": found.device.low,
        "device_high_bytes": found.device.high,
        "head_room_low_bytes": found.head_room.low,
        "head_room_high_bytes": found.head_room.high,
        "limit_bytes": found.memory_bytes,
        "verdict": found.word,
        "phase": found.phase,
        "not_counted": found.not_counted,
    }


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
