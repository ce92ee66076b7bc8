"""Settings that hold where nothing is given: the habits of published recipes, and Megatron's class defaults."""

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

CLASS_DEFAULTS: dict[str, Any] = {
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "attention_softmax_in_fp32": True,
    "gradient_accumulation_fusion": False,
}
"""Defaults of the TransformerConfig class, where they differ from Megatron-LM's command line."""


def habits_for(given: dict[str, Any]) -> dict[str, Any]:
    """The habits that go with what was given: a choice that excludes one is not contradicted by it."""
    habits = dict(HABITS)
    if given.get("optimizer") == "sgd":
        habits["use_distributed_optimizer"] = False
    if given.get("transformer_impl") == "local":
        habits["moe_grouped_gemm"] = habits["moe_permute_fusion"] = False
    return habits
