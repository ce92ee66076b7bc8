"""Features that change what a rank keeps: a search of layouts with each gives the figures of `estimate`, and misses none."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.planner.search import sampled, search
from megatron_memory_estimator.planner.space.axes import Space

from .test_planner import same_figures, worth_a_line

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


@pytest.mark.parametrize("name", ON)
def test_layouts_with_a_feature_have_the_bytes_of_estimate(name: str) -> None:
    plans = sampled(job(ON[name]), space(name), 12, seed=3)
    assert len(plans) >= 12
    for plan in plans:
        same_figures(plan)


@pytest.mark.parametrize("name", ON)
def test_a_search_with_a_feature_finds_the_best(name: str) -> None:
    """Every layout evaluated."""
    base, some = job(ON[name]), space(name)
    found = search(base, some, best=5)
    every = [one for one in sampled(base, some, found.legal, seed=0) if one.needed.high <= found.limit]
    expected = worth_a_line(every, "throughput", 5)
    assert [(one.step, one.needed) for one in found.plans] == [(one.step, one.needed) for one in expected]
