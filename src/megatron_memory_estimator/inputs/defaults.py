"""Settings that hold for a model by name where nothing is given: the habits of published recipes."""

from __future__ import annotations

from typing import Any

DEFAULT_SEQ_LENGTH = 4096

HABITS: dict[str, Any] = {
    "expert_tensor_parallel_size": 1,
    "use_distributed_optimizer": True,
    "gradient_accumulation_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_aux_loss_coeff": 1e-3,
}
"""With a model name: settings that published recipes share and Megatron-LM leaves off by default."""


def habits_for(given: dict[str, Any]) -> dict[str, Any]:
    """The habits that go with what was given: a choice that excludes one is not contradicted by it."""
    habits = dict(HABITS)
    if given.get("optimizer") == "sgd":
        habits["use_distributed_optimizer"] = False
    if given.get("transformer_impl") == "local":
        habits["moe_grouped_gemm"] = habits["moe_permute_fusion"] = False
    return habits
