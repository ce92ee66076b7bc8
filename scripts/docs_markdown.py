"""Markdown of generated tables, and the facts that they are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "tests" / "facts"


def lines_of(name: str) -> list[dict[str, Any]]:
    """The records of a file of facts with one to a line."""
    return [json.loads(line) for line in (FACTS / name).read_text().splitlines()]


def records_of(name: str) -> list[dict[str, Any]]:
    """The records of a file of facts."""
    found: list[dict[str, Any]] = json.loads((FACTS / name).read_text())["records"]
    return found


def markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
