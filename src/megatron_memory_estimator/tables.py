"""Tables of the package: files of comma-separated values beside the modules that they belong to."""

from __future__ import annotations

import csv
import os.path


def rows_beside(module: str, name: str) -> list[dict[str, str]]:
    """The rows of a table that stands beside a module (its `__file__`), by the names of its columns."""
    with open(os.path.join(os.path.dirname(module), name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
