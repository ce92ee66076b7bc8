"""What `explain` prints: the tree of named tensors of one stage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..estimator import Estimate, Stage
from ..job.hardware import MIB
from ..rank.rank import PARTS, Row
from ..wording import plain
from .text import print_notes, summary

COLUMNS = ("tensor", "shape", "local shape", "dtype", "count", "MiB", "why it is alive")
RIGHT = ("count", "MiB")
UNIT = re.compile(r"^((?:chunk \d+\.)?(?:layers\.[0-9-]+|embedding|final_layernorm|mtp|output|batch|pipeline))\.")


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
    for line in summary(estimate):
        console.print(line, highlight=False, soft_wrap=True)
    console.print()
    console.print(Text.assemble((f"stage {stage.pp_rank}", "bold"), f", {plain(title)}"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in RIGHT else "left", overflow="fold")
    for part in PARTS:
        members = [row for row in rows if row.part == part]
        if not members:
            continue
        _subtotal(table, part, members, "bold")
        for unit, named in branches(members).items():
            if unit:
                _subtotal(table, f"  {unit}", [row for _, row in named], "")
            for name, row in named:
                indent = "    " if unit else "  "
                local = "x".join(map(str, row.local_shape))
                cells = (row.formula, local, row.dtype, str(row.copies), mib(row.nbytes), row.why)
                table.add_row(Text(indent + name), *map(Text, cells))
    table.add_section()
    _subtotal(table, "sum", rows, "bold")
    assert sum(row.nbytes for row in rows) == total
    console.print(table)
    print_notes(estimate, console)


def _subtotal(table: Table, name: str, rows: list[Row], style: str) -> None:
    table.add_row(Text(name, style=style), "", "", "", "", Text(mib(sum(row.nbytes for row in rows)), style=style), "")
