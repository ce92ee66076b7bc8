"""The drawing of the imports: no arrow leads back up, no files import each other in a circle, functions are short."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import defaultdict
from typing import Any

from megatron_memory_estimator.doors import DOORS, door

from .helpers import ROOT

LONGEST = 60
"""Lines of a function that is longer than a screen only where it is one forward, read from top to bottom."""
LONG = {
    "self_attention", "mla_attention", "mamba_mixer", "gated_delta_net", "sparse_attention", "_indexer", "job_from_parts",
}  # fmt: skip


def drawing() -> Any:
    spec = importlib.util.spec_from_file_location("imports_in_words", ROOT / "scripts" / "imports.py")
    assert spec is not None and spec.loader is not None
    words = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    return words


def test_no_import_leads_back_up_and_there_is_no_circle_of_files() -> None:
    words = drawing()
    files = words.sources(ROOT / words.PACKAGE)
    found = words.arrows(files)
    upwards = [arrow for several in words.back_up(found, words.floors(files, found)).values() for arrow in several]
    assert upwards == []
    ends = defaultdict(set)
    for arrow in found:
        ends[arrow.start].add(arrow.end)
    circles = [circle for circle in words.circles(files, ends) if len(circle) > 1]
    assert circles == []


def test_every_door_leads_to_a_function() -> None:
    assert all(callable(door(name)) for name in DOORS)


def test_functions_are_short() -> None:
    package = ROOT / drawing().PACKAGE
    functions = [
        node
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = {node.name for node in functions if (node.end_lineno or 0) - node.lineno >= LONGEST}
    assert len(functions) > 3000
    assert long == LONG
