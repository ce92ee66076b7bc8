"""How many columns a table needs, however wide the terminal is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

WIDEST = 1000
"""Columns of a terminal that no table reaches."""


def needed(table: Table, console: Console) -> Measurement:
    """The columns below which words are cut, and those with every cell on one line."""
    return console.measure(table, options=console.options.update(max_width=WIDEST))
