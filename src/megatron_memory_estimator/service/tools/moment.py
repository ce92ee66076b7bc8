"""The tensors that are alive on a stage at any moment of its timeline, and at the capture of CUDA graphs."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...wording import shown
from ..request import Request

SCHEMA = "megatron-memory-moment/1"


def answer(request: Request) -> Any:
    """The tensors at the highest of a moment; they add up to its `highest_bytes`."""
    from ...report.document import row_section
    from ...timeline.alive import alive

    index = request.get("moment")
    if not isinstance(index, int) or isinstance(index, bool):
        raise ConfigError(f"moment={shown(index)} must be the number of a moment of the timeline")
    stage = request.estimate.stage(request.stage)
    found = alive(stage.rank, index)
    return {
        "schema": SCHEMA,
        "pp_rank": stage.pp_rank,
        "moment": index,
        "event": found.moment.label,
        "allocated_bytes": found.moment.highest_bytes,
        "tensors": [row_section(row) for row in found.rows],
    }
