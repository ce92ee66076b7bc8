"""The stages of an estimate as bars against the GPU's memory, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ..estimator import Stage
from .figures import gib, layers_text
from .stage_table import REST, folded


class Share(NamedTuple):
    """Parts of the peak that are one colour: their name, the parts, marks with and without Unicode, and the style."""

    name: str
    parts: tuple[str, ...]
    mark: str
    letter: str
    style: str


SHARES = (
    Share("weights", ("weights",), "\u2588", "W", "blue"),
    Share("gradients", ("gradients",), "\u2593", "G", "cyan"),
    Share("optimizer", ("optimizer",), "\u2592", "O", "magenta"),
    Share("activations", ("activations",), "\u2591", "A", "green"),
    Share("other", REST, "\u00b7", "x", "yellow"),
)
MEMORY = "|"
LEAST, MOST = 20, 100
"""Columns of a bar at least, and of a line at most: longer bars say no more."""


def print_bars(stages: Sequence[Stage], memory_bytes: int, console: Console) -> None:
    """One line per stage, equal neighbours together: layers, GiB of the peak, and what it is made of."""
    blocks = "utf" in console.encoding.lower()
    rows = list(folded([_cells(stage) for stage in stages]))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    heads = [head.rjust(width) for head, width in zip(("stage", "layers", "peak GiB"), widths, strict=True)]
    widths = [max(width, len(head)) for width, head in zip(widths, heads, strict=True)]
    left = sum(widths) + 2 * len(widths)
    room = max(min(console.width, MOST) - left, LEAST)
    scale = max(memory_bytes, *(stage.peak_allocated_bytes for stage in stages)) / (room - 1)
    edge = round(memory_bytes / scale)
    legend = [f"{share.mark if blocks else share.letter}{share.name}" for share in SHARES]
    console.print(Text("  ".join([*heads, ""])).append_text(_legend(legend)), highlight=False)
    by_rank = {stage.pp_rank: stage for stage in stages}
    for row in rows:
        stage = by_rank[int(row[0].split("-")[0])]
        line = Text("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) + "  ")
        console.print(
            line.append_text(_bar(stage, scale, edge, blocks=blocks)), highlight=False, no_wrap=True, crop=False
        )


def _cells(stage: Stage) -> list[str]:
    parts = [gib(nbytes) for nbytes in stage.breakdown_bytes.values()]
    return [str(stage.pp_rank), layers_text(stage), gib(stage.peak_allocated_bytes), *parts]


def _legend(names: Sequence[str]) -> Text:
    legend = Text()
    for share, name in zip(SHARES, names, strict=True):
        legend.append(name, share.style).append(" ")
    return legend.append(f"{MEMORY}GPU")


def _bar(stage: Stage, scale: float, edge: int, *, blocks: bool) -> Text:
    """Marks in proportion to bytes: every border stands where the sum up to it does. The memory's end is marked."""
    bar, at, total = Text(), 0, 0
    for share in SHARES:
        total += sum(stage.breakdown_bytes[part] for part in share.parts)
        end = round(total / scale)
        bar.append((share.mark if blocks else share.letter) * (end - at), share.style)
        at = max(at, end)
    bar.append(" " * (edge + 1 - at))
    marked = bar[:edge] + Text(MEMORY, "bold")
    return marked + bar[edge + 1 :] if len(bar) > edge + 1 else marked
