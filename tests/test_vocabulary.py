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
    ({**LLAMA, "vocab_size": 32000}, 128256, "--vocab-size 32000 is ignored, as Megatron ignores it"),
    (LLAMA, 128256, ""),
    ({**LLAMA, "tokenizer_model": "/data/models/Qwen3-8B/"}, 151669, ""),
    ({"tokenizer_type": "Llama2Tokenizer", "tokenizer_model": "/x/Llama-2-7b-hf/tokenizer.model"}, 32000, ""),
    (
        {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "me/mine", "vocab_size": 7},
        7,
        "--vocab-size 7 is taken, but",
    ),
    ({"tokenizer_type": "GPT2BPETokenizer"}, 50257, ""),
    ({"tokenizer_type": "GPT2BPETokenizer", "vocab_size": 51200}, 50257, "--vocab-size 51200 is ignored"),
    ({"tokenizer_type": "NullTokenizer", "vocab_size": 131072}, 131072, ""),
    ({"tokenizer_type": "TikTokenizer"}, 131072, ""),
    ({}, 50257, "vocab_size not given: 50257"),
    ({"vocab_file": "gpt2-vocab.json", "vocab_size": 3}, 50257, "--vocab-size 3 is ignored"),
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
    with pytest.raises(
        ConfigError, match=r"takes it from the tokenizer \(HuggingFaceTokenizer me/mine\).*; give --vocab-size N"
    ):
        TrainingJob.from_megatron_args(
            {**BASE, "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "me/mine"}, 1
        )
    with pytest.raises(ConfigError, match="NullTokenizer needs --vocab-size"):
        TrainingJob.from_megatron_args({**BASE, "tokenizer_type": "NullTokenizer"}, 1)


@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "Qwen/Qwen3-VL-8B",
        "me/llama",
        "",
        "x" * 1000,
        "mistralai/Mixtral-8x22B-v0.3",
    ],
)
def test_a_name_that_only_looks_alike_is_not_known(name: str) -> None:
    assert known_size(name) is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", 151669),
        ("$HOME/checkpoints/Qwen3-8B_torch_dist", 151669),
        ("LLM-Research/Meta-Llama-3.1-8B-Instruct", 128256),
        ("unsloth/Llama-3.2-1B", 128256),
        ("/ckpt/Qwen2.5-7B-mcore-tp4-pp2", 151665),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 151665),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 128256),
        ("deepseek-ai/DeepSeek-R1-0528", 128815),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 100002),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 32000),
        ("~/.cache/huggingface/hub/models--openai--gpt-oss-20b", 200019),
        ("$DATA_PATH/utils/nemotron_2_256k.model", 256000),
    ],
)
def test_variants_mirrors_and_folders_have_the_vocabulary_of_their_model(name: str, size: int) -> None:
    assert known_size(name) == size


PAI = [
    ("Qwen2Tokenizer", "293", 151936),
    ("Qwen3Tokenizer", "421", 152064),
    ("DeepSeekV2Tokenizer", "2400", 102400),
    ("DeepSeekV2Tokenizer", "467", 129280),
    ("LLama3Tokenizer", "256", 128256),
    ("LLama2Tokenizer", "0", 32000),
    ("StarcoderTokenizerFromHF", "7", 49152),
]


@pytest.mark.parametrize(("kind", "extra", "rows"), PAI)
def test_tokenizers_of_pai_are_not_padded(kind: str, extra: str, rows: int) -> None:
    words = [f"--{name}={value}" for name, value in BASE.items() if name != "bf16"]
    job = TrainingJob.from_megatron_args(
        [*words, "--bf16", "--patch-tokenizer-type", kind, "--extra-vocab-size", extra], 1
    )
    assert job.model.padded_vocab(8) == rows


def test_tokenizers_of_pai_whose_length_is_not_known_are_asked_for() -> None:
    given = {**BASE, "patch_tokenizer_type": "LLamaTokenizer", "extra_vocab_size": 0}
    with pytest.raises(
        ConfigError, match="patch-tokenizer-type LLamaTokenizer is not known; give --padded-vocab-size N"
    ):
        TrainingJob.from_megatron_args(given, 1)
    assert TrainingJob.from_megatron_args({**given, "load": "/x/Llama-2-7b-hf"}, 1).model.padded_vocab(8) == 32000
    assert TrainingJob.from_megatron_args({**given, "padded_vocab_size": 4096}, 1).model.padded_vocab(1) == 4096
    with pytest.raises(ConfigError, match="which --patch-tokenizer-type does not name; give --padded-vocab-size N"):
        TrainingJob.from_megatron_args({**BASE, "extra_vocab_size": 3}, 1)


@pytest.mark.parametrize("kind", ["QwenTokenizerFS", "HFTokenizerFS", "AquilaTokenizerFS", "PretrainedFromHF"])
def test_tokenizers_of_forks_that_take_the_option(kind: str) -> None:
    job = TrainingJob.from_megatron_args({**BASE, "tokenizer_type": kind, "vocab_size": 151851}, 1)
    assert job.model.vocab_size == 151851
    named = {**BASE, "tokenizer_type": "PretrainedFromHF", "tokenizer_name_or_path": "./Qwen2.5-7B/"}
    assert TrainingJob.from_megatron_args(named, 1).model.vocab_size == 151665
