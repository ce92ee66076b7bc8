"""Rows of several samples: who packs them, how long they are, and how many context-parallel ranks share one.

Source: Megatron-LM `dev` `megatron/core/model_parallel_config.py` (ModelParallelConfig), `megatron/core/datasets/data_schedule.py`
(DefaultDynamicCPScheduler); Megatron-Core 0.19 `megatron/core/pipeline_parallel/hybrid_cp_schedule.py` (BalancedCPScheduler).
"""

from __future__ import annotations

from ..dataclass import dataclass
from .settings import setting

BALANCED = "dp_balanced"
"""The scheduler that gives every data-parallel rank rows of about as much work."""
DYNAMIC = "default_dynamic_cp"
"""The scheduler that gives longer samples more ranks."""
PACKS = (0, 20)
"""The Megatron-Core whose dynamic context parallelism packs several samples into a microbatch."""


@dataclass(frozen=True)
class Packing:
    """Settings of packed rows; they are the training's."""

    sequence_packing_scheduler: str | None = setting(
        None,
        "who packs samples into rows without padding: a microbatch is one row (DeepSeek-V4: cp above 1 always packs)",
        choices=(BALANCED, DYNAMIC),
    )
    max_seqlen_per_dp_cp_rank: int | None = setting(
        None,
        "sequence_packing_scheduler: tokens of a row on a rank; default: seq_length / context_parallel_size, with "
        "dynamic_context_parallel seq_length / (dp * cp)",
    )
    dynamic_context_parallel: bool = setting(False, "as many context-parallel ranks for a sample as its length needs")
    min_dynamic_context_parallel_size: int = setting(1, "dynamic_context_parallel: ranks of the shortest sample")
