"""Comparisons as tables of a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .comparison import REFUSED, VERDICT, Columns, Refused, rows
from .records import markdown_table
from .widths import needed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def header(cases: Columns) -> tuple[str, ...]:
    """The column names."""
    return ("", "", *(case.label for case in cases))


def markdown(cases: Columns, *, every: bool) -> str:
    """A Markdown table."""
    return markdown_table(header(cases), rows(cases, every=every))


_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def latex(cases: Columns, *, every: bool) -> str:
    """A LaTeX tabular."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"

    body = [line(row) for row in rows(cases, every=every)]
    columns = "ll" + "r" * len(cases)
    parts = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        line(header(cases)),
        r"\hline",
        *body,
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(parts) + "\n"


def as_tables(cases: Columns, console: Console, *, every: bool) -> Iterator[Table]:
    """Tables of as many cases as fit the terminal without cutting a word."""
    first = 0
    while first < len(cases):
        last = len(cases)
        while last > first + 1 and needed(_table(cases, first, last, every), console).minimum > console.width:
            last -= 1
        yield _table(cases, first, last, every)
        first = last


def _table(cases: Columns, first: int, last: int, every: bool) -> Table:
    """A table of some of the cases; without the rows that do not differ there is nothing to mark."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    marks = 1 if every else 0
    for _ in range(marks + 1):
        table.add_column("", overflow="fold")
    for case in cases[first:last]:
        table.add_column(Text(case.label.replace(",", ", ")), justify="right", overflow="fold")
    for mark, name, *values in rows(cases, every=every):
        shown = [
            REFUSED if isinstance(case, Refused) and name == VERDICT else value
            for case, value in zip(cases, values, strict=True)
        ]
        cells = ((mark, name) if every else (name,)) + tuple(shown[first:last])
        table.add_row(*map(Text, cells), style="bold" if every and mark else "")
    return table


def below(cases: Columns, *, every: bool) -> Iterator[str]:
    """Why cases are refused, and how many figures are not shown because they do not differ."""
    yield from (f"{case.label}: {REFUSED}: {case.refusal}" for case in cases if isinstance(case, Refused))
    count = len(rows(cases)) - len(rows(cases, every=False))
    if count and not every:
        yield f"{count} figures are the same in all cases; --all shows them"


TEXT = {"markdown": markdown, "latex": latex}
