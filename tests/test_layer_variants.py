"""Layers of other shapes than the model's: how they are said, refused, and what their layers are made of."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.cli.given import parsed
from megatron_memory_estimator.job.model import Model
from megatron_memory_estimator.modules.kinds import kinds_of, shapes_of
from megatron_memory_estimator.modules.layers import layer_unit, mtp_unit
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.tape.ops import flattened

SMALL: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 4, "ffn_hidden_size": 512, "vocab_size": 1024,
    "add_bias_linear": False, "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": "silu", "seq_length": 256,
    "micro_batch_size": 1, "gpu": "H100", "kv_channels": 32,
}  # fmt: skip
WIDE = {"wide": {"num_attention_heads": 16, "ffn_hidden_size": 1024}}
PLACES = ["base", "wide", "", "wide"]


def job(num_gpus: int = 1, **settings: Any) -> TrainingJob:
    return TrainingJob.from_config({**SMALL, **settings}, num_gpus)


def sizes(made: TrainingJob, kind: str) -> dict[str, int]:
    return {p.name: p.numel for p in layer_unit(context_of(made), kind).params}


def test_a_layer_has_the_shape_of_its_variant() -> None:
    made = job(variants=WIDE, layer_variants=PLACES)
    assert made.model.kinds == ("gqa+dense", "gqa+dense@wide", "gqa+dense", "gqa+dense@wide")
    assert kinds_of("gqa+dense@wide") == kinds_of("gqa+dense")
    one, other = sizes(made, "gqa+dense"), sizes(made, "gqa+dense@wide")
    assert other["self_attention.linear_qkv.weight"] - one["self_attention.linear_qkv.weight"] == 8 * 32 * 256
    assert other["mlp.linear_fc1.weight"] == 2 * one["mlp.linear_fc1.weight"]
    assert [shape.ffn for shape, _ in shapes_of(made.model)] == [512, 1024]


def test_a_model_of_equal_layers_is_that_of_its_variant_throughout() -> None:
    mixed = job(variants=WIDE, layer_variants=["wide"] * 4)
    plain = job(num_attention_heads=16, ffn_hidden_size=1024)
    assert estimate(mixed).peak_stage.peak_allocated_bytes == estimate(plain).peak_stage.peak_allocated_bytes


def test_an_mtp_layer_may_be_dense_where_the_last_layer_has_experts() -> None:
    experts = {"num_moe_experts": 4, "moe_ffn_hidden_size": 128, "mtp_num_layers": 1}
    dense = job(**experts, variants={"mtp": {"num_moe_experts": None}}, mtp_layer_variant="mtp")
    assert dense.model.kinds == ("gqa+moe",) * 4 and dense.model.mtp_kinds == ("gqa+dense@mtp",)
    names = [p.name for p in mtp_unit(context_of(dense), owns_embedding=False).params]
    assert "mtp.layers.0.layers.0.mlp.linear_fc1.weight" in names and not any("experts" in name for name in names)
    assert not any(".experts." in p.name for p in layer_unit(context_of(dense), "gqa+dense@mtp").params)


def test_a_block_that_is_nothing_keeps_nothing() -> None:
    made = job(
        variants={"none": {"attention_block": "no_op", "mlp_block": "no_op"}}, layer_variants=["base", "none"] * 2
    )
    runs = estimate(made).stages[0].rank.plans[0].runs
    empty = [run for run in runs if run.unit.name == "no_attention+no_mlp@none"]
    assert empty and all(run.trace.saved_bytes == 0 and not run.params for run in empty)


def test_a_linear_in_the_place_of_attention_has_the_names_of_megatron_core() -> None:
    made = job(
        2, tensor_model_parallel_size=2, variants={"few": {"attention_block": "linear"}}, layer_variants=["few"] * 4
    )
    params = layer_unit(context_of(made), "linear_attention+dense@few").params
    assert [(p.name, p.numel) for p in params[:2]] == [
        ("self_attention.layer_norm_weight", 256), ("self_attention.weight", 256 * 128)
    ]  # fmt: skip


ORDER = {
    "sandwich": [
        "self_attention.linear_proj.weight", "self_attention.linear_proj.post_layernorm.weight",
        "self_attention.linear_qkv.layer_norm_weight", "self_attention.linear_qkv.weight", "mlp.linear_fc1.layer_norm_weight",
        "mlp.linear_fc1.weight", "mlp.linear_fc2.weight", "mlp.linear_fc2.post_layernorm.weight",
    ],
    "post": [
        "self_attention.linear_proj.weight", "self_attention.linear_proj.post_layernorm.weight", "self_attention.linear_qkv.weight",
        "mlp.linear_fc1.weight", "mlp.linear_fc2.weight", "mlp.linear_fc2.post_layernorm.weight",
    ],
}  # fmt: skip


@pytest.mark.parametrize("place", ORDER)
def test_norms_are_where_they_are_placed_in_the_order_of_registration(place: str) -> None:
    made = job(norm_placement=place)
    assert list(sizes(made, "gqa+dense")) == ORDER[place]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"layer_variants": ["wide"] * 4}, "variants has no 'wide'"),
    ({"variants": WIDE, "layer_variants": ["wide"]}, "1 entries for num_layers=4"),
    (
        {"variants": {"a": {"hidden_size": 128}}, "layer_variants": ["a"] * 4},
        "changes hidden_size, which all layers share",
    ),
    ({"variants": {"a": {"num_moe_experts": 8}}, "layer_variants": ["a"] * 4}, "changes num_moe_experts"),
    ({"variants": {"a": {"ffn_hiden_size": 128}}, "layer_variants": ["a"] * 4}, "Did you mean"),
    ({"variants": {"a": {"ffn_hidden_size": "x"}}, "layer_variants": ["a"] * 4}, "ffn_hidden_size"),
    (
        {"variants": {"a": {"num_query_groups": 0}}, "layer_variants": ["a"] * 4},
        "num_query_groups=0 must be at least 1",
    ),
    ({"variants": [1]}, "must be an object of objects"),
    ({"variants": {"base": {}}}, "a word other than base"),
    ({"variants": {"a b": {}}}, "a word other than base"),
    ({"variants": {"a": 1}}, "with an object of settings"),
    ({"variants": WIDE, "mtp_layer_variant": "x"}, "variants has no"),
    ({"norm_placement": "post", "add_bias_linear": True}, "norm_placement=post excludes add_bias_linear"),
    ({"norm_placement": "sandwich", "num_moe_experts": 4}, "excludes num_moe_experts"),
    ({"attention_block": "no_op", "multi_latent_attention": True}, "excludes multi_latent_attention"),
    ({"qk_layernorm": True, "qk_layernorm_scope": "projection"}, "num_query_groups=4 to be num_attention_heads=8"),
    (
        {"qk_layernorm": True, "qk_layernorm_scope": "sharded_projection", "normalization": "LayerNorm"},
        "needs normalization RMSNorm",
    ),
]


@pytest.mark.parametrize(("settings", "said"), WRONG)
def test_what_no_layer_can_be_is_refused_in_one_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as found:
        job(**settings)
    assert "\n" not in str(found.value)


RULES: list[tuple[dict[str, Any], str]] = [
    ({"tensor_model_parallel_size": 2, "qk_layernorm": True, "num_query_groups": 8, "qk_layernorm_scope": "projection"},
     "tensor_model_parallel_size=1, not 2: its norm is as wide as all heads"),
    ({"context_parallel_size": 2, "core_attention": "flex"}, "=flex excludes context_parallel_size=2; use context_parallel_size=1"),
    ({"context_parallel_size": 2, "core_attention": "local"}, "=local excludes context_parallel_size=2; use context_parallel_size=1"),
    ({"context_parallel_size": 2, "value_channels": 16}, "value_channels=16 excludes context_parallel_size=2; use context_parallel_size=1"),
    ({"tensor_model_parallel_size": 8, "value_channels": 16}, "at most num_query_groups=4; use tensor_model_parallel_size 1, 2 or 4"),
    ({"context_parallel_size": 2, "variants": {"a": {"sliding_window": 64}}, "layer_variants": ["a", "", "", ""]},
     "cp_comm_type p2p does not exist for sliding windows; use a2a or all_gather"),
    ({"transformer_impl": "local", "norm_placement": "post"}, "norm_placement=post needs transformer_impl=transformer_engine"),
    ({"activation_func": "fast_gelu", "bias_activation_fusion": True}, "bias_activation_fusion excludes activation_func=fast_gelu"),
    ({"final_logit_softcapping": 30.0, "loss_function": "fused"}, "final_logit_softcapping excludes loss_function fused"),
    ({"tensor_model_parallel_size": 8, "variants": {"a": {"num_attention_heads": 12}}, "layer_variants": ["a", "", "", ""]},
     "num_attention_heads=12 is not divisible by tensor_model_parallel_size=8"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), RULES)
def test_what_the_real_classes_refuse_is_refused_with_a_fix(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError) as found:
        estimate(job(8, **settings))
    assert said in str(found.value)


def test_windows_may_meet_a_ring_in_layers_without_them() -> None:
    variants = {"variants": {"a": {"sliding_window": 64}}, "layer_variants": ["a", "", "a", ""]}
    made = job(2, context_parallel_size=2, cp_comm_type=("a2a", "p2p", "a2a", "p2p"), **variants)
    assert estimate(made).peak_stage.peak_allocated_bytes > 0


def test_a_window_costs_less_time_and_the_same_memory() -> None:
    from megatron_memory_estimator.throughput import throughput

    plain, windowed = (estimate(job(1, seq_length=65536, sliding_window=window)) for window in (None, 512))
    assert plain.peak_stage.peak_allocated_bytes == windowed.peak_stage.peak_allocated_bytes
    assert throughput(windowed).step < throughput(plain).step


def test_variants_are_words_of_a_command_line_too() -> None:
    import dataclasses

    fields = {field.name: field for field in dataclasses.fields(Model)}
    assert parsed(fields["variants"], '{"wide": {"ffn_hidden_size": 1024}}') == {"wide": {"ffn_hidden_size": 1024}}
    assert parsed(fields["layer_variants"], "base,wide") == ("base", "wide")
    with pytest.raises(ConfigError, match="must be a JSON object"):
        parsed(fields["variants"], "wide")


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (2, False), (2, True)])
def test_what_replaces_an_mlp_hands_on_whole_rows(tp: int, sequence_parallel: bool) -> None:
    """Its columns are split over tp and gathered for the residual stream; with sequence parallelism padded, summed and scattered
    (Megatron-LM `heterogeneous/linear_replacements.py`)."""
    made = job(
        tp, tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel, variants={"few": {"mlp_block": "linear"}},
        layer_variants=["few"] * 4,
    )  # fmt: skip
    ops = [
        op
        for op in flattened(layer_unit(context_of(made), "gqa+linear_mlp@few").unit.items)
        if op.name.split(".")[0] == "mlp"
    ]
    whole = 2 * made.training.seq_length * made.training.micro_batch_size * made.model.hidden_size
    assert [t.nbytes for t in ops[-1].writes] == [whole // (tp if sequence_parallel else 1)]
    behind = [(send.kind, send.nbytes) for op in ops[1:] for send in op.sends]
    assert behind == ([("reduce_scatter" if sequence_parallel else "all_gather", whole)] if tp > 1 else [])
