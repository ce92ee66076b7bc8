"""The tensors that are alive on a stage at any moment of its timeline, and at the capture of CUDA graphs."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..request import Request


def answer(request: Request) -> Any:
    """The tensors at the highest of a moment."""
    from ...report.moment import moment_document

    index = request.get("moment")
    if not isinstance(index, int) or isinstance(index, bool):
        raise ConfigError(f"moment={shown(index)} must be the number of a moment of the timeline")
    return moment_document(request.estimate.stage(request.stage), index)
