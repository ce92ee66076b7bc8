"""Fill the generated parts of README.md and docs/: the output of commands, and tables made from the code; typed settings too.

A block begins with `<!-- run: COMMAND -->` (the output of a command) or `<!-- table: NAME -->` and ends with
`<!-- end -->`. With --check, changes nothing and exits with 1 when a block is out of date.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

import docs_accuracy
import docs_device
import docs_mcp
import docs_runs
import docs_tables
import docs_throughput
import docs_timeline
import settings_types
from docs_markdown import ROOT

TABLES = {
    **docs_tables.TABLES,
    **docs_runs.TABLES,
    **docs_accuracy.TABLES,
    **docs_device.TABLES,
    **docs_mcp.TABLES,
    **docs_throughput.TABLES,
    **docs_timeline.TABLES,
}
"""Makers of the tables by the names that blocks have."""
BLOCK = re.compile(r"(<!-- (run|table): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def output(command: str) -> str:
    """What a command prints, as a fenced block with the command first."""
    from megatron_memory_estimator.cli import main

    head, *rest = command.split(" | ")
    words = shlex.split(head)
    assert words[0] == "megatron-memory", command
    os.environ.pop("COLUMNS", None)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main(words[1:])
    lines = [line.rstrip() for line in text.getvalue().rstrip("\n").split("\n")]
    for cut in rest:  # head -N, or sed -n A,Bp
        first, last = (
            cut.removeprefix("sed -n ").removesuffix("p").split(",")
            if "sed" in cut
            else (1, cut.removeprefix("head -"))
        )
        lines = lines[int(first) - 1 : int(last)]
    return "```console\n$ " + command + "\n" + "\n".join(lines) + "\n```\n"


def filled(text: str) -> str:
    """The text with every block made anew."""

    def block(match: re.Match[str]) -> str:
        made = output(match.group(3)) if match.group(2) == "run" else TABLES[match.group(3)]()
        return match.group(1) + made + match.group(4)

    return BLOCK.sub(block, text)


def pages() -> list[Path]:
    """README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def stale() -> list[str]:
    """Pages whose blocks are out of date."""
    made = {page: filled(page.read_text()) for page in pages()} | {settings_types.TARGET: settings_types.text()}
    return [str(page.relative_to(ROOT)) for page, text in made.items() if text != page.read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        wrong = stale()
        print("\n".join(wrong))
        sys.exit(bool(wrong))
    settings_types.TARGET.write_text(settings_types.text())
    for page in pages():
        page.write_text(filled(page.read_text()))
