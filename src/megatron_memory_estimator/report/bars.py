"""The stages of an estimate as bars against the GPU's memory, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ..estimator import Stage
from .shares import bars, share_bytes


class Mark(NamedTuple):
    """How a share of the peak is drawn: with Unicode, without, and in which style."""

    block: str
    letter: str
    style: str


MARKS = {
    "weights": Mark("\u2588", "W", "blue"),
    "gradients": Mark("\u2593", "G", "cyan"),
    "optimizer": Mark("\u2592", "O", "magenta"),
    "activations": Mark("\u2591", "A", "green"),
    "other": Mark("\u00b7", "x", "yellow"),
}
"""By share, in the order of SHARES."""
MEMORY = "|"
LEAST, MOST = 20, 100
"""Columns of a bar at least, and of a line at most: longer bars say no more."""


def print_bars(stages: Sequence[Stage], memory_bytes: int, console: Console) -> None:
    """One line per stage, equal neighbours together: layers, GiB of the peak, and what it is made of."""
    blocks = "utf" in console.encoding.lower()
    rows = [(one.stages, one.layers, one.peak) for one in bars(stages)]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    heads = [head.rjust(width) for head, width in zip(("stage", "layers", "peak GiB"), widths, strict=True)]
    widths = [max(width, len(head)) for width, head in zip(widths, heads, strict=True)]
    left = sum(widths) + 2 * len(widths)
    room = max(min(console.width, MOST) - left, LEAST)
    scale = max(memory_bytes, *(stage.peak_allocated_bytes for stage in stages)) / (room - 1)
    edge = round(memory_bytes / scale)
    legend = [f"{mark.block if blocks else mark.letter}{name}" for name, mark in MARKS.items()]
    console.print(Text("  ".join([*heads, ""])).append_text(_legend(legend)), highlight=False)
    by_rank = {stage.pp_rank: stage for stage in stages}
    for row in rows:
        stage = by_rank[int(row[0].split("-")[0])]
        line = Text("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) + "  ")
        console.print(
            line.append_text(_bar(stage, scale, edge, blocks=blocks)), highlight=False, no_wrap=True, crop=False
        )


def _legend(names: Sequence[str]) -> Text:
    legend = Text()
    for mark, name in zip(MARKS.values(), names, strict=True):
        legend.append(name, mark.style).append(" ")
    return legend.append(f"{MEMORY}GPU")


def _bar(stage: Stage, scale: float, edge: int, *, blocks: bool) -> Text:
    """Marks in proportion to bytes: every border stands where the sum up to it does. The memory's end is marked."""
    bar, at, total = Text(), 0, 0
    for mark, nbytes in zip(MARKS.values(), share_bytes(stage), strict=True):
        total += nbytes
        end = round(total / scale)
        bar.append((mark.block if blocks else mark.letter) * (end - at), mark.style)
        at = max(at, end)
    bar.append(" " * (edge + 1 - at))
    marked = bar[:edge] + Text(MEMORY, "bold")
    return marked + bar[edge + 1 :] if len(bar) > edge + 1 else marked
