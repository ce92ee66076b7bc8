"""The values that a person would try of settings, each legal or with the sentence that refuses it."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..request import Request


def answer(request: Request) -> Any:
    """The choices of `names`, or of those that most runs change."""
    from ..choices import choices_of

    names = request.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"names={shown(names)} must be a list of names of settings")
    return {"schema": "megatron-memory-choices/1", "choices": choices_of(request, names)}
