"""The terminal: tables are as wide as they need when standard output is not one and COLUMNS is not set."""

from __future__ import annotations

import os
import re
import sys
from typing import IO, Any, TextIO, cast

from rich.console import Console

from ..wording import whole

WIDE, NARROWEST = 1000, 20
SIZES = ("COLUMNS", "LINES")
"""Variables that rich reads as numbers."""


class QuietConsole(Console):
    """A reader that stops reading is no error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Trimmed:
    """A stream that is written to without the blanks that end a line: a table fills its last column with them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, and say that all of it was."""
        self._stream.write(BLANKS.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


BLANKS = re.compile(r" +(?=\n)")


def console() -> Console:
    """A rich console on standard output, never narrower than `NARROWEST`; COLUMNS=0, which some terminals set, says nothing."""
    sizes = {name: number for name in SIZES if (number := whole(os.environ.get(name, "")))}
    environment = {name: value for name, value in os.environ.items() if name not in SIZES or name in sizes}
    fits = sys.stdout.isatty() or "COLUMNS" in sizes
    file = None if sys.stdout.isatty() else cast("IO[str]", Trimmed(sys.stdout))
    made = QuietConsole(width=None if fits else WIDE, soft_wrap=False, file=file, _environ=environment)
    if made.width < NARROWEST:
        made.width = NARROWEST
    return made
