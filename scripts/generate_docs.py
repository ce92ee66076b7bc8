"""Fill the generated parts of README.md and docs/: the output of commands, and tables made from the code; typed settings too.

A block begins with `<!-- run: COMMAND -->` (the output of a command) or `<!-- table: NAME -->` and ends with
`<!-- end -->`. On a page with `<!-- programs -->` what its Python programs print is filled in.
With --check, changes nothing and exits with 1 when a block is out of date.
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
import docs_doors
import docs_glossary
import docs_mcp
import docs_notebook
import docs_peers
import docs_python
import docs_quantities
import docs_reference
import docs_rl
import docs_runs
import docs_serve
import docs_tables
import docs_terminal
import docs_throughput
import docs_timeline
import docs_tools
import docs_v4
import docs_verdicts
import docs_versions
import settings_types
from docs_markdown import ROOT

TABLES = {
    **docs_tables.TABLES,
    **docs_peers.TABLES,
    **docs_quantities.TABLES,
    **docs_reference.TABLES,
    **docs_rl.TABLES,
    **docs_runs.TABLES,
    **docs_accuracy.TABLES,
    **docs_device.TABLES,
    **docs_doors.TABLES,
    **docs_glossary.TABLES,
    **docs_mcp.TABLES,
    **docs_serve.TABLES,
    **docs_throughput.TABLES,
    **docs_timeline.TABLES,
    **docs_tools.TABLES,
    **docs_v4.TABLES,
    **docs_verdicts.TABLES,
    **docs_versions.TABLES,
}
"""Makers of the tables by the names that blocks have."""
TYPES = (settings_types, settings_types.Stub, docs_quantities, docs_glossary, docs_terminal, *docs_tools.FILES)
"""Makers of whole files."""
CODE = "; echo $?"
"""Behind a command whose exit code is shown too."""
ERRORS = " 2>&1"
"""Of a command whose errors are shown."""
WIDTH = 100
"""Columns of every output that is shown."""
BLOCK = re.compile(r"(<!-- (run|table): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def output(command: str) -> str:
    """What a command prints, as a fenced block with the command first."""
    from megatron_memory_estimator.cli import main

    head, *rest = command.removesuffix(CODE).replace(ERRORS, "").split(" | ")
    words = shlex.split(head)
    assert words[0] == "megatron-memory", command
    os.environ["COLUMNS"] = str(WIDTH)
    text = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text if ERRORS in command else sys.stderr):
        try:
            main(words[1:])
        except SystemExit as stop:
            code = stop.code
    if command.endswith(CODE):
        text.write(f"{code}\n")
    elif code and ERRORS not in command:
        raise ValueError(f"{command} ends with {code}")
    lines = [line.rstrip() for line in text.getvalue().rstrip("\n").split("\n")]
    for cut in rest:
        lines = kept(lines, cut)
    return "```console\n$ " + command + "\n" + "\n".join(lines) + "\n```\n"


def kept(lines: list[str], cut: str) -> list[str]:
    """The lines that `head -N`, `sed -n A,Bp` or `grep -m1 -A N "PATTERN"` let through."""
    match shlex.split(cut):
        case ["head", count]:
            return lines[: int(count.lstrip("-"))]
        case ["sed", "-n", span]:
            first, last = map(int, span.removesuffix("p").split(","))
            return lines[first - 1 : last]
        case ["grep", "-m1", "-A", more, pattern]:
            at = next(number for number, line in enumerate(lines) if re.search(pattern, line))
            return lines[at : at + int(more) + 1]
    raise SystemExit(f"unknown cut: {cut}")


def filled(text: str) -> str:
    """The text with every block made anew."""

    def block(match: re.Match[str]) -> str:
        made = output(match.group(3)) if match.group(2) == "run" else TABLES[match.group(3)]()
        return match.group(1) + made + match.group(4)

    made = BLOCK.sub(block, text)
    return docs_python.filled(made) if docs_python.MARK in made else made


def pages() -> list[Path]:
    """README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stale() -> list[str]:
    """Pages whose blocks are out of date."""
    made = {page: filled(page.read_text()) for page in pages()} | {made.TARGET: made.text() for made in TYPES}
    return [str(page.relative_to(ROOT)) for page, text in made.items() if text != page.read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        wrong = stale()
        print("\n".join(wrong))
        sys.exit(bool(wrong))
    for made in TYPES:
        made.TARGET.write_text(made.text())
    docs_notebook.PATH.write_text(docs_notebook.written(), encoding="utf-8")
    for page in pages():
        page.write_text(filled(page.read_text()))
