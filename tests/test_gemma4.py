"""Gemma 4 with experts: two attention shapes, values with a norm, a dense MLP beside the experts (Megatron-Bridge's classes)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.modules.kinds import rotary_width
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.tape.ops import flattened

from .helpers import context

NAME = "google/gemma-4-26B-A4B"
S, H, HEADS = 4096, 2816, 16


def made(**settings: Any) -> TrainingJob:
    return TrainingJob.from_hf(NAME, 16, expert_model_parallel_size=16, router_imbalance=1, **settings)


def layers(**settings: Any) -> dict[str, int]:
    plan = estimate(made(**settings)).stages[0].rank.plans[0]
    return {run.unit.name: run.trace.saved_bytes for run in plan.runs if run.first_layer >= 0}


def test_layers_keep_what_the_record_says() -> None:
    """Of 4,096 tokens: global layers have heads of 512 and 2 groups, local ones of 256 and 8."""
    found = layers()
    local, whole = found["gqa+gemma4_moe"], found["gqa+gemma4_moe@full"]
    assert (local, whole) == (1_677_926_402, 1_744_838_658)
    # query, output; key, value, its fp32 copy
    tokens = S * (HEADS * (512 - 256) * 2 * 3 + (2 * 512 - 8 * 256) * (2 + 2 + 2 + 4))
    rest = S * 4 * (2 - 8) * 2 + 4 * 2 * S * (512 - 256)  # statistics of key and value, cos and sin
    assert whole - local == tokens + rest


def test_recomputed_experts_keep_the_inputs_of_three() -> None:
    """Both normed inputs, with what their norms keep, and what is behind the experts."""
    before, after = layers(), layers(recompute_granularity="selective", recompute_modules=("moe",))
    assert before["gqa+gemma4_moe"] - after["gqa+gemma4_moe"] == 1_677_926_430 - 747_537_434 - 4


def test_a_chunk_has_a_rotary_table_for_each_shape_of_heads() -> None:
    assert rotary_width(made().model) == 256 + 512


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": ("layernorm",)}, "recompute_modules layernorm"),
        ({"moe_shared_expert_overlap": True}, "gemma4_moe excludes moe_shared_expert_overlap"),
        ({"overlap_moe_expert_parallel_comm": True}, "gemma4_moe excludes overlap_moe_expert_parallel_comm"),
        ({"cuda_graph_impl": "transformer_engine"}, "gemma4_moe excludes cuda_graph_impl"),
        ({"transformer_impl": "local"}, "gemma4_moe needs transformer_impl=transformer_engine"),
        ({"context_parallel_size": 2, "cp_comm_type": ("p2p",)}, "p2p does not exist for sliding windows"),
    ],
    ids=str,
)
def test_what_its_forward_goes_around_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        estimate(made(**settings))


def test_it_excludes_other_experts() -> None:
    with pytest.raises(ConfigError, match="gemma4_moe excludes moe_latent_size"):
        made(moe_latent_size=512)


@pytest.mark.parametrize("kinds", [[], ["sliding_attention", "full_attention"] * 14 + ["sliding_attention"] * 2])
def test_layers_that_megatron_bridge_would_place_elsewhere_are_refused(kinds: list[str]) -> None:
    config = entries()[NAME]["config"]
    with pytest.raises(UnsupportedError, match="layer_types of gemma4"):
        TrainingJob.from_hf({**config, "text_config": {**config["text_config"], "layer_types": kinds}}, 16)


def test_norms_that_pytorch_runs_are_so_many_functions() -> None:
    """modeling_gemma4.py: two casts, square, mean, sum, power, product and a cast back; of a weight its cast and the product. The values'
    own: a cast, square, mean, sum, root, product and a cast back."""
    job = made()
    calls = {op.name: op.calls for op in flattened(layer_unit(context(job), job.model.kinds[0]).unit.items)}
    assert calls["pre_mlp_layernorm"] == 8 + 2
    assert calls["mlp.router.norm"] == 8
    assert calls["self_attention.v_norm"] == 7
