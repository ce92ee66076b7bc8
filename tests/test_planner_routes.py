"""Every route of the planner gives the numbers of `estimate`, and no feature takes a slower one than it needs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.planner.search import sampled
from megatron_memory_estimator.planner.space import routes
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.routes import FEATURES, Route, route

from .test_planner import same_figures

Settings = dict[str, Any]
HYBRIDEP: Settings = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
ON: dict[str, Settings] = {
    "use_megatron_fsdp": {"use_megatron_fsdp": True, "use_distributed_optimizer": True},
    "use_torch_fsdp2": {
        "use_torch_fsdp2": True, "use_distributed_optimizer": False, "gradient_accumulation_fusion": False,
        "overlap_param_gather": False,
    },
    "peft": {"peft": "lora", "peft_dim": 16},
    "cuda_graph_impl": {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn", "moe_router")},
    "overlap_moe_expert_parallel_comm": {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True},
    "create_attention_mask_in_dataloader with transformer_impl=local": {
        "create_attention_mask_in_dataloader": True, "transformer_impl": "local", "masked_softmax_fusion": False,
    },
    "moe_paged_stash": {"moe_paged_stash": True, "moe_expert_rank_capacity_factor": 1.5, **HYBRIDEP},
    "defer_embedding_wgrad_compute": {"defer_embedding_wgrad_compute": True},
    "cpu_offloading_num_layers": {"cpu_offloading_num_layers": 15, "vocab_size": 1024},
    "fine_grained_activation_offloading": {
        "fine_grained_activation_offloading": True, "offload_modules": ("core_attn", "moe_act"),
    },
    "optimizer of matrices": {"optimizer": "muon"},
}  # fmt: skip
"""Settings that turn each feature on."""
FASTER: dict[Route, tuple[Route, ...]] = {"arrays": ("tables",), "one at a time": ("tables", "arrays")}


def job(settings: Settings) -> TrainingJob:
    return TrainingJob.from_hf(
        "Qwen/Qwen3-30B-A3B", 32, gpu="H200", seq_length=4096, global_batch_size=128, num_layers=16, **settings
    )


def space(name: str) -> Space:
    local = name.endswith("transformer_impl=local")
    one_stage = name in ("use_megatron_fsdp", "use_torch_fsdp2", "cpu_offloading_num_layers")
    return Space(
        tensor_model_parallel_size=(1,) if local else (1, 2),
        context_parallel_size=(1,) if local else (1, 2),
        micro_batch_size=(1, 2),
        expert_model_parallel_size=(1,) if name == "use_torch_fsdp2" else (1, 8),
        pipeline_model_parallel_size=(1,) if one_stage else (2,) if name == "defer_embedding_wgrad_compute" else (1, 2),
        virtual_pipeline_model_parallel_size=(1, 2),
        recompute=("none",)
        if name in ("cpu_offloading_num_layers", "optimizer of matrices")
        else ("none", "layernorm"),
        split=("even",),
        use_distributed_optimizer=(name != "use_torch_fsdp2",),
    )


def test_every_feature_has_settings_and_a_reason() -> None:
    assert set(ON) == {feature.name for feature in FEATURES}
    assert all(feature.why for feature in FEATURES)
    assert route(job({}).training, job({}).model) == "tables"
    for feature in FEATURES:
        training = job(ON[feature.name]).training
        assert [one.name for one in FEATURES if one.on(training)] == [feature.name]
        assert route(training, job({}).model) == feature.route


def equal_to_estimate(name: str, count: int) -> None:
    """So many random layouts with a feature, each estimated again."""
    plans = sampled(job(ON[name]), space(name), count, seed=3)
    assert len(plans) >= 12
    for plan in plans:
        same_figures(plan)


@pytest.mark.parametrize("name", ON)
def test_features_beyond_the_tables_have_the_bytes_of_estimate(name: str) -> None:
    equal_to_estimate(name, 12)


@pytest.mark.parametrize(("name", "faster"), [(one.name, fast) for one in FEATURES for fast in FASTER[one.route]])
def test_a_faster_route_would_give_other_numbers(name: str, faster: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or none: where sizes decide what exists, arrays of them have no answer."""
    moved = [dataclasses.replace(one, route=faster) if one.name == name else one for one in FEATURES]
    monkeypatch.setattr(routes, "FEATURES", tuple(moved))
    with pytest.raises((AssertionError, TypeError, ValueError)):
        equal_to_estimate(name, 40)
