"""The picture of a terminal in README.md: what two commands print, in colour, as SVG. It loads no font from anywhere."""

from __future__ import annotations

import contextlib
import io
import os
import re

from docs_markdown import ROOT
from rich.console import Console
from rich.text import Text

TARGET = ROOT / "docs" / "images" / "terminal.svg"
COMMANDS = (
    "estimate DeepSeek-V3 --num-gpus 128 --tp 4 --pp 4 --ep 8 --gpu H100",
    "estimate DeepSeek-V3 --num-gpus 256 --tp 4 --pp 8 --ep 8 --gpu B200",
)
WIDTH = 100
ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->", re.DOTALL)
"""Fonts that a browser would fetch, and a comment."""


class Terminal(io.StringIO):
    """A text that counts as a terminal, so that what is printed to it has its colours."""

    def isatty(self) -> bool:
        return True


def printed(command: str) -> str:
    """What a command prints in a terminal, with its escapes."""
    from megatron_memory_estimator.cli import main

    page = Terminal()
    before = dict(os.environ)
    os.environ.update(COLUMNS=str(WIDTH), LINES="24", TERM="xterm-256color", COLORTERM="truecolor", FORCE_COLOR="1")
    os.environ.pop("NO_COLOR", None)
    try:
        with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
            main(command.split())
    finally:
        os.environ.clear()
        os.environ.update(before)
    return page.getvalue().rstrip("\n")


def text() -> str:
    """The picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for command in COMMANDS:
        console.print(Text(f"$ megatron-memory {command}", style="bold"))
        console.print(Text.from_ansi(printed(command)))
        console.print()
    drawn = console.export_svg(title="megatron-memory", unique_id="terminal")
    drawn = ELSEWHERE.sub("", drawn).replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas")
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"
