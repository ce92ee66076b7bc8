"""What `explain` prints: the tree of named tensors of one stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..estimator import Estimate, Stage
from ..job.choices import By
from ..job.hardware import MIB
from ..rank.rank import PARTS, Row
from ..wording import plain
from .document import owned_lines
from .largest import UNIT, Share, headline, largest
from .quantities import gib, plural
from .screen import room
from .text import print_notes, summary

COLUMNS = ("tensor", "shape", "local shape", "dtype", "count", "MiB", "why it is alive")
RIGHT = ("count", "MiB")
BELOW = ("shape", "why it is alive")
LEAST, LINES_OF_A_ROW = 3, 4
"""Largest tensors that are shown at least, and lines that one takes at most."""
NARROW = 120
"""Columns of a terminal below which those two stand below the name of a tensor."""


def mib(nbytes: int) -> str:
    """Bytes in MiB, without the unit."""
    return f"{nbytes / MIB:,.3f}"


def branches(rows: Iterable[Row]) -> dict[str, list[tuple[str, Row]]]:
    """Rows by the unit that they belong to, with their names inside it; largest first."""
    found: dict[str, list[tuple[str, Row]]] = {}
    for row in sorted(rows, key=lambda row: -row.nbytes):
        match = UNIT.match(row.name)
        unit = match.group(1) if match else ""
        found.setdefault(unit, []).append((row.name[len(unit) + 1 :] if unit else row.name, row))
    return dict(sorted(found.items(), key=lambda item: -sum(row.nbytes for _, row in item[1])))


def print_rows(estimate: Estimate, stage: Stage, at: str, console: Console) -> None:
    """The configuration, then every tensor by part and unit, largest first; the last line is their sum."""
    title, total, rows = stage.at(at)
    console.print(headline(stage, at), highlight=False, markup=False)
    for line in summary(estimate):
        console.print(line, highlight=False)
    console.print()
    console.print(Text.assemble((f"stage {stage.pp_rank}", "bold"), f", {plain(title)}"))
    console.print(rows_table(rows, narrow=console.width < NARROW))
    assert sum(row.nbytes for row in rows) == total
    for line in owned_lines(stage.rank):
        console.print(line, highlight=False, markup=False)
    print_notes(estimate, console)
    if console.is_terminal:  # where the first line has scrolled away
        console.print(headline(stage, at), highlight=False, markup=False)


def rows_table(rows: list[Row], *, narrow: bool) -> Table:
    """A row per tensor under its part and unit; `narrow`: the shape's formula and the reason stand below its name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = [name for name in COLUMNS if not narrow or name not in BELOW]
    for name in columns:
        right = name in RIGHT
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right or name == "dtype")
    for part in PARTS:
        members = [row for row in rows if row.part == part]
        if not members:
            continue
        _subtotal(table, part, members, "bold")
        for unit, named in branches(members).items():
            if unit:
                _subtotal(table, f"  {unit}", [row for _, row in named], "")
            for name, row in named:
                cells = _cells(row, ("    " if unit else "  ") + name)
                shown: list[Text | Group] = [Text(cells[column]) for column in columns]
                if narrow:
                    # of every line, where it is wrapped
                    below = Padding(Text(f"{row.formula}; {row.why}"), (0, 0, 0, 6))
                    shown[0] = Group(shown[0], below)
                table.add_row(*shown)
    table.add_section()
    _subtotal(table, "sum", rows, "bold")
    return table


def _cells(row: Row, name: str) -> dict[str, str]:
    local = "x".join(map(str, row.local_shape))
    return dict(
        zip(COLUMNS, (name, row.formula, local, row.dtype, str(row.copies), mib(row.nbytes), row.why), strict=True)
    )


def _subtotal(table: Table, name: str, rows: list[Row], style: str) -> None:
    size = mib(sum(row.nbytes for row in rows))
    table.add_row(
        *(Text({"tensor": name, "MiB": size}.get(str(column.header), ""), style=style) for column in table.columns)
    )


def print_largest(stage: Stage, at: str, by: By, top: int | None, console: Console) -> None:
    """What is largest by parameter, layer, module or tensor: `top` of them or what a terminal has room for, and one line for the rest."""
    head, every = headline(stage, at, by), largest(stage, at, by)

    def table(most: int) -> Table:
        return shares_table(every[:most], every[most:], by, narrow=console.width < NARROW)

    most = top or len(every)
    while top is None and most > LEAST and (left := room(console, head, table(most))) < 0:
        most = max(LEAST, most - max(1, -left // LINES_OF_A_ROW))
    console.print(head, highlight=False, markup=False)
    console.print(table(most))


def shares_table(shown: Sequence[Share], others: Sequence[Share], by: By, *, narrow: bool) -> Table:
    """A row for each share: its GiB, how much of all that is, and the parts of the peak that it is of; `narrow`: these below its name."""
    every = [*shown, *([rest_of(others)] if others else [])]
    total = sum(one.nbytes for one in every)
    shaped = by in ("tensor", "parameter")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in (by, "GiB", "%", *(("local shape",) if shaped else ()), *(() if narrow else ("GiB of each part",))):
        right = name in ("GiB", "%")
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for one in every:
        local = "x".join(map(str, one.local_shape))
        shape = (f"{one.copies} x {local}" if one.copies > 1 and local else local,) if shaped else ()
        figures = (gib(one.nbytes), f"{one.nbytes / total:.0%}", *shape)
        if narrow:
            table.add_row(_above_parts(one), *figures)
        else:
            table.add_row(Text(one.name), *figures, one.said)
    return table


def _above_parts(one: Share) -> Group:
    """A share's name, and its parts: behind it where there is one, below it where there are several."""
    if len(one.parts) == 1:
        return Group(Text.assemble(one.name, (f" ({one.said})", "dim")))
    return Group(Text(one.name), Text(f"  {one.said}", "dim"))


def rest_of(others: Sequence[Share]) -> Share:
    """Those that are not listed, as one."""
    parts = {part: sum(one.parts.get(part, 0) for one in others) for part in PARTS}
    return Share(
        f"{len(others)} other{plural(len(others))}", (), 1, {part: nbytes for part, nbytes in parts.items() if nbytes}
    )
