"""The page in the package is what its sources give."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ..helpers import ROOT

PAGE = ROOT / "src/megatron_memory_estimator/web/page"


def test_the_page_is_built_from_its_sources(tmp_path: Path) -> None:
    """With types checked, from the packages whose checksums are written down, when the tests of its own functions pass."""
    sources = tmp_path / "web"
    shutil.copytree(ROOT / "web", sources, ignore=shutil.ignore_patterns("node_modules"))
    built = tmp_path / "page"
    for command in (
        ["npm", "ci", "--ignore-scripts", "--silent"],
        ["npm", "test", "--silent"],
        ["npm", "run", "--silent", "build"],
    ):
        subprocess.run(command, cwd=sources, env={**os.environ, "PAGE": f"{built}/"}, check=True)
    assert {file.name: file.read_bytes() for file in built.iterdir()} == {
        file.name: file.read_bytes() for file in PAGE.iterdir()
    }
