"""A timeline in a terminal: a chart as wide as it, the peak with what runs at it, and the largest moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..timeline.axis import Axis, Stretch, state_bytes
from ..timeline.moments import Moment
from ..timeline.timeline import Timeline
from ..wording import plain
from .quantities import gib

ROWS = 14
LABEL = 8
"""Columns of the scale."""
LINE_IN_CHART = 2
"""The GPU's memory is in the chart where it is at most so many times the peak; else the chart would be a flat line."""
LARGEST = 5


class Glyphs(NamedTuple):
    """Characters of a chart: parts of a cell from empty to full, state, the GPU's memory, the peak."""

    levels: str
    state: str
    line: str
    mark: str


BLOCKS = Glyphs(" \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", "\u2591", "\u2500", "\u25b2")
ASCII = Glyphs(" #", ":", "-", "^")


def print_timeline(timeline: Timeline, axis: Axis, stages: int, console: Console) -> None:
    """The chart, its legend, what the peak is, and a table of the largest moments."""
    of = f", stage {timeline.pp_rank} of {stages}" if stages > 1 else ""
    _say(console, f"{timeline.name or 'model'}{of}: GiB allocated along one training step")
    glyphs = BLOCKS if console.encoding.lower().startswith("utf") else ASCII
    along = timeline.stretches(axis)
    console.print(chart(along, timeline, axis, console.width, glyphs), no_wrap=True)
    memory = f"{glyphs.line} {timeline.gpu}, {gib(timeline.gpu_memory_bytes, 1)} GiB"
    if not line_in_chart(timeline):
        memory += " (above the chart)"
    _say(
        console,
        f"{glyphs.state} weights, gradients, optimizer, workspace  {glyphs.levels[-1]} activations and the rest  {memory}",
    )
    for line in sentences(timeline, axis, glyphs.mark):
        _say(console, line)
    console.print(largest(timeline, axis))


def _say(console: Console, line: str) -> None:
    console.print(Text(plain(line)), soft_wrap=console.width > len(line))


def sentences(timeline: Timeline, axis: Axis, mark: str) -> Iterator[str]:
    """The peak, what is left out, and the seconds beside those of the step time."""
    top = timeline.peak
    where = "once in a run, outside of the step" if top is timeline.capture else at(timeline, top, axis)
    yield f"{mark} peak {gib(top.highest_bytes)} GiB, {where}: {top.label}"
    out = timeline.left_out
    if out is not None:
        many = "" if out.microbatches == 1 else "es"
        yield (
            f"left out: {out.moments:,} forwards and backwards in the middle, of {out.microbatches:,} microbatch{many}, "
            f"which repeat the {out.repeats} before them"
        )
    yield f"a step takes {timeline.step_s:.2f} s"


def at(timeline: Timeline, moment: Moment, axis: Axis) -> str:
    """Where a moment of the step begins."""
    place = timeline.place(moment, axis)
    assert place is not None
    return f"at {place:.2f} s" if axis == "seconds" else f"event {timeline.index(int(place)):,}"


def line_in_chart(timeline: Timeline) -> bool:
    """Whether the GPU's memory is low enough to be drawn."""
    return timeline.gpu_memory_bytes <= LINE_IN_CHART * timeline.peak.highest_bytes


def chart(along: Sequence[Stretch], timeline: Timeline, axis: Axis, width: int, glyphs: Glyphs) -> Text:
    """Rows of columns: state, what is above it, red where it is more than the GPU has; below them the axis with the peak's mark."""
    columns, end = width - LABEL - 1, along[-1].end
    bars = columns_of(along, columns)
    memory = timeline.gpu_memory_bytes
    high = max(timeline.peak.highest_bytes, memory if line_in_chart(timeline) else 0)
    state = min(sum(state_bytes(one.moment).values()) for one in along)
    text = Text()
    for row in reversed(range(ROWS)):
        low, up = (high * edge // ROWS for edge in (row, row + 1))
        limit = low < memory <= up
        text.append(f"{gib(memory if limit else up, 1):>{LABEL - 1}} |", "bold" if limit else "dim")
        for nbytes in bars:
            part = (nbytes - low) / (up - low)
            steps = len(glyphs.levels) - 1
            cell = glyphs.levels[max(0, min(steps, round(part * steps)))]
            if limit and nbytes < memory:
                text.append(glyphs.line)
            elif up <= state:
                text.append(glyphs.state, "blue")
            else:
                text.append(cell, "red" if low >= memory or (limit and nbytes > memory) else "green")
        text.append("\n")
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


def largest(timeline: Timeline, axis: Axis) -> Table:
    """The largest moments, equal ones together: GiB, how many of those listed, where the first is, what runs."""
    alike: dict[tuple[int, str], list[Moment]] = {}
    for moment in timeline.every:
        alike.setdefault((moment.highest_bytes, moment.label), []).append(moment)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("GiB", "times", "first"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what runs", overflow="fold")
    for nbytes, label in sorted(alike, key=lambda key: -key[0])[:LARGEST]:
        several = alike[nbytes, label]
        where = "once" if several[0] is timeline.capture else at(timeline, several[0], axis)
        table.add_row(gib(nbytes), str(len(several)), where, Text(label))
    return table
