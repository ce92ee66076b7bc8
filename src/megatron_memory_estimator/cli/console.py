"""The terminal: tables are as wide as they need when standard output is not one and COLUMNS is not set.

Rich is loaded where a terminal asks for it, or a table: text alone that goes elsewhere has neither colours nor a width.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from ..report.markup import unmarked
from ..wording import whole

if TYPE_CHECKING:
    from rich.console import Console

WIDE, NARROWEST = 1000, 20
SIZES = ("COLUMNS", "LINES")
"""Variables that rich reads as numbers."""
COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables with which rich takes any output for a terminal."""


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


class Page:
    """What stands for rich's console where output is no terminal and there are no tables: text without markup."""

    is_terminal, width, height = False, WIDE, sys.maxsize

    def __init__(self, stream: TextIO) -> None:
        self.file: Any = Trimmed(stream)
        self.encoding = stream.encoding or "utf-8"

    def print(self, text: str = "", *, markup: bool = True, **_: Any) -> None:
        """Write a line."""
        self.file.write(f"{unmarked(text) if markup else text}\n")

    @contextmanager
    def capture(self) -> Iterator[Any]:
        """Keeps what is printed, to `get` it."""
        kept, self.file = self.file, Kept()
        try:
            yield self.file
        finally:
            self.file = kept


class Kept(io.StringIO):
    """What was printed."""

    def get(self) -> str:
        """All of it."""
        return self.getvalue()


def page() -> Console:
    """A console for text: rich's where a terminal shows colours, or a width is given; else one that writes lines as they are."""
    if sys.stdout.isatty() or "COLUMNS" in _sizes() or any(os.environ.get(name) for name in COLOURED):
        return console()
    return cast("Console", Page(sys.stdout))


def console() -> Console:
    """A console on standard output, never narrower than `NARROWEST`; COLUMNS=0, which some terminals set, says nothing."""
    sizes, terminal = _sizes(), sys.stdout.isatty()
    environment = {name: value for name, value in os.environ.items() if name not in SIZES or name in sizes}
    fits = terminal or "COLUMNS" in sizes
    file = None if terminal else cast("IO[str]", Trimmed(sys.stdout))
    made = quiet()(width=None if fits else WIDE, soft_wrap=False, file=file, _environ=environment)
    if made.width < NARROWEST:
        made.width = NARROWEST
    return made


def quiet() -> type[Console]:
    """Rich's console; a reader that stops reading is no error."""
    from rich.console import Console

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return QuietConsole


def _sizes() -> dict[str, int]:
    """The variables that say a size."""
    return {name: number for name in SIZES if (number := whole(os.environ.get(name, "")))}
