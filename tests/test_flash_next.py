"""Qwen3.8-Flash-Next: gated residual streams, sparse attention with an indexer, tables of n-grams.

Published with NVIDIA/Megatron-LM pull request 7553 (docs/models/qwen3.8_flash_next, ffc1d450 and 1b66d111): parameters of parts, what the
compiled arithmetic of a mixer and of the n-grams keeps, and peaks of four runs on GB300.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, estimate, plan
from megatron_memory_estimator.device.reserved import wide_streams
from megatron_memory_estimator.inputs.hf.hybrid import tables
from megatron_memory_estimator.modules.flash_next import rows_of_rank
from megatron_memory_estimator.modules.layers import final_norm_unit, layer_unit
from megatron_memory_estimator.planner.launch import megatron_lm
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.tape.ops import flattened

from .test_planner import same_figures

NAME = "Qwen/Qwen3.8-Flash-Next"
GIVEN: dict[str, Any] = {
    "gpu": "GB300", "seq_length": 4096, "micro_batch_size": 1, "cross_entropy_loss_fusion": True, "router_imbalance": 1,
}  # fmt: skip
ROWS = tables(20_000_000, 16)


def job(**settings: Any) -> TrainingJob:
    return TrainingJob.from_hf(NAME, 64, **{"ep": 64, "global_batch_size": 512, **GIVEN, **settings})


def proxy(**settings: Any) -> TrainingJob:
    """The published proxy: 8 layers, 32 experts, tables from 1,000,000 rows on, 4 GPUs."""
    small = {
        "num_layers": 8,
        "num_moe_experts": 32,
        "linear_attention_freq": [1, 1, 1, 0] * 2,
        "ngram_table_rows": tables(10**6, 16),
    }
    return TrainingJob.from_hf(NAME, 4, **{"ep": 4, "global_batch_size": 16, **GIVEN, **small, **settings})


@pytest.mark.parametrize(("kind", "parameters"), [
    ("gated_gdn+gated_moe", 2_593_979_104),
    ("gated_qsa+gated_moe", 2_587_467_008),
    ("gated_gdn+gated_moe@ngrams", 2_593_979_104 + 51_200_231_360 + 32_839_680),
])  # fmt: skip
def test_parameters_of_a_layer_are_those_of_the_class(kind: str, parameters: int) -> None:
    """transformers 5.23, `qwen4_exp`; Megatron does not pad the tables."""
    c = context_of(job(ep=1))
    assert sum(p.numel for p in layer_unit(c, kind).params) == parameters


def test_the_last_mixer_has_no_injection_and_no_norm_stands_behind_it() -> None:
    assert sum(p.numel for p in final_norm_unit(context_of(job())).params) == 6_563_840


def kept(kind: str, begins: str) -> float:
    """Bytes of a token that ops whose name begins so keep, each tensor once, and what the injection keeps of the sub-layer."""
    c = context_of(job())
    found = {
        t.storage: t.nbytes
        for op in flattened(layer_unit(c, kind).unit.items)
        if op.name.startswith(begins)
        for t in op.saves
    }
    return sum(found.values()) / 4096


def test_a_mixer_keeps_what_its_compiled_arithmetic_does() -> None:
    """10 n h + 4 h + 4 r + 10 n bytes of a token with the input of the linear behind, 2 h: n 4, h 2560, r 320."""
    for kind, name in (
        ("gated_gdn+gated_moe", "attn_hyper_connection"),
        ("gated_gdn+gated_moe", "mlp_hyper_connection"),
    ):
        assert kept(kind, name) + 2 * 2560 == 113_960


def test_the_tables_keep_what_their_compiled_arithmetic_does() -> None:
    """338,286 bytes of a token on one expert-parallel rank; with several the ids that others ask for too."""
    kind = "gated_gdn+gated_moe@ngrams"
    assert kept(kind, "ple.") == 338_286 + 16 * 8


def test_expert_parallel_ranks_alone_share_the_tables() -> None:
    """5,000,031 of 320,001,446 rows of 160 at EP 64: 18 bytes of each number at expert data parallelism of 1."""
    for found, ranks, numel in (
        (job(), 64, 800_004_960),
        (job(tp=2, ep=32, sequence_parallel=True), 32, 1_600_008_480),
    ):
        rank = estimate(found).stages[0].rank
        (table,) = [p for plan in rank.plans for p, _ in plan.params if "ngram_embedding" in p.name]
        assert table.numel == 160 * rows_of_rank(ROWS, ranks) == numel
        assert table.expert_buffer and not table.matrix


def test_experts_are_divided_with_all_else_where_there_are_tables() -> None:
    """NVIDIA/Megatron-LM pull request 7231, `docs/models/engram.md`: the expert tensor parallel size is the other one."""
    assert job(tp=2, ep=32).layout.etp == 2
    with pytest.raises(LayoutError, match="expert_tensor_parallel_size=1 to be tensor_model_parallel_size=2"):
        estimate(job(tp=2, ep=32, etp=1))


@pytest.mark.parametrize(("found", "measured"), [
    (job(), 204.4),
    (proxy(), 71.9),
    (proxy(recompute_granularity="selective", recompute_modules=("core_attn", "mhc")), 62.5),
    (proxy(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1), 50.7),
], ids=["64 GB300", "proxy", "proxy, core_attn and mhc", "proxy, full"])  # fmt: skip
def test_published_peaks_are_in_the_range(found: TrainingJob, measured: float) -> None:
    """Low ends are 7.4, 3.1 and 0.7 % below and 0.7 % above. What is missing grows with the layers and leaves with recompute_modules mhc:
    the streams' fp32 copy, 40,960 bytes of a token and mixer, where norms run op by op. The record of a mixer compiles them."""
    stage = estimate(found).stages[0]
    allocated = stage.allocated.phases["training"]
    assert 0.99 * allocated.low < measured * 2**30 < 1.01 * allocated.high
    assert allocated.high == allocated.low + next((t.high for t in [wide_streams(stage.rank)]), 0)


def test_the_search_finds_what_the_estimate_says() -> None:
    asked = TrainingJob.from_hf(NAME, 64, **{**GIVEN, "global_batch_size": 512})
    found = plan(
        asked,
        {"micro_batch_size": "1,2", "tp": "1,2", "pp": "1,2", "recompute": "none,mhc,full"},
        global_batch_size=512,
    )
    assert found.found.plans
    for one in found.found.plans[:4]:
        same_figures(one)


@pytest.mark.parametrize("version", ["0.19", "0.20"])
def test_a_launch_is_read_again_whether_its_version_has_the_option(version: str) -> None:
    run = job(megatron_core_version=version)
    launch = megatron_lm(run)
    assert ("--hc-lowrank" in launch.words()) is (version == "0.20")
    again = TrainingJob.from_megatron_args(launch.words(), run.layout.world_size, gpu=run.gpu.name, **launch.beside)
    assert estimate(again).peak_stage.peak_allocated_bytes == estimate(run).peak_stage.peak_allocated_bytes


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"peft": "lora"}, "is not modelled with adapters"),
    ({"cp": 2}, "context_parallel_size=2 with"),
    ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "fp8 or fp4 is not modelled"),
    ({"cuda_graph_impl": "transformer_engine"}, "excludes cuda_graph_impl"),
    ({"use_megatron_fsdp": True}, "is not modelled with fully sharded data parallelism"),
])  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        estimate(job(**settings))


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"hc_lowrank": 320}, "needs experimental_attention_variant gdn and experts in every layer"),
    ({"ple_layer_ids": [2]}, "need hc_lowrank"),
])  # fmt: skip
def test_other_models_have_neither_gates_nor_tables(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **settings)


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"ple_layer_ids": [49]}, "has layer 49 of num_layers=48"),
    ({"ngram_table_rows": [10] * 7}, "does not divide over 7 ngram_table_rows"),
    ({"ngram_table_rows": []}, "go together"),
])  # fmt: skip
def test_tables_that_do_not_fit_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        job(**settings)


def test_attention_has_no_fused_kernel_whatever_is_asked_for() -> None:
    """A mask of all pairs says who attends (huggingface/transformers 5.24 `models/qwen4_exp`)."""
    asked = job(attention_kernel="flash")
    assert asked.kernel == job().kernel == "unfused"
    assert any(one.startswith("attention_kernel=flash has no effect") for one in asked.warnings)
    assert estimate(asked).peak_stage.peak_allocated_bytes == estimate(job()).peak_stage.peak_allocated_bytes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cuda_graph_impl": "full_iteration"}, "CUDA graphs of the whole iteration"),
        ({"sequence_packing_scheduler": "dp_balanced"}, "sequence_packing_scheduler"),
        ({"cuda_graph_impl": "local"}, "use none"),
    ],
)
def test_what_its_pull_requests_refuse_is_refused(settings: dict[str, Any], said: str) -> None:
    """NVIDIA/Megatron-LM pull requests 7231 and 7553: graphs of routers alone, packed rows without schedulers."""
    with pytest.raises(LayoutError, match=said):
        estimate(job(**settings))
