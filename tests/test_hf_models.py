"""Hugging Face configs: published parameter counts, unwrapping, families, where configs come from."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, UnsupportedError, count_parameters, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.inputs.hf.convert import convert

from .helpers import FACTS

COUNTS: dict[str, list[int | None]] = json.loads((FACTS / "hf_param_counts.json").read_text())["counts"]
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
    "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_equal_the_published_count(name: str) -> None:
    total, active = COUNTS[name]
    model = TrainingJob.from_hf(name).model
    found, towers = count_parameters(model), sum(tower.num_parameters for tower in model.towers)
    assert found.total - towers == total
    assert active is None or found.active - towers == active


@pytest.mark.parametrize("name", ["allenai/OLMo-2-1124-7B", "CohereLabs/c4ai-command-r-plus", "google/gemma-4-E4B"])
def test_a_token_of_a_model_without_experts_uses_every_parameter(name: str) -> None:
    """Also those that Megatron-Core has no part for, and without those that it has beyond the published model."""
    model = TrainingJob.from_hf(name).model
    assert sum(n for _, n in model.foreign_layers) != 0 and not model.has_moe
    found = count_parameters(model)
    assert found.active == found.total


def test_every_catalogue_entry_has_a_source_and_a_count() -> None:
    """Or it is refused by name, without a count."""
    refused = set(entries()) - set(COUNTS)
    assert set(COUNTS) <= set(entries())
    for name in refused:
        with pytest.raises(UnsupportedError, match="is not supported"):
            load(name)
    assert all(entry["source"] for entry in entries().values())


def test_megatron_core_builds_more_than_the_published_count_with_mtp() -> None:
    """DeepSeek-V3: 682,636,472,320 parameters with one MTP layer, unpadded vocabulary and no embedding copy."""
    count = count_parameters(TrainingJob.from_hf("deepseek-ai/DeepSeek-V3").model)
    assert count.total + count.mtp == 682_636_472_320


@pytest.mark.parametrize("name", list(COUNTS))
def test_memory_is_estimated_or_refused_by_name(name: str) -> None:
    job = TrainingJob.from_hf(name)
    if job.refusal:
        with pytest.raises(UnsupportedError, match=name.split("/")[1].replace(".", r"\.")):
            estimate(job)
    else:
        assert estimate(job).peak_stage.peak_allocated_bytes > 0


def test_wrapped_config_takes_tied_embeddings_from_outside() -> None:
    wrapped = {"model_type": "outer", "tie_word_embeddings": True, "text_config": LLAMA, "vision_config": {"a": 1}}
    loaded = convert(wrapped, "x", "test")
    assert loaded.config["share_embeddings_and_output_weights"] is True
    assert any("vision_config" in warning for warning in loaded.warnings)


def test_quantization_config_is_ignored() -> None:
    assert convert({**LLAMA, "quantization_config": {"bits": 4}}, "x", "t").config == convert(LLAMA, "x", "t").config


def test_null_differs_from_absent() -> None:
    base = dict(entries()["deepseek-ai/DeepSeek-V2-Lite"]["config"])
    assert base["q_lora_rank"] is None
    assert convert(base, "x", "t").config["q_lora_rank"] is None
    del base["q_lora_rank"]
    assert convert(base, "x", "t").config["q_lora_rank"] == 1536


def test_unknown_plain_decoder_is_accepted_with_a_warning() -> None:
    loaded = convert({**LLAMA, "model_type": "brandnew"}, "x", "t")
    assert any("brandnew" in warning for warning in loaded.warnings)


@pytest.mark.parametrize("field", ["num_experts", "kv_lora_rank", "mamba_num_heads", "layer_types"])
def test_unknown_decoder_that_is_not_plain_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        convert({**LLAMA, "model_type": "brandnew", field: [8]}, "x", "t")


def test_sources_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(LLAMA))
    assert load(str(file)).name == "tiny"
    assert load(str(file.parent)).name == "tiny"

    class Stdin:
        buffer = io.BytesIO(file.read_bytes())

    monkeypatch.setattr("sys.stdin", Stdin)
    assert load("-").source == "standard input"


def test_unknown_model_names_the_nearest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="Qwen/Qwen3-8B"):
        load("Qwen/Qwen3-8BB")


def test_mtp_follows_the_config_and_can_be_turned_off() -> None:
    assert TrainingJob.from_hf("deepseek-ai/DeepSeek-V3").model.mtp == 1
    assert TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", mtp_num_layers=0).model.mtp == 0
