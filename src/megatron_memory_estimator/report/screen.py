"""How much of a report is on one screen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PROMPT = 1
"""Lines below a report."""


def room(console: Console, *beside: RenderableType) -> int:
    """Lines that a terminal has left beside these; as many as one likes where there is none."""
    if not console.is_terminal:
        return sys.maxsize
    return console.height - PROMPT - sum(len(console.render_lines(one)) for one in beside)


def captured(console: Console, part: Callable[[], None]) -> str:
    """What a part prints, as it would stand on the console."""
    with console.capture() as page:
        part()
    return page.get()


def room_beside(console: Console, *texts: str) -> int:
    """The lines that a terminal has left beside texts that were captured."""
    return console.height - PROMPT - sum(text.count("\n") for text in texts) if console.is_terminal else sys.maxsize
