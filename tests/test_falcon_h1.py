"""Falcon-H1: Mamba-2 and attention side by side behind one norm, on a residual stream in fp32 (Megatron-Bridge's FalconH1Layer)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.tape.ops import flattened

SMALL = "tiiuae/Falcon-H1-0.5B-Instruct"
B, S, H, FFN, N, D, INNER, STATE, HEADS = 2, 2048, 1024, 2048, 8, 64, 1536, 128, 24


def saved(**settings: Any) -> int:
    job = TrainingJob.from_hf(SMALL, 1, seq_length=S, micro_batch_size=B, **settings)
    plan = estimate(job).stages[0].rank.plans[0]
    return next(run.trace.saved_bytes for run in plan.runs if run.first_layer >= 0)


def test_a_layer_keeps_the_tensors_of_the_class() -> None:
    tokens, packed = S * B, 2 * INNER + 2 * STATE + HEADS
    norms = 2 * (2 * tokens * H + 4 * tokens) + 2 * tokens * H  # inputs, statistics, and the normed copy of linear_fc1
    mamba = 2 * tokens * H + 2 * packed + 2 * tokens * packed + 2 * 2 * tokens * INNER + 3 * 4 * HEADS
    rope = 4 * 2 * S * D
    attention = 2 * tokens * H + rope + 4 * 2 * tokens * N * D + 2 * B * N * S * S
    mlp = 4 * 2 * tokens * FFN
    assert saved(attention_backend="unfused") == norms + mamba + attention + mlp
    assert saved() == saved(attention_backend="unfused")


def test_the_norm_of_the_gated_output_keeps_its_input() -> None:
    more = saved(mamba_rmsnorm=True) - saved()
    assert more == 2 * S * B * INNER + 4 * S * B


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bias_activation_fusion": True}, "falcon_h1 needs bias_activation_fusion off"),
        ({"recompute_granularity": "full"}, "recomputes no layer"),
        ({"transformer_impl": "local"}, "made of TransformerEngine's modules"),
        ({"tensor_model_parallel_size": 2}, "mamba_num_groups=1 is not divisible by tensor_model_parallel_size=2"),
        ({"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 3}, "excludes virtual pipeline stages"),
        ({"pipeline_model_parallel_size": 4, "num_layers_in_first_pipeline_stage": 6}, "divides the layers evenly"),
        ({"context_parallel_size": 2}, "unfused does not support context parallelism"),
        ({"cpu_offloading_num_layers": 2}, "offloads no layer"),
    ],
    ids=str,
)  # fmt: skip
def test_what_its_stack_does_not_do_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((LayoutError, UnsupportedError), match=sentence):
        estimate(TrainingJob.from_hf(SMALL, 8, **settings))


def test_query_heads_divide_over_groups() -> None:
    with pytest.raises(LayoutError, match="num_attention_heads=8 is not divisible by num_query_groups=3"):
        estimate(TrainingJob.from_hf({**entries()[SMALL]["config"], "num_key_value_heads": 3}, 1))


def test_the_mlp_launches_four_functions_behind_its_first_linear() -> None:
    """FalconH1MLP.forward: the gate times its multiplier, the activation, the other half plus glu_linear_offset, their product."""
    c = context_of(TrainingJob.from_hf(SMALL, 1, seq_length=S))
    ops = flattened(layer_unit(c, c.model.kinds[0]).unit.items)
    assert sum(op.calls for op in ops if op.name in ("mlp.scale_gate", "mlp.activation")) == 4


@pytest.mark.parametrize(
    "other", [{"parallel_attention": True}, {"num_moe_experts": 4}, {"mtp_num_layers": 1}], ids=str
)
def test_it_excludes_other_layers(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="excludes"):
        TrainingJob.from_hf(SMALL, 8, **other)


def test_biases_are_refused_by_name_and_the_code_that_trains_it_is_said() -> None:
    with pytest.raises(UnsupportedError, match="falcon_h1 with biases"):
        TrainingJob.from_hf({**entries()[SMALL]["config"], "projectors_bias": True}, 8)
    assert any("FalconH1ModelProvider" in warning for warning in TrainingJob.from_hf(SMALL, 8).warnings)
