"""A timeline in a terminal: the verdict, the peak with what runs at it, a chart as wide as it, and the largest moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..timeline.axis import Axis, Stretch
from ..timeline.moments import Moment
from ..timeline.timeline import Timeline
from ..wording import plain
from .quantities import gib
from .screen import room

LEAST_ROWS, MOST_ROWS = 6, 14
"""Rows of what moves."""
BESIDE_ROWS = 2
"""The row of what stays, and the axis."""
LABEL = 8
"""Columns of the scale."""
LINE_IN_CHART = 2
"""The GPU's memory is in the chart where what it leaves is at most so many times what moves; else the chart would be a flat line."""
LARGEST = 5


class Glyphs(NamedTuple):
    """Characters of a chart: parts of a cell from empty to full, state, the GPU's memory, the peak."""

    levels: str
    state: str
    line: str
    mark: str


BLOCKS = Glyphs(" \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", "\u2591", "\u2500", "\u25b2")
ASCII = Glyphs(" #", ":", "-", "^")


def print_timeline(timeline: Timeline, verdict: Text | str, axis: Axis, console: Console) -> None:
    """The verdict, the peak, the chart with its legend, and the largest moments: on one screen where there is one."""
    glyphs = BLOCKS if console.encoding.lower().startswith("utf") else ASCII
    head, foot = [timeline.sentence], [legend(timeline, glyphs), *left_out(timeline)]
    console.print(verdict, highlight=False)
    for line in head:
        _say(console, line)
    found, rows = largest(timeline, axis), 0
    for most in range(LARGEST, 0, -1):
        found = largest(timeline, axis, most)
        rows = room(console, verdict, *head, *foot, found) - BESIDE_ROWS
        if rows >= LEAST_ROWS:
            break
    rows = min(max(rows, LEAST_ROWS), MOST_ROWS)
    console.print(chart(timeline.stretches(axis), timeline, axis, console.width, glyphs, rows), no_wrap=True)
    for line in foot:
        _say(console, line)
    console.print(found)


def _say(console: Console, line: str) -> None:
    console.print(Text(plain(line)), soft_wrap=console.width > len(line))


def legend(timeline: Timeline, glyphs: Glyphs) -> str:
    """What the signs of the chart are."""
    memory = f"{gib(timeline.gpu_memory_bytes, 1)} GiB of {timeline.gpu}"
    drawn = f"{glyphs.line} {memory}" if line_in_chart(timeline) else f"the limit, {memory}, is above"
    return f"{glyphs.state} what stays  {glyphs.levels[-1]} activations and the rest  {glyphs.mark} peak  {drawn}"


def left_out(timeline: Timeline) -> Iterator[str]:
    """What is not listed of a long step."""
    out = timeline.left_out
    if out is not None:
        many = "" if out.microbatches == 1 else "es"
        yield (
            f"left out: {out.moments:,} forwards and backwards in the middle, of {out.microbatches:,} microbatch{many}, "
            f"which repeat the {out.repeats} before them"
        )


def at(timeline: Timeline, moment: Moment, axis: Axis) -> str:
    """Where a moment of the step begins."""
    place = timeline.place(moment, axis)
    assert place is not None
    return f"at {place:.2f} s" if axis == "seconds" else f"event {timeline.index(int(place)):,}"


def line_in_chart(timeline: Timeline) -> bool:
    """Whether the GPU's memory is low enough to be drawn."""
    moves = timeline.peak.highest_bytes - timeline.staying_bytes
    return timeline.gpu_memory_bytes - timeline.staying_bytes <= LINE_IN_CHART * moves


def chart(along: Sequence[Stretch], timeline: Timeline, axis: Axis, width: int, glyphs: Glyphs, rows: int) -> Text:
    """Rows of columns above one row of what stays, red where that is more than the GPU has; below them the axis with the peak's mark.

    The lowest row is all that stays, whatever it is; only the rows above are to scale.
    """
    columns, end = width - LABEL - 1, along[-1].end
    bars = columns_of(along, columns)
    memory, floor = timeline.gpu_memory_bytes, timeline.staying_bytes
    moves = max(timeline.peak.highest_bytes, memory if line_in_chart(timeline) else 0) - floor
    text = Text()
    for row in reversed(range(rows)):
        low, up = (floor + moves * edge // rows for edge in (row, row + 1))
        limit = low < memory <= up
        text.append(f"{gib(memory if limit else up, 1):>{LABEL - 1}} |", "bold" if limit else "dim")
        for nbytes in bars:
            part = (nbytes - low) / max(up - low, 1)
            steps = len(glyphs.levels) - 1
            if limit and nbytes < memory:
                text.append(glyphs.line)
            else:
                cell = glyphs.levels[max(0, min(steps, round(part * steps)))]
                text.append(cell, "red" if low >= memory or (limit and nbytes > memory) else "green")
        text.append("\n")
    text.append(f"{gib(floor, 1):>{LABEL - 1}} |", "dim")
    text.append(f"{glyphs.state * columns}\n", "red" if floor > memory else "blue")
    text.append(f"{'0':>{LABEL - 1}} +{_feet(timeline, axis, columns, end, glyphs)}")
    return text


def _feet(timeline: Timeline, axis: Axis, columns: int, end: float, glyphs: Glyphs) -> str:
    """The axis with the peak's mark on it and its end."""
    words = f" {end:.2f} s" if axis == "seconds" else f" {timeline.index(int(end) - 1) + 1:,} events"
    line = ["-"] * columns
    place = timeline.place(timeline.peak, axis)
    line[-len(words) :] = words
    if place is not None:
        line[min(int(place / end * columns), columns - 1)] = glyphs.mark
    return "".join(line)


def columns_of(along: Sequence[Stretch], columns: int) -> list[int]:
    """The most bytes in each of so many equal columns."""
    scale = columns / along[-1].end
    found = [0] * columns
    for one in along:
        first = min(int(one.start * scale), columns - 1)
        for column in range(first, min(max(int(one.end * scale), first + 1), columns)):
            found[column] = max(found[column], one.nbytes)
    return found


def largest(timeline: Timeline, axis: Axis, most: int = LARGEST) -> Table:
    """The largest moments, so many, equal ones together: GiB, how many of those listed, where the first is, what runs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("GiB", "times", "first"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what runs", overflow="fold")
    for moment, times in timeline.largest(most):
        where = "once" if moment is timeline.capture else at(timeline, moment, axis)
        table.add_row(gib(moment.highest_bytes), str(times), where, Text(moment.label))
    return table
