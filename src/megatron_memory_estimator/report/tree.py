"""What `explain` prints: the tree of named tensors of one stage."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..estimator import Stage
from ..hardware import MIB
from ..peak import PARTS, Row


def mib(nbytes: int) -> str:
    """Bytes in MiB, without the unit."""
    return f"{nbytes / MIB:,.3f}"


def print_rows(stage: Stage, rows: list[Row], total: int, title: str, console: Console) -> None:
    """Every tensor by part, largest first; the last line is their sum."""
    console.print(f"[bold]stage {stage.pp_rank}[/bold], {title}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("tensor", "left"), ("shape", "left"), ("local shape", "left"), ("dtype", "left"),
                          ("count", "right"), ("MiB", "right"), ("why it is alive", "left")):  # fmt: skip
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for part in PARTS:
        members = sorted((row for row in rows if row.part == part), key=lambda row: -row.nbytes)
        if not members:
            continue
        size = sum(row.nbytes for row in members)
        table.add_row(Text(part, style="bold"), "", "", "", "", Text(mib(size), style="bold"), "")
        for row in members:
            local = "x".join(map(str, row.local_shape))
            table.add_row(
                Text(f"  {row.name}"),
                Text(row.formula),
                local,
                row.dtype,
                str(row.copies),
                mib(row.nbytes),
                Text(row.why),
            )
    table.add_section()
    table.add_row("sum", "", "", "", "", mib(total), "")
    console.print(table)
