"""Every feature alone, every legal pair of features, and features turned off again, through estimate and explain."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from megatron_memory_estimator import Estimate, LayoutError, TrainingJob, estimate

from .helpers import moe_config

Settings = dict[str, Any]
PARALLEL: Settings = {
    "tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1,
    "use_distributed_optimizer": True, "global_batch_size": 32,
}  # fmt: skip
PIPELINE: Settings = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
FEATURES: dict[str, tuple[Settings, Settings]] = {
    # name: (on, off again)
    "fp8 delayed": ({"fp8": "hybrid"}, {"fp8": None}),
    "fp8 tensorwise": ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, {"fp8": None, "fp8_recipe": "delayed"}),
    "fp8 blockwise": ({"fp8": "e4m3", "fp8_recipe": "blockwise"}, {"fp8": None, "fp8_recipe": "delayed"}),
    "mxfp8": ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, {"fp8": None, "fp8_recipe": "delayed"}),
    "nvfp4": ({"fp4": "e2m1"}, {"fp4": None}),
    "low-precision weights": (
        {"fp8": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True},
        {"fp8": None, "fp8_recipe": "delayed", "fp8_param_gather": False},
    ),
    "megatron fsdp": ({"use_megatron_fsdp": True}, {"use_megatron_fsdp": False}),
    "fsdp double buffer": (
        {"use_megatron_fsdp": True, "fsdp_double_buffer": True}, {"use_megatron_fsdp": False, "fsdp_double_buffer": False},
    ),
    "optimizer offload": (
        {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5},
        {"use_precision_aware_optimizer": False, "optimizer_cpu_offload": False, "optimizer_offload_fraction": 1.0},
    ),
    "fused experts": (
        {"use_transformer_engine_op_fuser": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
        {"use_transformer_engine_op_fuser": False, "fp8": None, "fp8_recipe": "delayed"},
    ),
    "paged stash": (
        {"moe_paged_stash": True, "moe_expert_rank_capacity_factor": 1.5, "moe_token_dispatcher_type": "flex",
         "moe_flex_dispatcher_backend": "hybridep"},
        {"moe_paged_stash": False, "moe_expert_rank_capacity_factor": None, "moe_token_dispatcher_type": "alltoall"},
    ),
    "layer offload": ({"cpu_offloading_num_layers": 2}, {"cpu_offloading_num_layers": 0}),
    "fine-grained offload": (
        {"fine_grained_activation_offloading": True, "offload_modules": ("core_attn", "attn_proj", "expert_fc1", "moe_act")},
        {"fine_grained_activation_offloading": False, "offload_modules": ()},
    ),
    "graphs of attention": (
        {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn", "moe_router")},
        {"cuda_graph_impl": "none", "cuda_graph_modules": ()},
    ),
    "graph of the iteration": ({"cuda_graph_impl": "full_iteration"}, {"cuda_graph_impl": "none"}),
    "lora": ({"peft": "lora", "peft_dim": 16}, {"peft": "none"}),
    "dora": (
        {"peft": "dora", "peft_target_modules": ("linear_qkv", "linear_proj")}, {"peft": "none", "peft_target_modules": ()},
    ),
    "canonical lora": ({"peft": "canonical_lora"}, {"peft": "none"}),
    "imbalance": ({"router_imbalance": 1.2}, {"router_imbalance": None}),
    "precision-aware": ({"use_precision_aware_optimizer": True}, {"use_precision_aware_optimizer": False}),
    "full recompute": (
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None},
    ),
    "selective recompute": (
        {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")},
        {"recompute_granularity": None, "recompute_modules": ()},
    ),
    "a2a overlap": ({"overlap_moe_expert_parallel_comm": True}, {"overlap_moe_expert_parallel_comm": False}),
    "delayed wgrad": (
        {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True},
        {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False},
    ),
    "tp overlap": ({"tp_comm_overlap": True}, {"tp_comm_overlap": False}),
    "pipeline": (PIPELINE, {"pipeline_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None}),
    "muon": ({"optimizer": "muon", "use_distributed_optimizer": False}, {"optimizer": "adam", "use_distributed_optimizer": True}),
    "te cross entropy": (
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
        {"cross_entropy_loss_fusion": False, "cross_entropy_fusion_impl": "native"},
    ),
}  # fmt: skip
CONFIG = moe_config(moe_shared_expert_intermediate_size=512)


def run(*parts: Settings) -> Estimate:
    """The estimate of the model with these settings on top of the common ones. Raises LayoutError where they exclude each other."""
    settings: Settings = {"seq_length": 1024, "gpu": "B200", **PARALLEL}
    for part in parts:
        settings.update(part)
    return estimate(TrainingJob.from_config(CONFIG, 8, **settings))


def whole(found: Estimate) -> list[tuple[int, int, int]]:
    """Peak, first step and steady bytes of every stage; every breakdown sums to its figure."""
    for stage in found.stages:
        for at in ("peak", "steady"):
            _, total, rows = stage.at(at)
            assert sum(row.nbytes for row in rows) == total, (stage.peak.candidate.label, at)
            assert all(row.nbytes >= 0 for row in rows)
        assert stage.reserved.low >= stage.peak_allocated_bytes > 0
        assert stage.device.high >= stage.device.low > stage.reserved.low
    return [(s.peak_allocated_bytes, s.first_step_peak_allocated_bytes, s.steady_allocated_bytes) for s in found.stages]


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_alone_and_off_again(name: str) -> None:
    on, off = FEATURES[name]
    whole(run(on))
    assert whole(run(on, off)) == whole(run())


REFUSED: dict[str, tuple[str, ...]] = {
    "nvfp4": ("fp8 delayed", "fp8 tensorwise", "fp8 blockwise", "mxfp8", "low-precision weights", "fused experts"),
    "selective recompute": ("fp8 delayed", "fused experts", "layer offload"),
    "muon": (
        "low-precision weights", "megatron fsdp", "fsdp double buffer", "optimizer offload", "precision-aware",
    ),
    "optimizer offload": ("low-precision weights", "megatron fsdp", "fsdp double buffer"),
    "lora": ("megatron fsdp", "fsdp double buffer", "fused experts"),
    "dora": ("megatron fsdp", "fsdp double buffer", "fused experts"),
    "canonical lora": ("megatron fsdp", "fsdp double buffer", "fused experts"),
    "fine-grained offload": ("fused experts", "layer offload", "full recompute", "paged stash"),
    "layer offload": ("paged stash", "full recompute", "pipeline", "graphs of attention"),
    "full recompute": ("graphs of attention", "a2a overlap", "delayed wgrad"),
    "fsdp double buffer": ("a2a overlap", "delayed wgrad"),
}  # fmt: skip
"""Pairs that Megatron-Core or this package refuses."""


def test_every_pair_runs_or_is_refused_by_a_rule() -> None:
    legal, refused = 0, set()
    for first, second in combinations(FEATURES, 2):
        a, b = FEATURES[first][0], FEATURES[second][0]
        if any(name in b and b[name] != value for name, value in a.items()):
            continue  # two values of one setting
        try:
            whole(run(a, b))
        except LayoutError:
            refused.add(frozenset((first, second)))
        else:
            legal += 1
    assert refused == {frozenset((first, second)) for first, others in REFUSED.items() for second in others}
    assert legal == 323
