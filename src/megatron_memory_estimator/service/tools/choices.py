"""The values that a person would try of settings, each legal or with the sentence that refuses it."""

from __future__ import annotations

from typing import Any

from ..request import Request


def answer(request: Request) -> Any:
    """The choices of `names`, or of those that most runs change."""
    from ..choices import choices_of

    return {"schema": "megatron-memory-choices/1", "choices": choices_of(request, request.get("names", []))}
