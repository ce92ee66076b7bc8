"""How much of a report is on one screen."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console, RenderableType

PROMPT = 1
"""Lines below a report."""


def room(console: Console, *beside: RenderableType) -> int:
    """Lines that a terminal has left beside these; as many as one likes where there is none."""
    if not console.is_terminal:
        return sys.maxsize
    return console.height - PROMPT - sum(len(console.render_lines(one)) for one in beside)


def room_beside(console: Console, *parts: Callable[[], None]) -> int:
    """The same beside what these print."""
    if not console.is_terminal:
        return sys.maxsize
    with console.capture() as page:
        for part in parts:
            part()
    return console.height - PROMPT - page.get().count("\n")
