"""Configs with odd values: of every family, a config with one to three of them is read or refused in one sentence, and soon."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.errors import EstimatorError
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf.families import FAMILIES

BASE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "intermediate_size": 128, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
}  # fmt: skip
ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = {
    "kv_lora_rank": 16, "q_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
EXTRA: dict[str, dict[str, Any]] = {
    "nemotron": {"hidden_act": "relu2", "partial_rotary_factor": 0.5},
    "exaone4": {"layer_types": ["full_attention"] * 2},
    "gemma": {},
    "dots1": ROUTED,
    "hy_v3": EXPERTS,
    "sarvam_mla": {**EXPERTS, **LATENT, "q_lora_rank": None},
    "glm4v_moe_text": ROUTED,
    "exaone4_5_text": {"mtp_share_layers": True},
    "glm4_moe_lite": {**ROUTED, **LATENT},
}


def _examples() -> dict[str, dict[str, Any]]:
    """A config of each family: of the catalogue where it has one."""
    found = {kind: {**BASE, "model_type": kind, **more} for kind, more in EXTRA.items()}
    for entry in entries().values():
        config = entry["config"]
        kind = (config.get("text_config") or config).get("model_type", config["model_type"])
        if len(json.dumps(found.get(kind, config))) >= len(json.dumps(config)):
            found[kind] = config
    same = {id(function): kind for kind, function in FAMILIES.items() if kind in found}
    for kind, function in FAMILIES.items():
        if kind not in found:
            inner = found[same[id(function)]]
            found[kind] = {**(inner.get("text_config") or inner), "model_type": kind}
    return found


CONFIGS = _examples()

ODD: list[Any] = [
    0, 1, -1, None, True, False, "x", "", [], {}, 10**9, 1.5, 0.0, float("nan"), float("inf"), -0.5, [[1]], [1], ["x"],
    [None, 2], {"a": 1}, 10**30, 10**400, 2**40, 7, [0] * 50, 1e300, "silu", "M*E-",
]  # fmt: skip


@st.composite
def odd_configs(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    config = copy.deepcopy(CONFIGS[kind])
    inner = config.get("text_config") or config
    for _ in range(draw(st.integers(1, 3))):
        level = draw(st.sampled_from([config, inner]))
        name = draw(st.sampled_from(sorted(level)))
        if draw(st.booleans()) and draw(st.booleans()):
            del level[name]
        else:
            level[name] = draw(st.sampled_from(ODD))
        if not level:
            break
    return config


def test_every_family_has_an_example() -> None:
    assert set(FAMILIES) <= set(CONFIGS)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_odd_config_is_read_or_refused_within_a_second(kind: str, data: st.DataObject) -> None:
    config = data.draw(odd_configs(kind))
    start = time.process_time()
    try:
        TrainingJob.from_hf(config)
    except EstimatorError as error:
        said = str(error)
    else:
        said = "read"
    assert said and "\n" not in said
    assert time.process_time() - start < 1


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_billion_layers_are_refused_before_a_list_is_made(kind: str) -> None:
    config = copy.deepcopy(CONFIGS[kind])
    inner = config.get("text_config") or config
    for name in ("num_hidden_layers", "n_layer"):
        if name in inner:
            inner[name] = 10**9
    start = time.process_time()
    with pytest.raises(EstimatorError, match="at most 2000"):
        TrainingJob.from_hf(config)
    assert time.process_time() - start < 0.5


ODD_FAMILIES: list[tuple[str, dict[str, Any], str]] = [
    ("allenai/OLMo-2-1124-7B", {"num_attention_heads": 0}, "num_attention_heads"),
    ("CohereLabs/c4ai-command-r-v01", {"num_attention_heads": 0}, "num_attention_heads"),
    ("openai/gpt-oss-20b", {"swiglu_limit": "x"}, "swiglu_limit"),
    ("openai/gpt-oss-20b", {"swiglu_limit": [1]}, "swiglu_limit"),
    ("openai/gpt-oss-20b", {"swiglu_limit": 10**400}, "swiglu_limit"),
    (
        "openai/gpt-oss-20b",
        {"layer_types": ["full_attention"]},
        "layer_types in config.json has 1 entries for 24 layers",
    ),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": ["x"] * 80}, "block_configs"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": [None] * 80}, "block_configs"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": None}, "block_configs"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": [{"attention": 1}] * 80}, "attention"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": [{"ffn": {"ffn_mult": "x"}}] * 80}, "ffn_mult"),
    ("zai-org/GLM-4.5", {"num_nextn_predict_layers": 10**9}, "multi-token"),
    ("deepseek-ai/DeepSeek-V3", {"moe_layer_freq": [1, 2] * 30 + [1]}, "moe_layer_freq"),
    ("Qwen/Qwen3-8B", {"partial_rotary_factor": "x"}, "partial_rotary_factor"),
]


@pytest.mark.parametrize(("name", "change", "word"), ODD_FAMILIES)
def test_an_odd_value_is_refused_in_one_sentence(name: str, change: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        TrainingJob.from_hf({**entries()[name]["config"], **change})
