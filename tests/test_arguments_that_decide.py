"""Arguments that decide memory are read, or refused by name; nothing that changes the figure is passed over."""

from __future__ import annotations

import pytest

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob
from megatron_memory_estimator.inputs.megatron.words import parse_words

BASE = {
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "max_position_embeddings": 64,
    "micro_batch_size": 1, "vocab_size": 1000, "bf16": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["checkpoint_activations", "batch_size", "model_parallel_size"])
def test_old_arguments_that_stop_megatron_are_refused(name: str) -> None:
    value = True if name == "checkpoint_activations" else 2
    with pytest.raises(EstimatorError, match=f"Megatron refuses --{name.replace('_', '-')}; "):
        TrainingJob.from_megatron_args({**BASE, name: value}, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--lora-r", "8"], ["--my-lora-rank", "8"], ["--swap-optimizer"], ["--cpu-offloading"], ["--num-layer-list", "7,8,9"],
        ["--hybrid-attention-ratio", "0.1"], ["--hybrid-mlp-ratio", "0.5"], ["--zero-stage", "2"], ["--moe-extended-tp"],
        ["--activations-checkpoint-method", "uniform"], ["--recompute-norm"], ["--freeze-LM"], ["--quant-states"],
    ],
)  # fmt: skip
def test_what_decides_memory_is_refused_when_unknown_arguments_are_passed_over(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="decides memory and is not modelled"):
        parse_words(["--bf16", *words], ignore_unknown=True)


def test_other_unknown_arguments_are_passed_over() -> None:
    found = parse_words(["--bf16", "--made-up", "3", "--zero-stage", "0"], ignore_unknown=True)
    assert found.values == {"bf16": True} and found.unknown == ["--made-up", "--zero-stage"]


def test_a_near_name_is_still_the_first_help() -> None:
    with pytest.raises(
        ConfigError, match=r'unknown Megatron argument --recompute-granularty\. Did you mean "recompute_granularity"'
    ):
        parse_words(["--recompute-granularty", "full"])


def test_layers_to_offload_are_not_the_switch() -> None:
    """TransformerConfig offloads only with `cpu_offloading`; Megatron-LM's argument is its own switch."""
    plain = {name: value for name, value in BASE.items() if name != "bf16"}
    off = TrainingJob.from_config({**plain, "cpu_offloading_num_layers": 2}, 1)
    assert off.training.cpu_offloading_num_layers == 0 and any("cpu_offloading is off" in note for note in off.warnings)
    on = TrainingJob.from_config({**plain, "cpu_offloading_num_layers": 2, "cpu_offloading": True}, 1)
    assert on.training.cpu_offloading_num_layers == 2
    assert (
        TrainingJob.from_megatron_args({**BASE, "cpu_offloading_num_layers": 2}, 1).training.cpu_offloading_num_layers
        == 2
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--seq-length", "9" * 5000], "must be a whole number"),
        (["--seq-length", "²"], "--seq-length='²' must be a whole number"),
        (["--seq-length", "--5"], "must be a whole number"),
        (["--\x1b[31mx"], "stands before the first Megatron argument"),
    ],
)
def test_odd_words_are_one_plain_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_words(words)
    text = str(error.value)
    assert sentence in text and len(text) <= 500 and text.isprintable()
