"""The vocabulary of a run follows from its tokenizer, as Megatron-LM reads it; sizes are those of the published tokenizers."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.inputs.megatron.vocabulary import known_size, vocabulary

BASE = {
    "num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64, "max-position-embeddings": 64,
    "micro-batch-size": 1, "bf16": True,
}  # fmt: skip
LLAMA = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "meta-llama/Llama-3.1-8B"}

CASES: list[tuple[dict[str, Any], int, str]] = [
    ({**LLAMA, "vocab_size": 32000}, 128256, "vocab_size 32000 is ignored, as Megatron ignores it"),
    (LLAMA, 128256, ""),
    ({**LLAMA, "tokenizer_model": "/data/models/Qwen3-8B/"}, 151669, ""),
    ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "/x/Llama-2-7b-hf/tokenizer.model"}, 32000, ""),
    (
        {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "me/mine", "vocab_size": 7},
        7,
        "vocab_size 7 is taken, but",
    ),
    ({"tokenizer_type": "GPT2BPETokenizer"}, 50257, ""),
    ({"tokenizer_type": "GPT2BPETokenizer", "vocab_size": 51200}, 50257, "vocab_size 51200 is ignored"),
    ({"tokenizer_type": "NullTokenizer", "vocab_size": 131072}, 131072, ""),
    ({"tokenizer_type": "TikTokenizer"}, 131072, ""),
    ({}, 50257, "no tokenizer and no vocab_size is given"),
    ({"vocab_file": "gpt2-vocab.json", "vocab_size": 3}, 50257, "vocab_size 3 is ignored"),
    ({"vocab_size": 32000}, 32000, "without --tokenizer-type Megatron builds GPT2BPETokenizer"),
]


@pytest.mark.parametrize(("given", "size", "note"), CASES)
def test_size_by_tokenizer(given: dict[str, Any], size: int, note: str) -> None:
    found = vocabulary(given, {})
    assert found.size == size and note in " ".join(found.notes) and bool(note) == bool(found.notes)
    job = TrainingJob.from_megatron_args({**BASE, **given}, 1)
    assert job.model.vocab_size == size and any(note in warning for warning in (*job.warnings, note))


def test_a_leftover_vocab_size_does_not_decide() -> None:
    """The everyday script of Llama-3.1-8B with `--vocab-size 32000` left in it: 128,256 entries, as without it."""
    left = TrainingJob.from_megatron_args({**BASE, **LLAMA, "vocab_size": 32000}, 1)
    without = TrainingJob.from_megatron_args({**BASE, **LLAMA}, 1)
    assert left.model == without.model


def test_the_caller_wins_and_an_unknown_tokenizer_is_asked_for() -> None:
    assert TrainingJob.from_megatron_args({**BASE, **LLAMA}, 1, vocab_size=1000).model.vocab_size == 1000
    padded = TrainingJob.from_megatron_args({**BASE, **LLAMA, "padded_vocab_size": 2048}, 1)
    assert padded.model.padded_vocab(1) == 2048
    with pytest.raises(ConfigError, match=r"takes it from the tokenizer.*give --padded-vocab-size, or --vocab-size"):
        TrainingJob.from_megatron_args(
            {**BASE, "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "me/mine"}, 1
        )
    with pytest.raises(ConfigError, match="NullTokenizer needs --vocab-size"):
        TrainingJob.from_megatron_args({**BASE, "tokenizer_type": "NullTokenizer"}, 1)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "Qwen/Qwen3-VL-8B",
        "me/llama",
        "",
        "x" * 1000,
        "mistralai/Mixtral-8x22B-v0.3",
    ],
)
def test_a_name_that_only_looks_alike_is_not_known(name: str) -> None:
    assert known_size(name) is None
