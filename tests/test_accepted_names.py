"""Names that are accepted and change nothing that is counted: where that is read, and those whose effect is said."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.errors import ConfigError
from megatron_memory_estimator.inputs.megatron.classes import HARMLESS
from megatron_memory_estimator.inputs.transformer_config import IRRELEVANT, UNCOUNTED

GPT = [
    *["--num-layers", "4", "--hidden-size", "1024", "--num-attention-heads", "8", "--max-position-embeddings", "8192"],
    *["--micro-batch-size", "1", "--global-batch-size", "8", "--tokenizer-type", "NullTokenizer", "--vocab-size", "32000", "--bf16"],
    *["--swiglu"],
]  # fmt: skip
EXPERTS = [
    *["--seq-length", "2048", "--num-experts", "8", "--moe-router-topk", "2", "--expert-model-parallel-size", "4"],
    *["--moe-grouped-gemm", "--moe-ffn-hidden-size", "1024", "--disable-bias-linear"],
]  # fmt: skip


def of_args(*words: str) -> TrainingJob:
    return TrainingJob.from_megatron_args([*GPT, *words], 8, router_imbalance=1)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_a_name_that_is_passed_over_names_the_line_that_shows_it(name: str) -> None:
    assert re.match(
        r"(main: )?(megatron|transformer_engine)/[\w/]+\.py(:\d+)?: \w.{8,}$", {**IRRELEVANT, **HARMLESS}[name]
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--symmetric-ar-type", "multimem_all_reduce"], "symmetric_ar_type"),
        (["--log-max-attention-logit"], "log_max_attention_logit"),
        (["--moe-router-force-biased", "1.0"], "moe_router_force_biased"),
        (["--fp8-format", "hybrid", "--fp8-amax-history-len", "1024"], "fp8_amax_history_len"),
    ],
)
def test_an_effect_that_is_not_counted_is_said(words: list[str], name: str) -> None:
    job = of_args("--seq-length", "2048", *words)
    assert [warning for warning in job.warnings if warning.startswith(f"{name}=") and "is not counted: " in warning]


def test_an_effect_that_the_run_does_not_have_is_not_said() -> None:
    job = of_args("--seq-length", "2048", "--fp8-amax-history-len", "1024", "--tp-comm-overlap-cfg", "x.yaml")
    assert not [warning for warning in job.warnings if "not counted" in warning]


def test_dictionaries_say_it_too() -> None:
    values: dict[str, Any] = {
        "num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000, "seq_length": 512,
        "micro_batch_size": 1, "global_batch_size": 1,
    }  # fmt: skip
    assert not TrainingJob.from_config(values, 1).warnings
    assert "no_rope_freq" in UNCOUNTED
    assert TrainingJob.from_config({**values, "no_rope_freq": 4}, 1).warnings[0].startswith("no_rope_freq=4 ")


def test_the_length_of_an_encoder_is_the_sequence_length() -> None:
    """Megatron-LM 0.19.2 `training/arguments.py` 1306-1311."""
    assert of_args("--encoder-seq-length", "8192").training.seq_length == 8192
    with pytest.raises(ConfigError, match="--seq-length 4096 and --encoder-seq-length 8192 are one length"):
        of_args("--seq-length", "4096", "--encoder-seq-length", "8192")


def test_interleaved_halves_of_experts_are_copied_and_not_fused() -> None:
    """Megatron-Core 0.19.2 `moe/experts.py` 827: the fused kernel keeps fc1's output [rows, 2f]; the functions keep the copy of it, in
    its place, and silu(gate), the linear half and the product, [rows, f] each: 3 rows f values of 2 bytes more, for each of 4 layers.
    """
    fused, apart = of_args(*EXPERTS), of_args(*EXPERTS, "--moe-mlp-glu-interleave-size", "32")
    rows = 2048 * 2
    kept = [estimate(job).stages[0].rank.plans[0].runs[1] for job in (fused, apart)]
    assert [run.copies for run in kept] == [4, 4]
    assert kept[1].trace.saved_bytes - kept[0].trace.saved_bytes == 3 * rows * 1024 * 2


def test_a_provider_s_strange_attributes_are_named() -> None:
    model = SimpleNamespace(
        num_layers=4, hidden_size=512, num_attention_heads=8, vocab_size=32000, seq_length=1024, nu_layers=3,
        apply_query_key_layer_scaling=True,
    )  # fmt: skip
    train = SimpleNamespace(micro_batch_size=1, global_batch_size=8)
    job = TrainingJob.from_bridge(SimpleNamespace(model=model, train=train), 8)
    assert job.training.attention_softmax_in_fp32
    assert job.warnings == (
        'model.nu_layers is no field of a Megatron-Bridge provider and is not read. Did you mean "num_layers"?',
    )


def test_deepseek_s_word_for_no_balancing_loss() -> None:
    """Bridge's DeepSeek-V4 provider sets it; Megatron-Core's router (`moe/router.py`, routing) computes no loss of that name."""
    values: dict[str, Any] = {
        "num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000, "seq_length": 512, "num_moe_experts": 4,
        "micro_batch_size": 1, "global_batch_size": 1, "moe_router_load_balancing_type": "noaux_tc",
    }  # fmt: skip
    assert TrainingJob.from_config(values, 1).model.moe_router_load_balancing_type == ("none",)
