"""What would make a run fit, or a run that fits faster."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The changes as a document, or their summary."""
    from ...planner.advise import advise
    from ...report.advice import advice_document
    from ...report.summary_plans import advice_summary

    report = advice_document if request.full else advice_summary
    return report(advise(request.job))
