"""Requests of the page where the library runs inside of it, in a Web Worker: JSON texts in and out."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

from .answers import TOOLS, answered

LONGEST = 24 * 3600
"""Seconds of a request: the page ends its worker where nobody waits any more."""


def asked(text: str, tell: Callable[[str], object]) -> str:
    """`{"answer": document}` or `{"error": sentence}` of a request with `tool` and `arguments`, as JSON.

    `tell` is given how far it is. Files are not opened, and names are looked up in the catalogue alone.
    """
    request = json.loads(text)
    if request.get("tool") not in TOOLS:
        return json.dumps({"error": f"the tools are {', '.join(TOOLS)}"})
    whole = {
        "tool": request["tool"],
        "arguments": request["arguments"],
        "folder": None,
        "seconds": LONGEST,
        "hub": False,
    }

    def progress(how: dict[str, Any]) -> None:
        tell(json.dumps(how))

    try:
        return json.dumps(answered(whole, progress))
    except Exception as error:  # the page shows a sentence, and goes on
        return json.dumps({"error": _unexpected(error)})


def _unexpected(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rpartition('megatron_memory_estimator/')[2]}, line {last.lineno}"
    return f"an error of the estimator itself, {type(error).__name__} in {where}; please report it with the address of this page"
