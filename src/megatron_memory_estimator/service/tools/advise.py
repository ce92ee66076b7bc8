"""What would make a run fit, or a run that fits faster."""

from __future__ import annotations

from typing import Any

from ..following import following
from ..request import Request


def answer(request: Request) -> Any:
    """The changes as a document, or their summary."""
    from ...planner.advise import advise
    from ...report.advice import advice_document
    from ...report.summary_plans import advice_summary

    found = advise(request.job)
    if not request.full:
        return advice_summary(found)
    document = advice_document(found)
    rows = [{**one, **following(request, _settings(one))} for one in document["advice"]]
    return {**document, "advice": rows}


def _settings(one: dict[str, Any]) -> dict[str, Any]:
    """The settings of several changes."""
    return {name: value for change in one["changes"] for name, value in change["settings"].items()}
