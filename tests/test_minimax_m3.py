"""MiniMax-M3's language model: routers in fp32, a clamped activation that is never fused, a whole embedding (Megatron-Bridge)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.inputs.catalog import entries

NAME = "MiniMaxAI/MiniMax-M3"
S, H, E = 4096, 6144, 128
LAYERS = {"num_layers": 4, "moe_layer_freq": (0, 0, 0, 1), "expert_model_parallel_size": 32, "router_imbalance": 1}


def stage(**settings: Any) -> Any:
    return estimate(TrainingJob.from_hf(entries()[NAME]["config"]["text_config"], 32, **{**LAYERS, **settings})).stages[
        0
    ]


def saved(kind: str, **settings: Any) -> int:
    plan = stage(**settings).rank.plans[0]
    found: int = next(run.trace.saved_bytes for run in plan.runs if run.unit.name == kind)
    return found


def test_routers_have_weights_gradients_and_moments_in_fp32_without_a_copy() -> None:
    """The input in fp32 is kept beside that of the shared experts in 16 bits."""
    assert saved("gqa+moe") - saved("gqa+moe", moe_router_weight_in_fp32=False) == 4 * S * H
    (buffer,) = (one for one in stage().rank.buffers if one.kept_dtype)
    assert (buffer.param_dtype, buffer.grad_dtype, buffer.numel_unpadded) == ("fp32", "fp32", E * H)


def test_the_scattered_part_of_a_whole_embedding_pins_all_of_it() -> None:
    ways = {"tensor_model_parallel_size": 4, "sequence_parallel": True}
    apart = saved("embedding", **ways) - saved("embedding", scatter_embedding_sequence_parallel=True, **ways)
    assert apart == 2 * S * H * 3 // 4


def test_a_fused_activation_is_refused_beside_dense_layers() -> None:
    with pytest.raises(LayoutError, match="quick_gelu exists in routed experts alone"):
        stage(bias_activation_fusion=True)


def test_norms_over_whole_projections_are_refused() -> None:
    config = entries()[NAME]["config"]
    with pytest.raises(ConfigError, match="qk_norm_type"):
        TrainingJob.from_hf({**config, "text_config": {**config["text_config"], "qk_norm_type": "per_layer"}}, 8)
