"""How checkpoints are loaded and kept: which loader, in which format.

Sources: Megatron-LM `megatron/training/arguments.py` (checkpointing), `megatron/training/checkpointing.py`; Megatron-Bridge
`training/config.py` (CheckpointConfig), `training/optim.py`.
"""

from __future__ import annotations

from ..dataclass import dataclass
from .settings import setting

OFFLOADED_LOADS = (0, 20)
"""Megatron-Core version from which offloaded state loads without the precision-aware optimizer; 0.19.2 stops at a KeyError
(`hybrid_optimizer.py: _update_fp32_params_by_new_state` asks for fp32 copies of main parameters, which have none)."""
BRIDGE_KEEPS = (0, 19)
"""Megatron-Core version that Megatron-Bridge 0.6.0 came with, from which on it keeps loaded moments."""


@dataclass(frozen=True)
class Checkpointing:
    """Settings of checkpoints; they are the training's."""

    load_optim: bool = setting(
        True, "a checkpoint is loaded with optimizer state (--no-load-optim, --finetune: without)"
    )
    checkpoint_loader: str = setting(
        "megatron_lm",
        "who loads: Megatron-LM, which copies FusedAdam's state, or Megatron-Bridge from 0.6.0, which keeps plain fp32 moments as loaded",
        choices=("megatron_lm", "megatron_bridge"),
    )
    dist_ckpt_optim_fully_reshardable: bool = setting(
        False, "optimizer state is stored by parameter, and loads into other layouts"
    )
    ckpt_fully_parallel_load: bool = setting(
        False, "each data-parallel rank reads a part of a checkpoint and sends it to the others"
    )
