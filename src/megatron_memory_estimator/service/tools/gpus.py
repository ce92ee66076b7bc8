"""The GPUs that runs are judged against, or those with a word in their names."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..request import Request


def answer(request: Request) -> Any:
    """The facts of GPUs."""
    from ...report.catalogue import gpu_facts

    word = request.get("gpu", "")
    if not isinstance(word, str):
        raise ConfigError(f"gpu={shown(word)} must be a word")
    return gpu_facts(word)
