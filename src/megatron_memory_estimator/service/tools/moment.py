"""The tensors that are alive on a stage at any moment of its timeline, and at the capture of CUDA graphs."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ..request import Request

SCHEMA = "megatron-memory-moment/1"


def answer(request: Request) -> Any:
    """The tensors at the highest of a moment; they add up to its `highest_bytes`."""
    from ...report.document import row_section
    from ...timeline.alive import alive

    index = request.get("moment")
    if index is None:
        raise ConfigError("moment is needed: the number of a moment, as `lanes` has them")
    stage = request.estimate.stage(request.get("stage"))
    found = alive(stage.rank, index)
    return {
        "schema": SCHEMA,
        "pp_rank": stage.pp_rank,
        "moment": index,
        "event": found.moment.label,
        "allocated_bytes": found.moment.highest_bytes,
        "tensors": [row_section(row) for row in found.rows],
    }
