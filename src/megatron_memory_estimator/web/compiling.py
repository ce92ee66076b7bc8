"""Python files compiled for the browser's Python, by that Python itself, which Node.js runs: so a page starts in half the time."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

SECONDS = 120
"""Time for all archives."""


def compiled_archives(python: Mapping[str, bytes], archives: Mapping[str, bytes]) -> dict[str, bytes] | None:
    """Zip archives by name with .pyc files in the place of .py files; None where Node.js is missing or cannot run Pyodide.

    `python` are the files of Pyodide. What is not compiled here the browser compiles at each start.
    """
    node = shutil.which("node")
    if node is None:
        return None
    script = Path(__file__).parent / "compile.mjs"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for file, content in {**python, **archives}.items():
            (folder / file).write_bytes(content)
        try:
            done = subprocess.run(
                [node, str(script), str(folder), *archives], capture_output=True, timeout=SECONDS, check=False
            )
        except (subprocess.TimeoutExpired, OSError):
            return None
        if done.returncode:
            return None
        return {file: (folder / file).read_bytes() for file in archives}
