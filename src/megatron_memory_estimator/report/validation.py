"""What `validate` prints, its JSON, and the tables of docs/explanation/accuracy.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..job.hardware import GIB
from ..validation.replay import Pair, Replay, Score, Summary, large_peaks, scores, steady_outside, sums, under_estimated
from ..wording import filled, plain
from .stage_table import needed

CASE_COLUMNS = ("case", "steady GiB", "error", "peak GiB", "error", "first step", "beyond state")
NOTABLE = 0.01
"""Under-estimates above this are listed apart."""
PARTS = ("steady", "peak", "first_step", "beyond_state")


def percent(value: float | None, *, signed: bool = True) -> str:
    """A relative error in percent."""
    if value is None:
        return "-"
    return f"{100 * value:+.2f} %" if signed else f"{100 * value:.2f} %"


def measured_gib(pair: Pair | None) -> str:
    """A measured figure in GiB."""
    return f"{pair.measured / GIB:.3f}" if pair else "-"


def case_row(found: Replay) -> tuple[str, ...]:
    """One run."""
    if found.refused:
        return (plain(found.run.id), f"refused: {found.refused}", "", "", "", "", "")
    pairs = (found.steady, found.peak, found.first_step, found.beyond_state)
    errors = [percent(pair.error if pair else None) for pair in pairs]
    return (plain(found.run.id), measured_gib(found.steady), errors[0], measured_gib(found.peak), *errors[1:])


def summary_rows(replays: Sequence[Replay], kinds: Sequence[str] | None = None) -> list[tuple[str, ...]]:
    """Median, 90th percentile and worst of the groups for each kind; without kinds, all that have a figure."""
    rows = []
    for name, parts in sums(replays).items():
        if (kinds is None or name in kinds) and any(parts.values()):
            rows.append((plain(name), *(_summary(parts[part]) for part in PARTS)))
    return rows


def _summary(found: Summary | None) -> str:
    if found is None:
        return "-"
    return f"{100 * found.median:.2f} / {100 * found.p90:.2f} / {100 * found.worst:.2f} ({found.groups})"


def score_row(score: Score) -> tuple[str, ...]:
    """One group."""
    errors = [
        percent(value, signed=False) for value in (score.steady, score.peak, score.first_step, score.beyond_state)
    ]
    runs = f"{score.runs - score.refused} of {score.runs}"
    return (score.group, score.family, runs, *errors, percent(score.signed_peak))


def print_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table where it is within the terminal; else each row's name on a line of its own, and its figures below it."""
    rows, table = list(rows), Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    if needed(table, console).maximum <= console.width:
        console.print(table)
        return
    for name, *cells in rows:
        console.print(name, highlight=False, markup=False)
        said = [
            f"{column} {cell.strip()}" for column, cell in zip(columns[1:], cells, strict=True) if cell.strip() != "-"
        ]
        for line in filled([f"{one};" for one in said[:-1]] + said[-1:], console.width - 2):
            console.print(Padding(Text(line), (0, 0, 0, 2)))


def print_validation(replays: Sequence[Replay], console: Console) -> None:
    """Every case, then the sums."""
    print_table(console, CASE_COLUMNS, map(case_row, replays))
    console.print(
        "Absolute errors in percent, one score per group of near-duplicates: median / 90th percentile / worst (groups)"
    )
    print_table(console, ("", *(part.replace("_", " ") for part in PARTS)), summary_rows(replays))
    low = under_estimated(replays, NOTABLE)
    if low:
        columns = (f"peaks under-estimated by more than {percent(NOTABLE, signed=False)}", "error")
        rows = ((plain(found.run.id), percent(found.peak.error if found.peak else None)) for found in low)
        print_table(console, columns, rows)
    for line in closing_lines(replays):
        console.print(line, markup=False)


def closing_lines(replays: Sequence[Replay]) -> list[str]:
    """Large peaks, steady memory within its bound, refusals, under-estimates."""
    lines = []
    large = large_peaks(replays)
    if large:
        worst = f"median {percent(large.median, signed=False)}, worst {percent(large.worst, signed=False)}"
        lines.append(f"{large.groups} runs with a peak above 16 GiB: {worst}")
    groups = {found.run.group for found in replays if found.steady}
    if groups:
        outside = steady_outside(replays)
        named = f"; outside: {plain(', '.join(outside))} (--case explains a run)" if outside else ""
        lines.append(
            f"steady memory within 1.2 % or 8 MiB: {len(groups) - len(outside)} of {len(groups)} groups{named}"
        )
    refused = sum(bool(found.refused) for found in replays)
    lines.append(f"{len(replays)} runs, {refused} refused, {len(under_estimated(replays))} peaks under-estimated")
    return lines


def validation_document(replays: Sequence[Replay]) -> dict[str, Any]:
    """Schema `megatron-memory-validate/1`; bytes are whole numbers, errors are fractions."""

    def pair(found: Pair | None) -> dict[str, Any] | None:
        return {"measured": found.measured, "estimated": found.estimated, "error": found.error} if found else None

    large = large_peaks(replays)
    return {
        "schema": "megatron-memory-validate/1",
        "cases": [
            {
                "id": found.run.id,
                "group": found.run.group,
                "family": found.run.family,
                "source": found.run.source,
                "refused": found.refused or None,
                "when": found.when,
                **{part: pair(getattr(found, part)) for part in PARTS},
                "formulas": {name: pair(value) for name, value in found.formulas},
            }
            for found in replays
        ],
        "under_estimated": [found.run.id for found in under_estimated(replays)],
        "steady_outside": steady_outside(replays),
        "large_peaks": large._asdict() if large else None,
        "groups": [score._asdict() for score in scores(replays)],
        "sums": {
            name: {part: value._asdict() if value else None for part, value in parts.items()}
            for name, parts in sums(replays).items()
        },
    }
