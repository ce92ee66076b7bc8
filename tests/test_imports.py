"""The drawing of the imports: what leads back up, what is a circle, and that no file is long."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from typing import Any

from .helpers import ROOT

LATE = {
    ("estimator", "report/document"), ("estimator", "report/views"), ("job/training_job", "inputs/bridge_config"),
    ("job/training_job", "inputs/hf/__init__"), ("job/training_job", "inputs/megatron/job"), ("job/training_job", "inputs/resolve"),
    ("job/training_job", "inputs/runs/files"),
    ("planner/advise", "report/advice_views"), ("planner/found", "report/plan_views"),
}  # fmt: skip
"""Imports that lead back up, all of them inside functions: the job's constructors, and how estimates, plans and advice show themselves."""
LONGEST = 450


def drawing() -> Any:
    spec = importlib.util.spec_from_file_location("imports_in_words", ROOT / "scripts" / "imports.py")
    assert spec is not None and spec.loader is not None
    words = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    return words


def test_nine_imports_lead_back_up_and_the_circles_are_known() -> None:
    words = drawing()
    files = words.sources(ROOT / words.PACKAGE)
    found = words.arrows(files)
    upwards = [arrow for several in words.back_up(found, words.floors(files, found)).values() for arrow in several]
    assert {(arrow.start, arrow.end) for arrow in upwards} == LATE
    assert {arrow.when for arrow in upwards} == {"late"}
    ends = defaultdict(set)
    for arrow in found:
        ends[arrow.start].add(arrow.end)
    circles = [circle for circle in words.circles(files, ends) if len(circle) > 1]
    assert sorted(map(len, circles)) == [3, 3, 3, 7, 15]


def test_no_file_is_long() -> None:
    package = ROOT / drawing().PACKAGE
    written = [
        file for file in package.rglob("*.py") if file.name != "settings_types.py"
    ]  # that one is made by a script
    lines = {str(file.relative_to(package)): len(file.read_text().splitlines()) for file in written}
    assert len(lines) == len(written) > 200
    assert max(lines.values()) <= LONGEST, max(lines, key=lines.__getitem__)
