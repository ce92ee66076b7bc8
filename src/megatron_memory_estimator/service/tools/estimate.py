"""What every GPU of every pipeline stage holds, and when it peaks."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The estimate, or its summary."""
    from ...report.summary import estimate_summary

    found = request.estimate
    return found.to_dict() if request.full else estimate_summary(found)
