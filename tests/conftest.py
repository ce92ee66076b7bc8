"""Which tests wait for `make test-all`: those of `slow.txt`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .helpers import SWEEP

SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text().splitlines())
"""The tests that take seconds, each beside quick ones of the same thing."""
LARGER = frozenset(
    (
        "choices", "dims", "moments", "planner", "random_jobs", "shell", "traces", "planted_errors", "user_types",
        "verdicts", "widths",
    )
)  # fmt: skip
"""Test files whose samples are larger in the sweep, or some of whose tests are only there."""

APART = ("web", "trace", "install")
"""Folders of tests that only targets of their own run: they need programs and packages that others do not."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave them out where they are not named."""
    named = any(Path(arg.partition("::")[0]).resolve().is_relative_to(collection_path) for arg in config.args)
    apart = collection_path.parent == Path(__file__).parent and collection_path.name in APART
    return True if apart and not named else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow ones to the sweep, and the others out of it, but for a test that is named.

    A slow one that is gone is an error where whole folders are collected.
    """
    if any("::" in arg for arg in config.args):
        return
    slow = [item for item in items if _name(item) in SLOW]
    if len(items) > 3000:
        gone = SLOW - {_name(item) for item in slow}
        assert not gone, gone
    larger = [item for item in items if item.path.stem.removeprefix("test_") in LARGER]
    chosen = {*slow, *larger} if SWEEP else {*items} - {*slow}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def pytest_runtest_setup() -> None:
    """Output is as wide as it needs, but where a test says how wide the terminal is."""
    os.environ.pop("COLUMNS", None)


def _name(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")
