"""The stages of an estimate as bars against the GPU's memory: figures in GiB, equal neighbours together; and as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ..estimator import Stage
from .document import layers_text, share_bytes
from .markup import escape
from .quantities import gib
from .stage_table import folded, spans

if TYPE_CHECKING:
    from rich.console import Console


class Bar(NamedTuple):
    """One stage, or equal neighbours, in GiB as text: the shares of the peak in the order of SHARES, and the device range. `first` is
    the stage, or the first of them."""

    first: Stage
    stages: str
    layers: str
    shares: tuple[str, ...]
    peak: str
    low: str
    high: str


def bars(stages: Sequence[Stage]) -> list[Bar]:
    """A bar for each stage, equal neighbours as one."""
    rows = [
        [
            str(stage.pp_rank), layers_text(stage), *map(gib, share_bytes(stage).values()), gib(stage.peak_allocated_bytes),
            gib(stage.device.low, 1), gib(stage.device.high, 1),
        ]
        for stage in stages
    ]  # fmt: skip
    firsts = [stages[first] for first, _ in spans(rows)]
    return [
        Bar(first, row[0], row[1], tuple(row[2:-3]), *row[-3:]) for first, row in zip(firsts, folded(rows), strict=True)
    ]


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
    console.print(escape("  ".join([*heads, ""])) + marked_up(legend_of(MARKS, blocks=blocks)), highlight=False)
    for cells, one in zip(rows, drawn, strict=True):
        drawn_bar = bar([*share_bytes(one.first).values()], scale, edge, blocks=blocks)
        line = escape("  ".join([*cells, ""])) + marked_up(drawn_bar)
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


Painted = list[tuple[str, str]]
"""Texts, each with its style."""


def marked_up(painted: Iterable[tuple[str, str]]) -> str:
    """Painted texts with markup."""
    return "".join(f"[{style}]{escape(text)}[/]" if style else escape(text) for text, style in painted)


def legend_of(marks: Mapping[str, Mark], *, blocks: bool) -> Painted:
    """What each mark stands for."""
    named = [(f"{mark.block if blocks else mark.letter}{name}", mark.style) for name, mark in marks.items()]
    return [*(part for one in named for part in (one, (" ", ""))), (f"{MEMORY}GPU", "")]


def bar(shares: Sequence[int], scale: float, edge: int, *, blocks: bool, marks: Mapping[str, Mark] = MARKS) -> Painted:
    """Marks in proportion to bytes: every border stands where the sum up to it does. The memory's end is marked."""
    cells: Painted = []
    total = 0
    for mark, nbytes in zip(marks.values(), shares, strict=True):
        total += nbytes
        cells += [(mark.block if blocks else mark.letter, mark.style)] * (round(total / scale) - len(cells))
    cells += [(" ", "")] * (edge + 1 - len(cells))
    cells[edge] = (MEMORY, "bold")
    return [("".join(text for text, _ in run), style) for style, run in groupby(cells, key=lambda cell: cell[1])]
