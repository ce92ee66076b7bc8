"""Names and folders of models in run files, and the catalogue's entries that they mean."""

from __future__ import annotations

import pytest

from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.inputs.model_names import LANGUAGE_PART, SAME, Named, catalogued, named

HASH = "0123456789abcdef0123456789abcdef01234567"
VARIANTS = {
    "Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    "Qwen3-8B-Base-mcore": "Qwen/Qwen3-8B",
    "Qwen/Qwen3-4B-Instruct-2507-FP8": "Qwen/Qwen3-4B",
    "Qwen/Qwen2.5-14B-Instruct-1M": "Qwen/Qwen2.5-14B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mistralai/Mistral-7B-Instruct-v0.3": "mistralai/Mistral-7B-v0.3",
    "LLM-Research/Meta-Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "unsloth/DeepSeek-V3-0324-BF16": "deepseek-ai/DeepSeek-V3",
}
FOLDERS = {
    "/root/hub/models/Qwen/Qwen2___5-7B-Instruct": "Qwen/Qwen2.5-7B",
    f"/hf/hub/models--Qwen--Qwen3-8B/snapshots/{HASH}": "Qwen/Qwen3-8B",
    "$HOME/out/Qwen3-8B/global_step_40/actor/huggingface/": "Qwen/Qwen3-8B",
    "(unknown)/Qwen3-30B-A3B_torch_dist": "Qwen/Qwen3-30B-A3B",
}
TWINS = {
    "Qwen/Qwen2-7B-Instruct": "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-Coder-32B-Instruct": "Qwen/Qwen2.5-32B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3.1-Base": "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "Qwen/Qwen2.5-14B",
    "zai-org/GLM-4.6": "zai-org/GLM-4.5",
    "moonshotai/Kimi-K2-Base": "moonshotai/Kimi-K2-Instruct",
}
UNKNOWN = (
    "Qwen/Qwen3-8B-mine", "/models", "/data/base", "$MODEL", "Qwen/Qwen3-VL-9B", "OpenGVLab/InternVL3-8B", "zai-org/GLM-4.7-FlashX",
    "Qwen/Qwen3-Omni-30B-A3B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B-of-mine", f"/hub/snapshots/{HASH}",
)  # fmt: skip


@pytest.mark.parametrize(("name", "entry"), [*VARIANTS.items(), *FOLDERS.items(), *TWINS.items()])
def test_names_mean_entries(name: str, entry: str) -> None:
    assert named(name) == Named(entry)
    assert catalogued(name) == entry


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_names_mean_nothing(name: str) -> None:
    assert named(name) is None


def test_models_with_towers_mean_their_language_model() -> None:
    assert named("Qwen/Qwen3-VL-4B-Instruct") == Named("Qwen/Qwen3-4B", has_towers=True)
    assert named("/m/Qwen3-VL-235B-A22B-Instruct") == Named("Qwen/Qwen3-235B-A22B", has_towers=True)
    assert named("ZhipuAI/GLM-4.6V") == Named("zai-org/GLM-4.5-Air", has_towers=True)


def test_an_entry_with_towers_has_them_itself() -> None:
    assert named("/m/Qwen3-VL-30B-A3B-Thinking") == Named("Qwen/Qwen3-VL-30B-A3B-Instruct")
    assert named("/m/Qwen2.5-VL-7B") == Named("Qwen/Qwen2.5-VL-7B-Instruct")
    assert named("ZhipuAI/GLM-4.5V") == Named("zai-org/GLM-4.5V")
    assert load("Qwen/Qwen3-VL-30B-A3B-Instruct").towers


def test_no_twin_is_an_entry_itself() -> None:
    """An entry of the catalogue is taken as it stands."""
    for entry in entries():
        assert named(entry) == Named(entry)
    assert not set(SAME) & set(LANGUAGE_PART)
