"""The readers stand on the job, and nothing below them imports them; the job's constructors alone lead back up, late."""

from __future__ import annotations

import importlib.util
import sys

from .helpers import ROOT


def test_only_the_constructors_of_the_job_lead_back_up_to_the_readers() -> None:
    spec = importlib.util.spec_from_file_location("imports_in_words", ROOT / "scripts" / "imports.py")
    assert spec is not None and spec.loader is not None
    words = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    files = words.sources(ROOT / words.PACKAGE)
    found = words.arrows(files)
    upwards = [arrow for several in words.back_up(found, words.floors(files, found)).values() for arrow in several]
    readers = {(arrow.start, arrow.when) for arrow in upwards if "inputs/" in arrow.start + arrow.end}
    assert readers == {("job/training_job", "late")}
