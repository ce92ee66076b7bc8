"""The additions that docs/contributing/architecture.md shows run as written, each in a process of its own; its paths exist."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .helpers import ROOT

PAGE = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
PACKAGE = ROOT / "src" / "megatron_memory_estimator"
ADDITIONS = dict(
    re.findall(
        r"^### (A[^\n]+)\n.*?^```python\n(.*?)^```",
        PAGE.split("## What an addition takes")[1],
        re.DOTALL | re.MULTILINE,
    )
)


def test_the_page_shows_five_additions() -> None:
    assert list(ADDITIONS) == [
        "A kind of layer", "A family of the Hugging Face Hub", "A dialect: a framework's run files", "An optimizer", "A GPU",
    ]  # fmt: skip


@pytest.mark.parametrize("title", ADDITIONS)
def test_an_addition_runs_as_written(title: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDITIONS[title]], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_path_of_the_page_exists() -> None:
    paths = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]*(?:\.py|\.json)?)`", PAGE)
    assert len(paths) > 30
    missing = [
        path
        for path in paths
        if not any((place / path).exists() for place in (PACKAGE, ROOT, PACKAGE / "planner", PACKAGE / "inputs"))
    ]
    made = {"modules/low_rank_mlp.py", "inputs/hf/aurora.py"}
    assert set(missing) <= made


def test_every_file_of_the_table_of_rooms_stands_in_its_room() -> None:
    rows = re.findall(r"^\| `([a-z_]+)/` \|(.*)$", PAGE, re.MULTILINE)
    named = [(room, file) for room, row in rows for file in re.findall(r"`([a-z_]+\.(?:py|csv|json))`", row)]
    assert len(named) > 20
    assert [(room, file) for room, file in named if not list((PACKAGE / room).rglob(file))] == []


def test_every_room_of_the_tree_is_on_the_page() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}/`" not in PAGE} == set()
