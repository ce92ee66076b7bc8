"""Every setting that a request can have."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The catalogue of settings; it is the same for every request."""
    from ...report.settings import settings_document

    return settings_document()
