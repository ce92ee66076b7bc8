"""Keys of a config that no mapping reads: named in one warning, or refused where a model is read on its looks alone."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, UnsupportedError
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf import load
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.inputs.hf.families import FAMILIES

from .test_hf_models import COUNTS
from .test_odd_configs import CONFIGS

Config = dict[str, Any]
LLAMA: Config = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 128, "vocab_size": 1000,
}  # fmt: skip


def unread(config: Config) -> list[str]:
    return [warning for warning in convert(config, "x", "t").warnings if "nothing here reads" in warning]


@pytest.mark.parametrize("name", entries())
def test_every_key_of_the_catalogue_is_known(name: str) -> None:
    """Of a model that is refused by name, nothing is read."""
    if name not in COUNTS:
        with pytest.raises(UnsupportedError):
            load(name)
        return
    assert not [warning for warning in load(name).warnings if "reads" in warning or "is read" in warning]


def test_keys_that_nothing_reads_are_named_once_with_the_nearest_that_is_read() -> None:
    config = {**LLAMA, "rope_tetha": 1, "attention_biass": True, "foo": "bar", "nothing": None, "off": False, "none": 0}
    assert unread(config) == [
        "config.json has keys that nothing here reads: attention_biass (did you mean attention_bias?), foo"
    ]


def test_a_misspelt_shape_is_refused_with_the_one_that_is_meant() -> None:
    said = r"shapes that nothing here reads: head_dimm \(did you mean head_dim\?\), num_experts; correct them, or take out those"
    with pytest.raises(ConfigError, match=said):
        convert({**LLAMA, "head_dimm": 32, "num_experts": 8, "foo": "bar"}, "x", "t")


NEW: list[Config] = [
    {"attn_extra_heads": 3}, {"mlp_extra_dim": 8}, {"num_extra_layers": 1}, {"d_inner_attention": 64},
    {"other_attention": {"num_heads": 2}},
]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_new_shape_in_a_config_of_a_known_family_is_refused_and_anything_else_is_named(kind: str) -> None:
    base = CONFIGS[kind]
    inner = base.get("text_config") or base

    def with_key(more: Config) -> Config:
        return {**base, "text_config": {**inner, **more}} if "text_config" in base else {**base, **more}

    layers = inner.get("num_hidden_layers", 0)
    for more in (*NEW, *([{"per_layer": [*range(layers)]}] if layers > 1 else [])):
        with pytest.raises(ConfigError, match=rf"shapes that nothing here reads: {next(iter(more))}"):
            convert(with_key(more), "x", "t")
    for plain in ({"flavour": "sweet"}, {"options": {"sweet": True}}, {"switch_it": True}, {"some": ["a", "b"]}):
        assert unread(with_key(plain)) == [f"config.json has keys that nothing here reads: {next(iter(plain))}"]


def test_of_many_unread_keys_some_are_named() -> None:
    assert "and 94 more" in unread({**LLAMA, **{f"key{i}": True for i in range(100)}})[0]


def test_common_keys_of_published_files_are_known() -> None:
    ignored = {
        "rope_theta": 1e4, "rms_norm_eps": 1e-6, "bos_token_id": 1, "initializer_range": 0.02, "transformers_version": "5",
        "auto_map": {"a": "b"}, "attention_dropout": 0.1, "rope_scaling": {"type": "yarn"}, "sliding_window": 4096,
        "quantization_config": {"bits": 4}, "use_cache": True, "layer_types": ["sliding_attention", "full_attention"],
        "_name_or_path": "x", "router_aux_loss_coef": 0.1, "num_beams": 1, "pretraining_tp": 1,
    }  # fmt: skip
    assert not unread({**LLAMA, **ignored})


def test_layer_types_of_another_family_are_named() -> None:
    assert "layer_types" in unread({**LLAMA, "layer_types": ["linear_attention", "full_attention"]})[0]


def test_a_key_that_contradicts_its_family_is_named() -> None:
    config = {**LLAMA, "model_type": "qwen3", "use_qk_norm": "never"}
    assert "use_qk_norm" in unread(config)[0]


def test_outside_a_nested_config_only_shapes_are_checked() -> None:
    outer = {"text_config": LLAMA, "vision_config": {"a": 1}, "foo": 1, "hidden_size": 64, "mm_hidden_size": 32}
    assert len(convert(outer, "x", "t").warnings) == 1
    warnings = convert({**outer, "num_hidden_layers": 3}, "x", "t").warnings
    assert "only text_config of config.json is read, and outside it stand num_hidden_layers" in warnings


@pytest.mark.parametrize("kind", ["llama", "brandnew", "qwen3", "nemotron"])
def test_a_missing_width_is_never_guessed(kind: str) -> None:
    config = {**LLAMA, "model_type": kind, "intermediate_sizee": 128}
    del config["intermediate_size"]
    with pytest.raises(ConfigError, match=r"intermediate_size \(it has intermediate_sizee\)"):
        convert(config, "x", "t")


def test_a_missing_width_of_experts_is_not_that_of_a_dense_layer() -> None:
    config = {
        **LLAMA,
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_sizee": 32,
    }
    with pytest.raises(ConfigError, match="it has moe_intermediate_sizee"):
        convert(config, "x", "t")


@pytest.mark.parametrize(
    ("name", "key", "class_reads_it"),
    [
        ("tiiuae/falcon-7b", "parallel_attn", True),
        ("openai/gpt-oss-20b", "attention_bias", True),
        ("Qwen/Qwen3-8B", "use_qk_norm", False),
        ("Qwen/Qwen2.5-7B", "attention_bias", False),
    ],
)
def test_a_key_that_says_no_of_what_the_family_has_is_refused_or_named(
    name: str, key: str, class_reads_it: bool
) -> None:
    """Classes of huggingface/transformers 5.12.1: Falcon's and gpt-oss' read the key, Qwen's have what it denies whatever it says."""
    config = {**entries()[name]["config"], key: False}
    if class_reads_it:
        with pytest.raises(
            UnsupportedError, match=f"{key}=False in config.json of {config['model_type']} is not modelled"
        ):
            TrainingJob.from_hf(config, 8)
        return
    warnings = TrainingJob.from_hf(config, 8).warnings
    assert f"{key}=False in config.json is read as True: no other value is modelled" in warnings
    assert "is read as" not in str(TrainingJob.from_hf({**config, key: True}, 8).warnings)


def test_a_key_that_says_nothing_of_what_the_family_lacks_is_no_contradiction() -> None:
    """MiMo-V2-Flash has no shared experts, and of MiniMax-M2's MTP layers nothing is built."""
    for name, keys in (
        ("XiaomiMiMo/MiMo-V2-Flash", {"n_shared_experts": 0}),
        ("MiniMaxAI/MiniMax-M2.5", {"use_mtp": False, "mtp_transformer_layers": 0}),
    ):
        config = {**entries()[name]["config"], **keys}
        assert "is read as" not in str(TrainingJob.from_hf(config, 8).warnings)
