"""The Python interface: types, names, what is said and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, UnsupportedError, advise, estimate, plan

from .helpers import moe_config, small_config

ARGS: dict[str, Any] = {
    "num-layers": 4, "hidden_size": 1024, "--num-attention-heads": 16, "seq_length": 1024,
    "max_position_embeddings": 1024, "micro_batch_size": 1, "vocab_size": 32000, "bf16": True, "swiglu": True,
    "disable_bias_linear": True, "use_rotary_position_embeddings": True, "lr": 1e-4, "train_iters": 10,
}  # fmt: skip


def test_a_job_is_frozen_and_documented() -> None:
    job = TrainingJob.from_config(small_config(), 1)
    with pytest.raises(AttributeError):
        job.model.num_layers = 3  # type: ignore[misc]
    assert TrainingJob.__doc__


@pytest.mark.parametrize("wrong", [None, 3, "x", [1]])
def test_wrong_containers_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="mapping"):
        TrainingJob.from_config(wrong, 1)
    with pytest.raises(ConfigError, match="mapping"):
        TrainingJob.from_megatron_args(wrong, 1)
    with pytest.raises(ConfigError, match="TrainingJob"):
        estimate(wrong)


@pytest.mark.parametrize("name", ["num_layer", "tensor_parallel", "recompute"])
def test_unknown_names_are_refused(name: str) -> None:
    unknown: dict[str, Any] = {name: 1}
    with pytest.raises(ConfigError, match=name):
        TrainingJob.from_config(small_config(), 1, **unknown)
    with pytest.raises(ConfigError, match=name):
        TrainingJob.from_hf("Qwen/Qwen3-8B", **unknown)
    with pytest.raises(ConfigError, match=name):
        TrainingJob.from_megatron_args({**ARGS, name: 1}, 1)


def test_numpy_scalars_and_paths_are_taken(tmp_path: Path) -> None:
    job = TrainingJob.from_config(small_config(), np.int64(2), tensor_model_parallel_size=np.int32(2))
    assert job.layout.world_size == 2
    assert type(job.layout.tp) is int
    with pytest.raises(ConfigError, match=r"config\.json"):
        TrainingJob.from_hf(tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, "2", 2.5, float("nan"), [2], None])
def test_degrees_must_be_whole_numbers(value: Any) -> None:
    if value is None:
        assert TrainingJob.from_config(small_config(), 1, tensor_model_parallel_size=None).layout.tp == 1  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match="tensor_model_parallel_size"):
        TrainingJob.from_config(small_config(), 2, tensor_model_parallel_size=value)


def test_a_setting_overrides_the_config_and_says_so() -> None:
    job = TrainingJob.from_config(small_config(), 1, num_layers=2)
    assert job.model.num_layers == 2
    assert "num_layers=2 overrides 4" in job.assumptions[0]


def test_megatron_arguments_derive_like_megatron() -> None:
    job = TrainingJob.from_megatron_args(ARGS)
    assert job.model.ffn == 2688  # int(1024 * 8 / 3 / 64) * 64
    assert job.model.share_embeddings_and_output_weights
    assert job.training.params_dtype == "bf16"
    assert job.training.grad_dtype == "fp32"
    assert job.training.gradient_accumulation_fusion
    assert job.training.create_attention_mask_in_dataloader
    assert job.num_microbatches == 1
    assert not job.training.use_distributed_optimizer
    assert not job.layout.sequence_parallel


@pytest.mark.parametrize(
    ("extra", "check"),
    [
        ({"no_gradient_accumulation_fusion": True}, lambda j: not j.training.gradient_accumulation_fusion),
        ({"grad_reduce_in_bf16": True}, lambda j: j.training.grad_dtype == "bf16"),
        ({"untie_embeddings_and_output_weights": True}, lambda j: not j.model.share_embeddings_and_output_weights),
        ({"num_experts": 8, "moe_ffn_hidden_size": 512}, lambda j: j.model.num_moe_experts == 8),
        ({"group_query_attention": True, "num_query_groups": 4}, lambda j: j.model.groups == 4),
        ({"num_query_groups": 4}, lambda j: j.model.groups == 16),
        ({"recompute_activations": True}, lambda j: j.training.recomputes("core_attn")),
        ({"attention_backend": "unfused"}, lambda j: j.kernel == "unfused"),
        (
            {"no_create_attention_mask_in_dataloader": True},
            lambda j: not j.training.create_attention_mask_in_dataloader,
        ),
        ({"sequence_parallel": True}, lambda j: not j.layout.sequence_parallel),
        ({"tensor_model_parallel_size": 2, "sequence_parallel": True}, lambda j: j.layout.world_size == 2),
        ({"tensor_model_parallel_size": 2, "num_experts": 8, "sequence_parallel": True}, lambda j: j.layout.etp == 2),
        ({"padded_vocab_size": 32256}, lambda j: j.model.padded_vocab(1) == 32256),
        ({"multi_latent_attention": True, "q_lora_rank": 64}, lambda j: j.model.kv_lora_rank == 32),
    ],
    ids=lambda x: str(x)[:50] if isinstance(x, dict) else "",
)
def test_megatron_arguments(extra: dict[str, Any], check: Any) -> None:
    assert check(TrainingJob.from_megatron_args({**ARGS, **extra}))


@pytest.mark.parametrize(
    "extra",
    [
        {"moe_input_jitter_eps": 0.1}, {"fp8_output_proj": True}, {"fp16_lm_cross_entropy": True},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(extra))):
        TrainingJob.from_megatron_args({**ARGS, **extra})


def test_two_spellings_with_two_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        TrainingJob.from_megatron_args({**ARGS, "num_layers": 8})


def test_attention_backend_names_the_kernel() -> None:
    assert TrainingJob.from_config(small_config(), 1, attention_backend="fused").kernel == "cudnn"
    assert TrainingJob.from_config(small_config(), 1, attention_backend="flash").kernel == "flash"


@pytest.mark.parametrize(
    ("gpu", "settings", "kernel"),
    [
        ("A100", {}, "flash"),
        ("H100", {}, "cudnn"),
        ("B200", {}, "cudnn"),
        ("B200", {"deterministic_mode": True}, "flash"),
        ("H100", {"deterministic_mode": True}, "cudnn"),
        ("H100", {"transformer_impl": "local"}, "local"),
        ("H100", {"params_dtype": "fp32"}, "unfused"),
    ],
)
def test_the_kernel_that_runs(gpu: str, settings: dict[str, Any], kernel: str) -> None:
    assert TrainingJob.from_config(small_config(), 1, gpu=gpu, **settings).kernel == kernel


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"]}, "mla_up_proj"),
        ({"recompute_num_layers": 2}, "recompute_num_layers"),
        ({"moe_shared_expert_overlap": True}, "moe_shared_expert_overlap"),
        ({"router_imbalance": 2.0}, "router_imbalance"),
        ({"optimizer": "lion", "use_distributed_optimizer": False}, "Lion's update"),
        ({"transformer_engine_version": "9.9"}, "newer"),
        ({"recompute_granularity": "selective"}, "core_attn costs memory"),
    ],
    ids=str,
)
def test_settings_without_an_effect_warn(settings: dict[str, Any], word: str) -> None:
    job = TrainingJob.from_config(small_config(), 1, **settings)
    assert any(word in warning for warning in job.warnings)


LAYOUTS: list[tuple[dict[str, Any], str]] = [
    ({"num_gpus": 6, "tensor_model_parallel_size": 4}, "num_gpus=6"),
    ({"tensor_model_parallel_size": 3}, "num_attention_heads=16"),
    ({"expert_model_parallel_size": 3}, "num_moe_experts=8"),
    ({"tensor_model_parallel_size": 2}, "sequence_parallel"),
    ({"pipeline_model_parallel_size": 3}, "num_layers=4"),
    ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 3}, "cannot be divided"),
    ({"virtual_pipeline_model_parallel_size": 2}, "pipeline_model_parallel_size above 1"),
    ({"pipeline_model_parallel_layout": "Ett|ttL"}, "pipeline_model_parallel_size above 1"),
    ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Ettt|ttL"}, "5 t"),
    ({"pipeline_model_parallel_size": 2, "num_layers_in_first_pipeline_stage": 5}, "more than num_layers"),
    ({"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 3}, "does not divide"),
    (
        {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": False},
        "overlap_p2p_comm",
    ),
    (
        {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "global_batch_size": 1},
        "the interleaved schedule needs num_microbatches=1",
    ),
    (
        {
            "pipeline_model_parallel_size": 2,
            "num_layers_in_first_pipeline_stage": 1,
            "account_for_loss_in_pipeline_split": True,
        },
        "exclude",
    ),
    ({"context_parallel_size": 2, "cp_comm_type": "a2a", "num_query_groups": 1}, "num_query_groups=1"),
    ({"context_parallel_size": 2, "cp_comm_type": "a2a+p2p"}, "hierarchical"),
    ({"context_parallel_size": 2, "attention_kernel": "unfused"}, "context parallelism"),
    ({"num_distributed_optimizer_instances": 2, "num_gpus": 2}, "use_distributed_optimizer"),
    ({"overlap_param_gather": True}, "overlap_param_gather needs use_distributed_optimizer"),
    ({"use_precision_aware_optimizer": True}, "use_distributed_optimizer"),
    ({"mtp_num_layers": 1, "position_embedding_type": "mrope"}, "rope or none"),
    ({"max_position_embeddings": 512}, "max_position_embeddings=512"),
    ({"moe_router_num_groups": 3, "moe_router_group_topk": 1}, "moe_router_num_groups=3"),
    ({"add_bias_linear": True, "moe_shared_expert_intermediate_size": 64}, "biases"),
    ({"moe_token_dispatcher_type": "flex"}, "flex"),
]


@pytest.mark.parametrize(("settings", "word"), LAYOUTS, ids=lambda x: str(x)[:60])
def test_illegal_layouts_say_the_rule(settings: dict[str, Any], word: str) -> None:
    settings = {"seq_length": 1024, **settings}
    num_gpus = settings.pop("num_gpus", None)
    job = TrainingJob.from_config(moe_config(), num_gpus, **settings)
    with pytest.raises((LayoutError, UnsupportedError)) as refused:
        estimate(job)
    assert word in str(refused.value)


@pytest.mark.parametrize("microbatches", [1_000, 1_000_003, 10**9])
def test_many_microbatches_cost_nothing(microbatches: int) -> None:
    config = small_config(num_layers=8)
    layout: dict[str, Any] = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
    few = estimate(TrainingJob.from_config(config, 2, **layout))
    many = estimate(TrainingJob.from_config(config, 2, **layout, global_batch_size=microbatches * 2))
    assert [s.peak_allocated_bytes for s in many.stages] == [s.peak_allocated_bytes for s in few.stages]


def test_deep_pipelines_are_fast() -> None:
    config = small_config(num_layers=1024)
    result = estimate(TrainingJob.from_config(config, 1024, pipeline_model_parallel_size=1024))
    assert result.stages[0].in_flight == 1024


def test_the_package_shows_what_is_in_it() -> None:
    import megatron_memory_estimator as package

    assert set(package.__all__) <= set(dir(package))
    assert "import_module" not in dir(package)


def test_results_are_one_line_and_say_what_they_are() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-235B-A22B", 128, tp=4, pp=8, ep=8, num_layers_in_first_pipeline_stage=11,
                              num_layers_in_last_pipeline_stage=11)  # fmt: skip
    found = estimate(job)
    planned = plan(TrainingJob.from_hf("Qwen/Qwen3-8B", 8), {"tp": "1,2"}, top=1)
    wanted = advise(job)
    for one in (job, found, found.stages[0], wanted, wanted.outcomes[0], planned.found, planned.found.plans[0]):
        text = repr(one)
        assert "\n" not in text
        assert len(text) < 200
    assert repr(job) == "<TrainingJob Qwen/Qwen3-235B-A22B on 128 H100-80GB: tp 4, pp 8, ep 8, dp 4>"
    gib = found.peak_stage.peak_allocated_bytes / 2**30
    assert f"stage {found.peak_stage.pp_rank} of 8 peaks at {gib:.2f} GiB allocated" in repr(found)


def test_short_names_of_degrees() -> None:
    short = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, tp=2, pp=2, vpp=2, cp=2)
    assert (short.layout.tp, short.layout.pp, short.layout.cp) == (2, 2, 2)
    assert short.layout.virtual_pipeline_model_parallel_size == 2
    with pytest.raises(ConfigError, match="tensor_model_parallel_size is given twice"):
        TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, tensor_model_parallel_size=4)
