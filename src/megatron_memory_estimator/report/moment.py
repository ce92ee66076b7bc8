"""The document of a moment: every tensor that is alive."""

from __future__ import annotations

from typing import Any

from ..estimator import Stage
from ..timeline.moments import alive
from .document import TENSOR
from .quantities import document

SCHEMA = "megatron-memory-moment/1"


def moment_document(stage: Stage, index: int) -> dict[str, Any]:
    """Schema `megatron-memory-moment/1`: the tensors at the highest of a moment of a step, which add up to its `highest_bytes`.

    Raises ConfigError for a moment that does not exist.
    """
    found = alive(stage.rank, index)
    return {
        "schema": SCHEMA,
        "pp_rank": stage.pp_rank,
        "moment": index,
        "event": found.moment.label,
        "allocated_bytes": found.moment.highest_bytes,
        "tensors": [document(TENSOR, row) for row in found.rows],
    }
