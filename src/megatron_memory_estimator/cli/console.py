"""The terminal: tables are as wide as they need when standard output is not one and COLUMNS is not set."""

from __future__ import annotations

import os
import sys

from rich.console import Console

from ..wording import whole

WIDE = 1000
SIZES = ("COLUMNS", "LINES")
"""Variables that rich reads as numbers."""


class QuietConsole(Console):
    """A reader that stops reading is no error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """A rich console on standard output."""
    fits = sys.stdout.isatty() or whole(os.environ.get("COLUMNS", "")) is not None
    environment = {name: value for name, value in os.environ.items() if name not in SIZES or whole(value) is not None}
    return QuietConsole(width=None if fits else WIDE, soft_wrap=False, _environ=environment)
