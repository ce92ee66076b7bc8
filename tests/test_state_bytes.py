"""Bytes per parameter of each optimizer configuration, hand-worked from Megatron-LM and TransformerEngine sources."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.job.hardware import GIB
from megatron_memory_estimator.states.padding import Piece, bucket_multiple, laid_out

from .helpers import small_job

DIST = {"use_distributed_optimizer": True}
AWARE = {**DIST, "use_precision_aware_optimizer": True}
LOW = {**AWARE, "main_grads_dtype": "bf16"}
BF16_MOMENTS = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
# settings, steady bytes per parameter that are not sharded, bytes that are sharded over 4 ranks, extra during the step
TABLE: list[tuple[dict[str, Any], int, int, int]] = [
    ({}, 18, 0, 0),
    ({"grad_reduce_in_bf16": True}, 16, 0, 4),
    (DIST, 6, 12, 0),
    ({**DIST, "grad_reduce_in_bf16": True}, 4, 12, 4),
    (AWARE, 6, 10, 0),
    ({**LOW, **BF16_MOMENTS}, 4, 6, 0),
    ({**LOW, "exp_avg_dtype": "fp8", "exp_avg_sq_dtype": "fp8"}, 4, 4, 8),
    ({**LOW, "exp_avg_dtype": "fp16", "exp_avg_sq_dtype": "fp16"}, 4, 6, 8),
    ({**AWARE, "exp_avg_dtype": "bf16"}, 6, 8, 4),
    ({**LOW, "exp_avg_sq_dtype": "bf16"}, 4, 8, 4),
    ({**AWARE, "main_params_dtype": "fp16"}, 6, 10, 4),
    ({**AWARE, "store_param_remainders": False}, 6, 12, 0),
    ({**AWARE, "transformer_engine_version": "2.0"}, 6, 12, 0),
    ({**LOW, **BF16_MOMENTS, "transformer_engine_version": "2.12"}, 4, 6, 8),
    ({**LOW, **BF16_MOMENTS, "transformer_engine_version": "2.13"}, 4, 6, 0),
    ({**AWARE, "transformer_engine_version": "2.1"}, 6, 10, 0),
    ({**LOW, **BF16_MOMENTS, "fp8_recipe": "tensorwise"}, 4, 8, 4),
    ({**AWARE, "fp8_recipe": "mxfp8"}, 6, 12, 0),
    ({**AWARE, "fp8_recipe": "blockwise", "main_params_dtype": "fp16"}, 6, 10, 4),
    ({**DIST, "fp8_recipe": "tensorwise"}, 6, 12, 0),
    ({"fp16": True}, 16, 0, 4),
    ({"fp16": True, **DIST}, 4, 12, 4),
    ({"fp16": True, "accumulate_allreduce_grads_in_fp32": True}, 18, 0, 0),
    ({"params_dtype": "fp32"}, 16, 0, 0),
    ({"params_dtype": "fp32", **DIST}, 8, 8, 0),
    ({"optimizer": "sgd"}, 14, 0, 0),
    ({"optimizer": "sgd", "sgd_momentum": 0.0}, 10, 0, 0),
]


@pytest.mark.parametrize(("settings", "whole", "sharded", "step"), TABLE, ids=lambda x: str(x))
def test_bytes_per_parameter(settings: dict[str, Any], whole: int, sharded: int, step: int) -> None:
    ranks = 4
    rank = estimate(small_job(ranks, **settings)).stages[0].rank
    n = sum(b.numel_unpadded for b in rank.buffers)
    assert all(b.numel == n for b in rank.buffers), "sizes are multiples of every padding"
    steady = sum(s.nbytes for s in rank.states if s.since in ("setup", "first step"))
    extra = sum(s.nbytes for s in rank.states if s.since in ("step", "optimizer"))
    shards = ranks if settings.get("use_distributed_optimizer") else 1
    assert steady == n * whole + n * sharded // ranks
    assert extra == n * step // shards


@pytest.mark.parametrize(("settings", "each"), [(DIST, 8), (AWARE, 10), ({**AWARE, "fp8_recipe": "tensorwise"}, 8)])
def test_what_appears_in_the_first_step(settings: dict[str, Any], each: int) -> None:
    """Two fp32 moments; TransformerEngine's FusedAdam makes its masters then too, Megatron's are there from the start."""
    stage = estimate(small_job(4, **settings)).stages[0]
    n = stage.rank.buffers[0].numel
    assert stage.peak_allocated_bytes - stage.first_step_peak_allocated_bytes == n * each // 4


def test_fp32_gradient_copy_rests_between_steps_but_not_in_the_peak() -> None:
    stage = estimate(small_job(1, fp16=True, seq_length=4096, micro_batch_size=4)).stages[0]
    n = stage.rank.buffers[0].numel_unpadded
    names = [row.name for row in stage.rows]
    assert not any("fp32 copy" in name for name in names)
    assert [r.nbytes for r in stage.steady_rows if "fp32 copy" in r.name] == [4 * n]


def test_several_optimizer_instances_shard_less() -> None:
    one = estimate(small_job(8, **DIST)).stages[0].rank
    two = estimate(small_job(8, **DIST, num_distributed_optimizer_instances=2)).stages[0].rank

    def moment(rank: Any) -> int:
        return sum(s.nbytes for s in rank.states if s.name.startswith("exp_avg "))

    assert moment(two) == 2 * moment(one)


def padded(*sizes: int, bucket_size: int | None = None, shared: int | None = None) -> int:
    """Elements of a buffer of such parameters over 24 ranks: buckets end at multiples of 384."""
    pieces = [Piece(size, 1, index == shared) for index, size in enumerate(sizes)]
    return laid_out(pieces, bucket_multiple(24, busbw=False), bucket_size).numel


def test_padding_vectors() -> None:
    assert padded(1000, 70, 12288) == 13440
    assert padded(1000, 70, 12288, bucket_size=12000) == 13440
    assert padded(1000, 70, 12288, shared=0) == 13824


LLAMA3_8B: dict[str, Any] = {
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "ffn_hidden_size": 14336,
    "gated_linear_unit": True, "activation_func": "silu", "normalization": "RMSNorm", "add_bias_linear": False,
    "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize(
    ("num_gpus", "overlap", "numel"),
    [(16, False, 2_007_629_824), (24, False, 2_007_629_952), (192, True, 2_007_637_632)],
)
def test_padding_of_llama_3_8b(num_gpus: int, overlap: bool, numel: int) -> None:
    """tp 2, pp 2, first stage; 4, 6 and 48 data-parallel ranks."""
    from megatron_memory_estimator import TrainingJob

    job = TrainingJob.from_config(
        LLAMA3_8B, num_gpus, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, sequence_parallel=True,
        use_distributed_optimizer=True, overlap_grad_reduce=overlap,
    )  # fmt: skip
    rank = estimate(job).stages[0].rank
    assert rank.buffers[0].numel_unpadded == 2_007_629_824
    assert rank.buffers[0].numel == numel


# layout of the run, then (stage, dense, expert, GiB of state with the distributed optimizer)
WORKED: list[tuple[str, int, dict[str, Any], list[tuple[int, int, int, float]]]] = [
    ("meta-llama/Meta-Llama-3-8B", 16, {"tp": 2, "pp": 2}, [(0, 2_007_629_824, 0, 16.828), (1, 2_007_633_920, 0, 16.828)]),
    (
        "meta-llama/Meta-Llama-3-70B", 64, {"tp": 4, "pp": 4, "virtual_pipeline_model_parallel_size": 5},
        [(0, 4_541_710_336, 0, 38.068), (1, 4_278_517_760, 0, 35.862), (3, 4_541_718_528, 0, 38.068)],
    ),
    (
        "mistralai/Mixtral-8x7B-v0.1", 32, {"tp": 2, "pp": 4, "ep": 4},
        [(0, 233_635_840, 2_818_572_288, 33.458), (1, 168_099_840, 2_818_572_288, 32.909), (3, 233_639_936, 2_818_572_288, 33.458)],
    ),
    (
        "Qwen/Qwen3-235B-A22B", 256,
        {"tp": 4, "pp": 8, "ep": 8, "num_layers_in_first_pipeline_stage": 11, "num_layers_in_last_pipeline_stage": 11},
        [(0, 357_657_344, 3_321_888_768, 30.342), (3, 220_302_336, 3_623_878_656, 31.914), (7, 357_661_440, 3_321_888_768, 30.342)],
    ),
    (
        "Qwen/Qwen3-235B-A22B", 256,
        {"tp": 4, "pp": 8, "ep": 8, "expert_tensor_parallel_size": 4, "num_layers_in_first_pipeline_stage": 11,
         "num_layers_in_last_pipeline_stage": 11},
        [(0, 357_657_344, 830_472_192, 16.420), (3, 220_302_336, 905_969_664, 16.726)],
    ),
    (
        "deepseek-ai/DeepSeek-V3", 1024, {"pp": 16, "ep": 64, "pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L"},
        [(0, 3_143_122_944, 352_321_536, 24.019), (5, 931_987_456, 704_643_072, 17.183), (13, 931_994_624, 704_643_072, 17.183),
         (14, 1_728_451_584, 528_482_304, 18.820), (15, 1_392_672_768, 352_321_536, 13.932)],
    ),
    (
        "deepseek-ai/DeepSeek-V3", 1024,
        {"pp": 16, "ep": 64, "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1},
        [(0, 2_910_126_080, 176_160_768, 19.723), (5, 931_987_456, 704_643_072, 17.183), (15, 2_422_140_928, 352_321_536, 19.864)],
    ),
    ("Qwen/Qwen3-30B-A3B", 8, {"tp": 4, "ep": 8}, [(0, 394_999_808, 3_623_878_656, 65.164)]),
    ("Qwen/Qwen3-30B-A3B", 32, {"tp": 4, "ep": 8}, [(0, 394_999_808, 3_623_878_656, 33.134)]),
]  # fmt: skip
LONG = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "ep": "expert_model_parallel_size",
}  # fmt: skip


@pytest.mark.parametrize(("model", "num_gpus", "layout", "stages"), WORKED, ids=lambda x: str(x)[:40])
def test_worked_parameter_and_state_tables(
    model: str, num_gpus: int, layout: dict[str, Any], stages: list[tuple[int, int, int, float]]
) -> None:
    """Per-rank parameters and weights + fp32 gradients + sharded Adam, worked by hand from the module shapes."""
    from megatron_memory_estimator import TrainingJob

    job = TrainingJob.from_hf(model, num_gpus, **{LONG.get(k, k): v for k, v in layout.items()})
    result = estimate(job)
    for index, dense, expert, gib in stages:
        rank = result.stages[index].rank
        assert result.stages[index].num_parameters == (dense, expert)
        assert sum(s.nbytes for s in rank.states) / GIB == pytest.approx(gib, abs=6e-4)


FSDP = {"use_megatron_fsdp": True}
FP32_GRADS = {"megatron_fsdp_main_grads_dtype": "fp32"}
NO_MAIN = {"megatron_fsdp_main_params_dtype": "auto"}
OFFLOAD = {**AWARE, "optimizer_cpu_offload": True}


def level(name: str, **settings: Any) -> dict[str, Any]:
    return {**FSDP, "data_parallel_sharding_strategy": name, **settings}


# settings, bytes per parameter that are not sharded, that are sharded over 4 ranks; during the step: not sharded, sharded.
# Source: megatron_fsdp/param_and_grad_buffer.py (buckets by strategy), torch FSDP2, cpu_offloading/hybrid_optimizer.py.
SHARDED: list[tuple[dict[str, Any], float, float, float, float]] = [
    (level("no_shard"), 2 + 4 + 2 + 8, 0, 4, 0),
    (level("optim"), 2 + 2, 4 + 8, 0, 4),
    (level("optim_grads"), 2, 4 + 2 + 8, 0, 4),
    (level("optim_grads_params"), 0, 2 + 4 + 2 + 8, 0, 4),
    (level("no_shard", **FP32_GRADS), 2 + 4 + 4 + 8, 0, 0, 0),
    (level("optim", **FP32_GRADS), 2 + 4, 4 + 8, 0, 0),
    (level("optim_grads", **FP32_GRADS), 2, 4 + 4 + 8, 0, 0),
    (level("optim_grads_params", **FP32_GRADS), 0, 2 + 4 + 4 + 8, 0, 0),
    (level("no_shard", megatron_core_version="0.16"), 2 + 4 + 4 + 8, 0, 0, 0),
    (level("optim", megatron_core_version="0.16"), 2 + 4, 4 + 8, 0, 0),
    (level("optim_grads", megatron_core_version="0.16"), 2, 4 + 4 + 8, 0, 0),
    (level("optim_grads_params", megatron_core_version="0.16"), 0, 2 + 4 + 4 + 8, 0, 0),
    (level("no_shard", **FP32_GRADS, **NO_MAIN), 2 + 4 + 8, 0, 0, 0),
    (level("optim", **FP32_GRADS, **NO_MAIN), 2 + 4, 8, 0, 0),
    (level("optim_grads", **FP32_GRADS, **NO_MAIN), 2, 4 + 8, 0, 0),
    (level("optim_grads_params", **FP32_GRADS, **NO_MAIN), 0, 2 + 4 + 8, 0, 0),
    (level("no_shard", params_dtype="fp32", **FP32_GRADS), 4 + 4 + 8, 0, 0, 0),
    (level("optim", params_dtype="fp32", **FP32_GRADS), 4 + 4, 8, 0, 0),
    (level("optim_grads", params_dtype="fp32", **FP32_GRADS), 4, 4 + 8, 0, 0),
    (level("optim_grads_params", params_dtype="fp32", **FP32_GRADS), 0, 4 + 4 + 8, 0, 0),
    (level("optim", **FP32_GRADS, use_precision_aware_optimizer=True, **BF16_MOMENTS), 2 + 4, 4 + 4, 0, 0),
    (level("optim_grads", **FP32_GRADS, use_precision_aware_optimizer=True, **BF16_MOMENTS), 2, 4 + 4 + 4, 0, 0),
    (
        level("optim_grads_params", **FP32_GRADS, use_precision_aware_optimizer=True, **BF16_MOMENTS),
        0,
        2 + 4 + 4 + 4,
        0,
        0,
    ),
    (level("optim_grads_params", use_precision_aware_optimizer=True), 0, 2 + 2 + 4 + 8, 0, 0),
    ({"use_torch_fsdp2": True, "gradient_accumulation_fusion": False}, 0, 2 + 2 + 12, 0, 4),
    ({"use_torch_fsdp2": True, "gradient_accumulation_fusion": False, "params_dtype": "fp32"}, 0, 4 + 4 + 8, 0, 0),
    ({**OFFLOAD, "optimizer_offload_fraction": 0.0}, 2 + 4, 12, 0, 0),
    ({**OFFLOAD, "optimizer_offload_fraction": 0.25}, 2 + 4, 9, 0, 0),
    ({**OFFLOAD, "optimizer_offload_fraction": 0.5}, 2 + 4, 6, 0, 0),
    ({**OFFLOAD, "optimizer_offload_fraction": 0.75}, 2 + 4, 3, 0, 0),
    ({**OFFLOAD, "optimizer_offload_fraction": 1.0}, 2 + 4, 0, 0, 0),
    ({**OFFLOAD, **BF16_MOMENTS, "optimizer_offload_fraction": 0.5}, 2 + 4, 6, 0, 0),
    ({**OFFLOAD, "main_grads_dtype": "bf16", "optimizer_offload_fraction": 0.25}, 2 + 2, 9, 0, 3),
    ({**OFFLOAD, "main_grads_dtype": "bf16", "optimizer_offload_fraction": 0.5}, 2 + 2, 6, 0, 2),
    ({**OFFLOAD, "main_grads_dtype": "bf16", "optimizer_offload_fraction": 1.0}, 2 + 2, 0, 0, 0),
]


@pytest.mark.parametrize(("settings", "whole", "sharded", "step", "step_sharded"), SHARDED, ids=lambda x: str(x)[:90])
def test_sharding_strategies_and_offload_fractions(
    settings: dict[str, Any], whole: float, sharded: float, step: float, step_sharded: float
) -> None:
    rank = estimate(small_job(4, **settings)).stages[0].rank
    n = sum(b.numel_unpadded for b in rank.buffers)
    steady = sum(s.nbytes for s in rank.states if s.since in ("setup", "first step"))
    extra = sum(s.nbytes for s in rank.states if s.since in ("step", "optimizer"))
    assert steady == n * whole + n * sharded / 4
    assert extra == n * step + n * step_sharded / 4


def test_outer_sharding_spreads_the_optimizer_over_instances() -> None:
    """HSDP: weights and gradients over 4 ranks, with outer sharding the optimizer state over 8."""
    settings = {**level("optim_grads_params"), "num_distributed_optimizer_instances": 2}
    for outer, ways in (("no_shard", 4), ("optim", 8)):
        rank = estimate(small_job(8, **settings, outer_dp_sharding_strategy=outer)).stages[0].rank
        n = sum(b.numel_unpadded for b in rank.buffers)
        assert sum(s.nbytes for s in rank.states if s.part != "optimizer") == n * 4 // 4
        assert sum(s.nbytes for s in rank.states if s.part == "optimizer" and s.since != "step") == n * 12 // ways


def test_offloaded_state_is_in_host_memory() -> None:
    """16 bytes per offloaded parameter: fp32 weight, gradient and two moments."""
    stage = estimate(small_job(4, **OFFLOAD, optimizer_offload_fraction=0.5)).stages[0]
    n = stage.rank.buffers[0].numel
    terms = {term.name: term for term in stage.host}
    assert terms["optimizer offload"].low == 16 * n // 4 // 2
    assert terms["optimizer offload"].high == terms["optimizer offload"].low
