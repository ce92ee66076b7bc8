"""One training step of all stages beside one another."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The moments of every stage in columns."""
    from ...report.lanes import lanes_document

    return lanes_document(request.estimate)
