"""The outputs of docs/how-to/notebook.ipynb: its cells run in IPython, and what they show is stored beside them.

They are stored anew where what the cells say has changed; the bytes of a figure alone are those of a version of matplotlib.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import sys
import tempfile
import types
from typing import Any

from docs_markdown import ROOT

PATH = ROOT / "docs" / "how-to" / "notebook.ipynb"


def shown(sources: list[str]) -> list[dict[str, Any]]:
    """What each of the cells shows last, by kind; nothing where it shows nothing."""
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.interactiveshell import InteractiveShell

    found = []
    with tempfile.TemporaryDirectory() as folder, _alone(folder):
        shell = InteractiveShell()
        for source in sources:
            outputs: list[dict[str, Any]] = []
            shell.display_trap.hook = CapturingDisplayHook(shell, outputs)
            shell.history_manager.enabled = False
            shell.run_cell(source).raise_error()
            found.append(outputs[-1]["data"] if outputs else {})
        atexit.unregister(shell.atexit_operations)  # its folder is gone by then
    return found


@contextlib.contextmanager
def _alone(folder: str) -> Any:
    """IPython without the settings and the history of whoever runs it."""
    before, main = dict(os.environ), sys.modules["__main__"]
    os.environ["IPYTHONDIR"] = folder
    os.environ.pop("VIRTUAL_ENV", None)  # another one than that of the tests is warned about
    sys.modules["__main__"] = types.ModuleType("__main__")  # the shell puts its own there
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        os.environ.clear()
        os.environ.update(before)


def stored(data: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The output of a cell as a notebook file has it."""
    if not data:
        return []
    lines = {
        kind: base64.b64encode(value).decode() + "\n"
        if isinstance(value, bytes)
        else str(value).splitlines(keepends=True)
        for kind, value in sorted(data.items())
    }
    return [{"data": lines, "execution_count": number, "metadata": {}, "output_type": "execute_result"}]


def words(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What outputs say, without figures."""
    return [{kind: value for kind, value in one["data"].items() if kind != "image/png"} for one in outputs]


def written() -> str:
    """The notebook with the outputs of its cells."""
    book = json.loads(PATH.read_text(encoding="utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    outputs = [
        stored(data, number) for number, data in enumerate(shown(["".join(cell["source"]) for cell in cells]), 1)
    ]
    if [words(cell["outputs"]) for cell in cells] != [words(new) for new in outputs]:
        for number, (cell, new) in enumerate(zip(cells, outputs, strict=True), 1):
            cell["outputs"], cell["execution_count"] = new, number
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"
