"""Vision and audio towers: language models inside nested configs, and what a verdict says of a tower that is not counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, UnsupportedError, count_parameters, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.report.document import document
from megatron_memory_estimator.report.summary import estimate_summary
from megatron_memory_estimator.report.verdict import verdict_text

Config = dict[str, Any]
SOME = {"depth": 2}


def config(name: str, **changes: Any) -> Config:
    return {**entries()[name]["config"], **changes}


OMNI: Config = {
    "model_type": "qwen3_omni_moe", "talker_config": {"hidden_size": 8},
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker", "vision_config": SOME, "audio_config": SOME,
        "text_config": config("Qwen/Qwen3-30B-A3B", model_type="qwen3_omni_moe_text"),
    },
}  # fmt: skip
MISTRAL, GLM, EXAONE = "mistralai/Mistral-Small-24B-Base-2501", "zai-org/GLM-4.5-Air", "LGAI-EXAONE/EXAONE-4.0-32B"
NEMOTRON = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"


def thinker(name: str, kind: str) -> Config:
    return {"thinker_config": {"audio_config": SOME, "text_config": config(name, model_type=kind)}}


def seeing(name: str, **changes: Any) -> Config:
    return {"vision_config": SOME, "text_config": config(name, **changes)}


NESTED = [
    (OMNI, "Qwen/Qwen3-30B-A3B", ["vision tower", "audio tower"]),
    (thinker("Qwen/Qwen2.5-7B", "qwen2_5_omni_text"), "Qwen/Qwen2.5-7B", ["audio tower"]),
    (thinker("Qwen/Qwen3-0.6B", "qwen3_asr_text"), "Qwen/Qwen3-0.6B", ["audio tower"]),
    (seeing(MISTRAL), MISTRAL, ["vision tower"]),
    (seeing(GLM, model_type="glm4v_moe_text"), GLM, ["vision tower"]),
    (seeing(EXAONE, model_type="exaone4_5_text"), EXAONE, ["vision tower"]),
    (
        {"vision_config": SOME, "sound_config": SOME, "llm_config": config(NEMOTRON)},
        NEMOTRON,
        ["vision tower", "sound tower"],
    ),
]
"""A config, the model that its language model is, and its towers."""


@pytest.mark.parametrize(("outer", "inner", "towers"), NESTED, ids=[inner for _, inner, _ in NESTED])
def test_a_language_model_is_the_same_inside_and_alone(outer: Config, inner: str, towers: list[str]) -> None:
    found, alone = TrainingJob.from_hf(outer).model, TrainingJob.from_hf(inner).model
    assert count_parameters(found).total == count_parameters(alone).total
    assert [tower.name for tower in found.towers] == towers


def test_glm_45v_has_no_mtp_layer() -> None:
    assert TrainingJob.from_hf(GLM).model.mtp == 1
    assert TrainingJob.from_hf(seeing(GLM, model_type="glm4v_moe_text")).model.mtp == 0


def test_what_speaks_is_named_as_not_counted() -> None:
    assert (
        "talker_config is not counted: Megatron-Bridge trains what reads and writes text"
        in convert(OMNI, "x", "t").warnings
    )


def test_a_pattern_as_a_list_of_kinds_is_the_pattern() -> None:
    name = NEMOTRON
    kinds = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    listed = config(name)
    del listed["num_hidden_layers"]
    listed["layers_block_type"] = [kinds[symbol] for symbol in listed.pop("hybrid_override_pattern")]
    assert (
        TrainingJob.from_hf(listed).model.hybrid_layer_pattern == TrainingJob.from_hf(name).model.hybrid_layer_pattern
    )
    listed["layers_block_type"][-1] = "conv"
    with pytest.raises(ConfigError, match=r"has the kind 'conv'; known are mamba, attention, mlp or moe"):
        TrainingJob.from_hf(listed)
    del listed["layers_block_type"]
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        TrainingJob.from_hf(listed)


@pytest.mark.parametrize(
    "broken", [{"thinker_config": 3}, {"thinker_config": {"text_config": []}}, {"text_config": "x"}]
)
def test_an_inner_key_that_holds_no_object_is_refused(broken: Config) -> None:
    with pytest.raises(ConfigError, match="must be an object"):
        convert(broken, "x", "t")


def test_two_pools_of_experts_are_refused_with_the_reason() -> None:
    text = config("baidu/ERNIE-4.5-21B-A3B-PT")
    del text["model_type"]
    with pytest.raises(UnsupportedError, match="two pools of experts"):
        convert({"model_type": "ernie4_5_vl_moe", "text_config": text}, "x", "t")


def test_a_verdict_says_which_tower_it_is_without() -> None:
    found = estimate(TrainingJob.from_hf(OMNI, num_gpus=8, ep=8))
    said = "the language model alone: its vision tower and its audio tower are not counted"
    assert f"({said}), " in verdict_text(found.verdict(), found)
    assert (
        said
        in verdict_text(found.verdict(), found).partition(":")[0]
        + ":"
        + verdict_text(found.verdict(), found).partition(":")[2]
    )
    assert document(found)["verdict"]["not_counted"] == said
    assert said in json.dumps(estimate_summary(found))
    assert found.table()[0]["not_counted"] == said


def test_a_model_without_towers_lacks_nothing() -> None:
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-0.6B", num_gpus=1))
    assert document(found)["verdict"]["not_counted"] is None
    assert "counted" not in verdict_text(found.verdict(), found)


def test_behind_a_tower_the_whole_embedding_stays() -> None:
    """The rows of the tower are put into the whole output, of which each rank's part is a view."""
    text = config("Qwen/Qwen3-0.6B")
    alone, behind = (
        estimate(TrainingJob.from_hf(one, num_gpus=2, tp=2, seq_length=1024)).stages[0].rank.plans[0].saved_bytes
        for one in (text, seeing("Qwen/Qwen3-0.6B"))
    )
    assert behind - alone == 1024 * 1024 * 2 // 2
