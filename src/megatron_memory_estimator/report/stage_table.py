"""The stages of an estimate as a table that is as wide as the terminal and never cuts a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..estimator import Stage
from ..rank.rank import PARTS
from .figures import gib, layers_text
from .widths import needed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = Callable[[Stage], str]


def part(*names: str) -> Cell:
    """GiB of some parts of the peak together."""
    return lambda stage: gib(sum(stage.breakdown_bytes[name] for name in names))


STATE = ("weights", "gradients", "optimizer")
MAIN = (*STATE, "activations")
REST = tuple(name for name in PARTS if name not in MAIN)
STAGE: dict[str, Cell] = {"stage": lambda stage: str(stage.pp_rank)}
LAYERS: dict[str, Cell] = {"layers": lambda stage: layers_text(stage)}
PARAMETERS: dict[str, Cell] = {"params (B)": lambda stage: f"{sum(stage.num_parameters) / 1e9:.3f}"}
STEADY: dict[str, Cell] = {"steady": lambda stage: gib(stage.steady_allocated_bytes)}
PEAK: dict[str, Cell] = {"peak": lambda stage: gib(stage.peak_allocated_bytes)}
WHEN: dict[str, Cell] = {"when": lambda stage: stage.peak.candidate.label}
FORMS: tuple[dict[str, Cell], ...] = (
    {**STAGE, **LAYERS, **PARAMETERS, **{name: part(name) for name in PARTS}, **STEADY, **PEAK, **WHEN},
    {**STAGE, **LAYERS, **PARAMETERS, **{name: part(name) for name in PARTS}, **STEADY, **PEAK},
    {**STAGE, **LAYERS, **{name: part(name) for name in MAIN}, "other": part(*REST), **STEADY, **PEAK},
    {**STAGE, **{name: part(name) for name in MAIN}, "other": part(*REST), **PEAK},
    {**STAGE, "state": part(*STATE), "activations": part("activations"), "other": part(*REST), **PEAK},
)
"""Columns, the most first: parts that are left out are together in the columns that stay, so that every form adds up to the peak."""
BOLD = ("steady", "peak")


def stage_table(stages: Sequence[Stage], console: Console) -> Table:
    """One row per stage in GiB, equal neighbours together, in the widest form whose cells all fit the console."""
    tables = [_table(stages, form) for form in FORMS]
    fitting = (table for table in tables if needed(table, console).maximum <= console.width)
    return next(fitting, tables[-1])


def _table(stages: Sequence[Stage], form: dict[str, Cell]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in form:
        style = "bold" if name in BOLD else ""
        table.add_column(name, justify="left" if name in WHEN else "right", style=style, no_wrap=True)
    for cells in folded([[cell(stage) for cell in form.values()] for stage in stages]):
        table.add_row(*cells)
    return table


def folded(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """The rows, neighbours that differ in their first cell alone as one: `2-6`."""
    for first, last in spans(rows):
        name = rows[first][0] if first == last else f"{rows[first][0]}-{rows[last][0]}"
        yield [name, *rows[first][1:]]


def spans(rows: Sequence[Sequence[str]]) -> Iterator[tuple[int, int]]:
    """The first and the last place of neighbours that differ in their first cell alone."""
    first = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index][1:] != rows[first][1:]:
            yield first, index - 1
            first = index
