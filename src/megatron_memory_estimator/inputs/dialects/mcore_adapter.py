"""What ROLL's adapter of Megatron-Core (MCA) has where a run says nothing, in ROLL and in LLaMA-Factory.

Sources: alibaba/ROLL `mcore_adapter/src/mcore_adapter/training_args.py`, `models/model_config.py`.
"""

from __future__ import annotations

from typing import Any

from .hydra import Tree


def recompute(tree: Tree, at: str = "") -> dict[str, Any]:
    """Recomputation, whose keys stand behind `at`: full is uniform with one layer where nothing else is said; moe_layer_recompute is
    selective."""
    granularity = tree.at(f"{at}recompute_granularity")
    if granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": tree.at(f"{at}recompute_method", "uniform"),
            "recompute_num_layers": tree.count(f"{at}recompute_num_layers", 1),
        }
    if tree.on(f"{at}moe_layer_recompute"):
        return {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "moe")}
    return {"recompute_granularity": granularity} if granularity else {}
