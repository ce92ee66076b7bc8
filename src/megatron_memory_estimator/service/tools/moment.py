"""The tensors that are alive on a stage at any moment of its timeline, and at the capture of CUDA graphs."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ..request import Request


def answer(request: Request) -> Any:
    """The tensors at the highest of a moment."""
    from ...report.moment import moment_document

    index = request.get("moment")
    if index is None:
        raise ConfigError("moment is needed: the number of a moment, as `lanes` has them")
    return moment_document(request.estimate.stage(request.get("stage")), index)
