"""Gemma 4 without experts (E2B, E4B, 31B): an embedding for every layer, keys and values of earlier layers (Megatron-Bridge's classes)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob, count_parameters, estimate
from megatron_memory_estimator.inputs.catalog import entries

NAME = "google/gemma-4-E4B"
S = 4096
CONFIG = entries()[NAME]["config"]["text_config"]
LARGE = {
    **CONFIG, "attention_k_eq_v": True, "hidden_size": 5376, "hidden_size_per_layer_input": 0, "intermediate_size": 21504,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10, "num_attention_heads": 32, "num_hidden_layers": 60,
    "num_global_key_value_heads": 4, "num_key_value_heads": 16, "num_kv_shared_layers": 0, "sliding_window": 1024,
}  # fmt: skip
"""Gemma 4 31B."""


def made(config: Any = NAME, **settings: Any) -> TrainingJob:
    return TrainingJob.from_hf(config, 8, **settings)


def layers(**settings: Any) -> dict[str, int]:
    plan = estimate(made(**settings)).stages[0].rank.plans[0]
    return {run.unit.name.partition("@")[2]: run.trace.saved_bytes for run in plan.runs if run.first_layer >= 0}


def test_the_last_of_each_shape_holds_keys_that_later_layers_take() -> None:
    names = made().model.layer_variants or ()
    assert names[22:25] == ("sliding_stored", "full_stored", "sliding_shared")
    assert set(names[24:]) == {"sliding_shared", "full_shared"}
    assert not {name for name in names[:22] if "_" in name}


def test_a_layer_that_takes_keys_keeps_none_of_its_own() -> None:
    found = layers()
    assert found["sliding_stored"] == found["sliding"]
    # key and value before and behind their norms, the key's rotation, fp32 copies and statistics
    assert found["sliding"] > found["sliding_shared"]
    assert found["full"] - found["full_shared"] > found["sliding"] - found["sliding_shared"]


def test_stored_keys_and_values_stay_until_the_next_forward() -> None:
    """Key and value of 2 groups, of heads of 256 and of 512."""
    workspaces = estimate(made()).stages[0].rank.workspaces
    held = sum(w.nbytes for w in workspaces if w.name.endswith("for later layers"))
    assert held == 2 * S * 2 * 2 * (256 + 512)


def test_a_model_without_inputs_of_its_layers_has_no_second_embedding() -> None:
    model = made(LARGE).model
    assert model.per_layer_embed_dim is None
    assert count_parameters(model).total == 30_697_345_280  # transformers 5.23, Gemma4ForCausalLM
    assert not {name for name in model.layer_variants or () if "_" in name}
    assert estimate(made(LARGE, tensor_model_parallel_size=8)).peak_stage.peak_allocated_bytes > 0


def test_shared_layers_are_twice_as_wide_where_the_config_says_so() -> None:
    wide = made({**CONFIG, "use_double_wide_mlp": True}).model
    assert dict(dict(wide.variants)["full_shared"])["ffn_hidden_size"] == 2 * 10240
    assert "ffn_hidden_size" not in dict(dict(wide.variants)["full_stored"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pipeline_model_parallel_size": 2}, "gemma4_dense excludes pipeline_model_parallel_size=2; use pipeline_model_parallel_size=1"),
        ({"transformer_impl": "transformer_engine"}, "gemma4_dense is made of Megatron-Core's local modules"),
        ({"recompute_granularity": "full", "recompute_method": "uniform"}, "gemma4_dense excludes recompute_granularity=full"),
        ({"recompute_granularity": "selective", "recompute_modules": ("mlp",)}, "not modelled for Gemma 4 without experts"),
        ({"context_parallel_size": 2}, "context_parallel_size=2 needs transformer_impl=transformer_engine"),
        ({"mtp_num_layers": 1}, "gemma4_dense excludes mtp_num_layers"),
    ],
    ids=str,
)  # fmt: skip
def test_what_it_does_not_have_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EstimatorError, match=sentence):
        estimate(made(**settings))


@pytest.mark.parametrize("change", [{"layer_types": ["full_attention"]}, {"num_kv_shared_layers": 42}])
def test_a_config_whose_layers_do_not_add_up_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="layer_types"):
        made({**CONFIG, **change})
