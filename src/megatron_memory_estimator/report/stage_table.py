"""The stages of an estimate as a table that is as wide as the terminal and never cuts a number.

How many columns a table needs, however wide the terminal is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..estimator import Stage
from .document import MAIN, REST, STAGE, STATE
from .quantities import gib, labelled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table


MERGED = {"state": STATE, "other": REST}
"""Parts of the peak that stand together where a form has no column for each."""
KEPT = (
    ("stage", "layers", *MAIN, "other", "steady", "peak"),
    ("stage", *MAIN, "other", "peak"),
    ("stage", "state", "activations", "other", "peak"),
)
"""The columns of the narrower forms, the widest first: every form adds up to the peak."""


def forms(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """The forms of the table: all columns, all but when the peak is, and those that are kept."""
    yield columns
    yield [name for name in columns if name != "when"]
    yield from KEPT


def cells(stage: Stage) -> dict[str, str]:
    """The cells of a stage by column: those of the widest form, and the parts that narrower forms put together."""
    merged = {name: gib(sum(stage.breakdown_bytes[part] for part in parts)) for name, parts in MERGED.items()}
    return {**labelled(STAGE, stage, "terminal"), **merged}


BOLD = ("steady", "peak")


def stage_table(stages: Sequence[Stage], console: Console) -> Table:
    """One row per stage in GiB, equal neighbours together, in the widest form whose cells all fit the console."""
    rows = [cells(stage) for stage in stages]
    tables = [_table(rows, form) for form in forms([name for name in rows[0] if name not in MERGED])]
    fitting = (table for table in tables if needed(table, console).maximum <= console.width)
    return next(fitting, tables[-1])


def _table(rows: Sequence[Mapping[str, str]], form: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in form:
        style = "bold" if name in BOLD else ""
        table.add_column(name, justify="left" if name == "when" else "right", style=style, no_wrap=True)
    for cells in folded([[row[name] for name in form] for row in rows]):
        table.add_row(*cells)
    return table


def folded(rows: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """The rows, neighbours that differ in their first cell alone as one: `2-6`."""
    for first, last in spans(rows):
        name = rows[first][0] if first == last else f"{rows[first][0]}-{rows[last][0]}"
        yield [name, *rows[first][1:]]


def spans(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[int, int]]:
    """The first and the last place of neighbours that differ in their first cell alone."""
    first = 0
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index][1:] != rows[first][1:]:
            yield first, index - 1
            first = index


WIDEST = 1000
"""Columns of a terminal that no table reaches."""


def needed(table: Table, console: Console) -> Measurement:
    """The columns below which words are cut, and those with every cell on one line."""
    return console.measure(table, options=console.options.update(max_width=WIDEST))
