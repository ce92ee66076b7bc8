"""The programs of a page, run from its top to its end: behind `#> ` stands what the statement above prints."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import tempfile
from typing import Any

MARK = "<!-- programs -->"
"""On pages whose programs are run."""
PROGRAM = re.compile(r"(```python\n)(.*?)(```)", re.DOTALL)
PRINTED = "#> "


def filled(text: str) -> str:
    """The page with everything printed anew."""
    names: dict[str, Any] = {}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # figures are written there
        try:
            return PROGRAM.sub(lambda match: match[1] + _run(match[2], names) + match[3], text)
        finally:
            os.chdir(before)


def _run(program: str, names: dict[str, Any]) -> str:
    lines = [line for line in program.splitlines() if not line.startswith(PRINTED)]
    made, at = [], 0
    for statement in ast.parse("\n".join(lines)).body:
        assert statement.end_lineno is not None
        made += lines[at : statement.end_lineno]
        at = statement.end_lineno
        page = io.StringIO()
        with contextlib.redirect_stdout(page):
            exec(compile(ast.Module([statement], []), "program of a page", "exec"), names)
        made += [f"{PRINTED}{line}".rstrip() for line in page.getvalue().splitlines()]
    return "\n".join([*made, *lines[at:]]) + "\n"
