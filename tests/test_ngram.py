"""Tables of n-grams: lengths of published checkpoints, and the rows of a rank, from the branches of Megatron-LM that have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.errors import UnsupportedError
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.inputs.hf.ngram import rows_of_rank, tables
from megatron_memory_estimator.inputs.resolve import job_from_parts
from megatron_memory_estimator.modules.counts import count_parameters

FLASH_NEXT = {
    "model_type": "qwen4_exp_text", "architectures": ["Qwen4ExpForCausalLM"],
    "full_attention_interval": 4, "hc_count": 4, "hc_lowrank": 320,
    "head_dim": 256, "heads_per_ngram": 8, "hidden_act": "silu", "hidden_size": 2560, "indexer_budget": 2048, "indexer_compress_ratio": 4,
    "indexer_head_dim": 128, "indexer_kv_heads": 1, "indexer_n_heads": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128, "make_ngram_vocab_size_divisible_by": 128,
    "max_position_embeddings": 262144, "moe_intermediate_size": 640, "ngram_size": 3, "ngram_vocab_size_base": 20000000,
    "num_attention_heads": 24, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2,
    "output_gate_type": "sigmoid", "partial_rotary_factor": 0.25, "ple_conv_kernel_size": 4, "ple_embed_dim": 2560, "ple_layer_ids": [2],
    "shared_expert_intermediate_size": 640, "tie_word_embeddings": False, "vocab_size": 248320,
}  # fmt: skip
"""Qwen/Qwen3.8-Flash-Next, config.json."""
V41_FLASH = {
    "model_type": "deepseek_v41_text", "compress_ratios": [0, 0, *[2] * 18, *[1] * 20, 0, 0, 0], "engram_head_dim": 256,
    "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_num_embeddings": [384006168, 384016682],
    "engram_vocab_size": 16000000, "hc_mult": 4, "head_dim": 512, "hidden_act": "silu", "hidden_size": 5120, "index_head_dim": 128,
    "index_n_heads": 32, "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "kv_source_layer_ids": [2, 8, 14, 20],
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2304, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_attention_heads": 64, "num_experts_per_tok": 6, "num_hidden_layers": 40, "num_key_value_heads": 1, "o_groups": 8,
    "o_lora_rank": 1024, "q_lora_rank": 1280, "scoring_func": "sqrtsoftplus", "tie_word_embeddings": False, "vocab_size": 129280,
}  # fmt: skip
"""The text part of deepseek-ai/DeepSeek-V4.1-Flash, config.json."""
QWEN = tables(20_000_000, 16)
V41 = tables(16_000_000, 24), tables(16_000_000, 24, behind=24)


def test_every_table_is_as_long_as_the_next_prime() -> None:
    assert QWEN[:3] == (20_000_003, 20_000_023, 20_000_033) and sum(QWEN) == 320_001_446
    assert V41[0][:3] == (16_000_057, 16_000_079, 16_000_081) and V41[1][-2:] == (16_000_879, 16_000_889)
    assert tuple(map(sum, V41)) == (384_006_168, 384_016_682)  # engram_num_embeddings of DeepSeek-V4.1-Flash


@pytest.mark.parametrize(
    ("rows", "expert_parallel", "first", "last"),
    [
        (QWEN, 1, 320_001_446, 320_001_446), (QWEN, 3, 106_667_156, 106_667_140), (QWEN, 8, 40_000_189, 40_000_173),
        (QWEN, 64, 5_000_031, 5_000_015), (V41[0], 3, 128_002_068, 128_002_044), (V41[0], 64, 6_000_109, 6_000_085),
        (V41[1], 8, 48_002_097, 48_002_073), (V41[1], 64, 6_000_270, 6_000_246),
    ],
)  # fmt: skip
def test_expert_parallel_ranks_share_the_rows_of_each_table(
    rows: tuple[int, ...], expert_parallel: int, first: int, last: int
) -> None:
    assert rows_of_rank(rows, expert_parallel) == first
    assert rows_of_rank(rows, expert_parallel, expert_parallel - 1) == last
    assert sum(rows_of_rank(rows, expert_parallel, rank) for rank in range(expert_parallel)) == sum(rows)


def test_v41_is_counted_and_its_memory_refused(tmp_path: Path) -> None:
    """Published: 552 billion parameters, and 196 in tables; 16 are active, without embedding and the fusion of n-grams."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(V41_FLASH))
    count = count_parameters(job_from_parts(load(str(file)), 64, {}, habits=True).model)
    in_tables = sum(map(sum, V41)) * 256
    assert (in_tables, count.total) == (196_613_849_600, 748_494_654_064)
    assert count.total - in_tables - 2 * 157_327_360 == 551_566_149_744
    assert count.active - 129_280 * 5120 - 2 * 157_327_360 == 15_815_903_344
    with pytest.raises(UnsupportedError, match=r"\(DeepSeek-V4\.1\) are in no release of Megatron-Core"):
        estimate(TrainingJob.from_hf(str(file), 64))


def test_flash_next_is_counted_and_its_memory_refused(tmp_path: Path) -> None:
    """transformers 5.23: Qwen4ExpForCausalLM has 176,943,899,520 parameters; published are 125 billion and 51 in tables, 6 of them active
    beside embedding and head."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(FLASH_NEXT))
    count = count_parameters(job_from_parts(load(str(file)), 64, {}, habits=True).model)
    assert count.total == 176_943_899_520
    assert round((count.active - 2 * 248_320 * 2560) / 1e9) == 6
    with pytest.raises(UnsupportedError, match=r"Qwen3\.8-Flash-Next\) are in no release of Megatron-Core"):
        estimate(TrainingJob.from_hf(str(file), 64))
