"""The tensors that are alive on a stage at its peak or between two steps."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The tensors, or the largest of them."""
    from ...report.document import explanation
    from ...report.summary import explain_summary

    report = explanation if request.full else explain_summary
    return report(request.estimate, request.get("stage"), request.get("at", "peak"))
