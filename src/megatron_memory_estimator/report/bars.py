"""The stages of an estimate as bars against the GPU's memory, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ..estimator import Stage
from .document import share_bytes
from .html import Bar, bars
from .quantities import gib


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


def print_bars(stages: Sequence[Stage], memory_bytes: int, console: Console, most: int | None = None) -> None:
    """One line per stage, equal neighbours together: layers, GiB of the peak, and what it is made of.

    Of more than `most` lines the first, the last and the fullest are there, and one that says what the others have.
    """
    blocks = "utf" in console.encoding.lower()
    every = bars(stages)
    places = shown(every, most or len(every))
    drawn = [every[at] for at in places]
    columns = zip(("stage", "layers", "peak GiB"), *((one.stages, one.layers, one.peak) for one in drawn), strict=True)
    heads, *rows = zip(*([cell.rjust(max(map(len, cells))) for cell in cells] for cells in columns), strict=True)
    room = max(min(console.width, MOST) - len("  ".join([*heads, ""])), LEAST)
    scale = max(memory_bytes, *(stage.peak_allocated_bytes for stage in stages)) / (room - 1)
    edge = round(memory_bytes / scale)
    console.print(Text("  ".join([*heads, ""])).append_text(legend_of(MARKS, blocks=blocks)), highlight=False)
    for cells, one in zip(rows, drawn, strict=True):
        line = Text("  ".join([*cells, ""])).append_text(
            bar([*share_bytes(one.first).values()], scale, edge, blocks=blocks)
        )
        console.print(line, highlight=False, no_wrap=True, crop=False)
    if len(drawn) < len(every):
        left = [one.first.peak_allocated_bytes for at, one in enumerate(every) if at not in places]
        console.print(
            f"and {len(left)} rows more of {gib(min(left))} to {gib(max(left))} GiB (--table)", highlight=False
        )


def shown(every: Sequence[Bar], most: int) -> list[int]:
    """The places of the first, the last and the fullest, in their order."""
    ends = (0, len(every) - 1)
    fullest = sorted(range(len(every)), key=lambda at: (at not in ends, -every[at].first.peak_allocated_bytes))
    return sorted(fullest[:most])


def legend_of(marks: Mapping[str, Mark], *, blocks: bool) -> Text:
    """What each mark stands for."""
    legend = Text()
    for name, mark in marks.items():
        legend.append(f"{mark.block if blocks else mark.letter}{name}", mark.style).append(" ")
    return legend.append(f"{MEMORY}GPU")


def bar(shares: Sequence[int], scale: float, edge: int, *, blocks: bool, marks: Mapping[str, Mark] = MARKS) -> Text:
    """Marks in proportion to bytes: every border stands where the sum up to it does. The memory's end is marked."""
    bar, at, total = Text(), 0, 0
    for mark, nbytes in zip(marks.values(), shares, strict=True):
        total += nbytes
        end = round(total / scale)
        bar.append((mark.block if blocks else mark.letter) * (end - at), mark.style)
        at = max(at, end)
    bar.append(" " * (edge + 1 - at))
    marked = bar[:edge] + Text(MEMORY, "bold")
    return marked + bar[edge + 1 :] if len(bar) > edge + 1 else marked
