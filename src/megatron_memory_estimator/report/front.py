"""The front of memory against throughput as a chart of a terminal: the fastest plan for each amount of memory."""

from __future__ import annotations

from collections.abc import Iterator

from ..planner.found import Found
from .quantities import gib

ROWS, WIDEST = 6, 72
"""Rows of points, and columns that a chart takes at most."""


def front_chart(found: Found, width: int, encoding: str) -> Iterator[str]:
    """The lines of the chart; none for fewer than two plans."""
    points = [(plan.peak_allocated_bytes, plan.tokens_per_s_gpu) for plan in found.front]
    if len(points) < 2:
        return
    mark = "\u2022" if encoding.lower().startswith("utf") else "o"
    (least, most), (slowest, fastest) = ((min(values), max(values)) for values in zip(*points, strict=True))
    high, low = f"{fastest:,.0f}", f"{slowest:,.0f}"
    label = max(len(high), len(low)) + 1
    columns = min(width, WIDEST) - label - 2
    grid = [[" "] * columns for _ in range(ROWS)]
    for nbytes, rate in points:
        across = round((nbytes - least) / max(most - least, 1) * (columns - 1))
        up = round((rate - slowest) / max(fastest - slowest, 1e-9) * (ROWS - 1))
        grid[ROWS - 1 - up][across] = mark
    yield "tokens/s/GPU of the fastest plan for each amount of memory:"
    for number, row in enumerate(grid):
        side = high if number == 0 else low if number == ROWS - 1 else ""
        yield f"{side:>{label}} |{''.join(row)}".rstrip()
    yield f"{'':{label}} +{'-' * columns}"
    left, right = gib(least, 1), gib(most, 1)
    yield f"{'':{label}}  {left}{'GiB allocated at the peak':^{columns - len(left) - len(right)}}{right}"
