"""Linear attention of plain linears: its weights are whole on every rank, and so are the tokens that it works on.

Figures by hand for Qwen3.5-35B-A3B: h 2048, 16 key heads and 32 value heads of 128.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, count_parameters, estimate
from megatron_memory_estimator.modules.layers import Declaration, layer_unit
from megatron_memory_estimator.planner.search import sampled
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.rank.rank import Rank, state_bytes
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.simulate import trace
from megatron_memory_estimator.tape.work import Gemm

from .test_planner import same_figures

H, KEYS, VALUES, HEADS = 2048, 16 * 128, 32 * 128, 32
WEIGHTS = (
    H * (2 * KEYS + VALUES) + H * VALUES + 2 * H * HEADS + 4 * (2 * KEYS + VALUES) + 2 * HEADS + 128 + VALUES * H + H
)
TOKENS = 4096


def job(variant: str, tp: int = 1, cp: int = 1, **more: Any) -> TrainingJob:
    settings = {
        "tensor_model_parallel_size": tp, "context_parallel_size": cp, "expert_model_parallel_size": 8, "seq_length": TOKENS,
        "sequence_parallel": tp > 1, "mtp_num_layers": None, "experimental_attention_variant": variant,
    }  # fmt: skip
    return TrainingJob.from_hf("Qwen/Qwen3.5-35B-A3B", num_gpus=16, **{**settings, **more})


def unit(variant: str, tp: int = 1, cp: int = 1, **more: Any) -> Declaration:
    return layer_unit(context_of(job(variant, tp, cp, **more)), variant)


@pytest.mark.parametrize("variant", ["gdn_whole", "gdn_whole_cp"])
@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (4, 2)])
def test_weights_are_whole_whatever_the_layout(variant: str, tp: int, cp: int) -> None:
    params = unit(variant, tp, cp).params
    assert sum(param.numel for param in params) == WEIGHTS == 33_720_512
    assert not any(dim.axes for param in params for dim in param.shape)


def test_a_model_has_as_many_weights_as_with_megatron_s_own() -> None:
    assert count_parameters(job("gdn_whole").model) == count_parameters(job("gdn").model)


def test_weights_gradients_and_states_of_thirty_layers_are_on_each_rank() -> None:
    """At tp 2 half of them more than Megatron-LM's split, but for two norms that it has whole too."""
    whole, split = (estimate(job(variant, 2)).stages[0].rank for variant in ("gdn_whole", "gdn"))
    more = sum(a.elements - b.elements for a, b in zip(whole.buffers, split.buffers, strict=True))
    assert more == 30 * (WEIGHTS - H - 128) // 2
    for part, each in (("weights", 2), ("gradients", 4)):
        assert _bytes(whole, part) - _bytes(split, part) == pytest.approx(each * more, rel=1e-3)
    states = state_bytes(whole, "first step") - state_bytes(split, "first step")
    assert states == pytest.approx(2 * 4 * more / 8, rel=1e-3)  # two moments over eight data-parallel ranks


def _bytes(rank: Rank, part: str) -> int:
    return sum(state.nbytes for state in rank.states if state.part == part)


KEPT = (
    2 * 4 * H + 4  # norm: fp32 copies of the input and of the normed rows, a number a row
    + 2 * (H + (2 * KEYS + VALUES))  # inputs of the four projections and of the convolution
    + 2 * 3 * VALUES  # normed queries and keys of all value heads, values
    + 2 * 64 * HEADS  # a block of the rule
    + 2 * 3 * VALUES  # its output, z, the input of out_proj
    + HEADS * (2 + 4 * 6)  # beta; softplus twice, the decay's sum, three norms
)  # fmt: skip
"""What real classes keep of a token: 90,948 bytes, found with saved_tensors_hooks on meta tensors of miles' Qwen3_5GatedDeltaNet and
Qwen3NextGatedDeltaNet behind transformers' Qwen3NextRMSNorm (miles 0.0.2, transformers 5.24.0, flash-linear-attention 0.6.0)."""


@pytest.mark.parametrize(
    ("variant", "tp", "cp", "tokens"),
    [
        ("gdn_whole", 1, 1, TOKENS),
        ("gdn_whole", 2, 1, TOKENS),
        ("gdn_whole", 2, 2, TOKENS),
        ("gdn_whole_cp", 2, 2, TOKENS // 2),
    ],
)
def test_what_a_layer_keeps_is_of_all_tokens(variant: str, tp: int, cp: int, tokens: int) -> None:
    assert KEPT == 90_948
    weight = 4 * H  # of the norm, in fp32
    assert trace(unit(variant, tp, cp).unit).saved_bytes == KEPT * tokens + weight


@pytest.mark.parametrize(("variant", "cp", "tokens"), [("gdn_whole", 2, TOKENS), ("gdn_whole_cp", 2, TOKENS // 2)])
def test_every_rank_does_the_work_of_all_its_tokens(variant: str, cp: int, tokens: int) -> None:
    products = [one for op in flattened(unit(variant, 2, cp).unit.items) for one in op.work if isinstance(one, Gemm)]
    assert {one.rows for one in products} == {tokens}
    assert sum(one.n * one.k for one in products) == H * (2 * KEYS + 3 * VALUES + 2 * HEADS)


def test_frozen_linears_keep_no_input_and_make_no_gradient() -> None:
    lora: dict[str, Any] = {"peft": "lora", "peft_dim": 8, "peft_target_modules": ("linear_qkv",)}
    assert trace(unit("gdn_whole", **lora).unit).saved_bytes == (KEPT - 2 * H - 2 * VALUES) * TOKENS + 4 * H


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"transformer_impl": "local", "attention_kernel": "local", "moe_grouped_gemm": False}, "layer-needs-te"),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, "layer-in-low-precision"),
        ({"fp32_residual_connection": True}, "whole-delta-net-in-fp32"),
    ],
)
def test_what_nobody_has_read_up_is_refused(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(LayoutError) as refused:
        estimate(job("gdn_whole", **settings))
    assert code in refused.value.codes


def test_heads_need_not_divide_over_ranks() -> None:
    """32 ranks for 16 key heads: no head is split."""
    assert "gdn_whole+moe" in job("gdn_whole", 2).model.kinds
    small = {"linear_num_key_heads": 1, "linear_num_value_heads": 1}
    estimate(job("gdn_whole", 2, **small))
    with pytest.raises(LayoutError, match="linear_num_key_heads"):
        estimate(job("gdn", 2, **small))


@pytest.mark.parametrize("variant", ["gdn_whole", "gdn_whole_cp"])
def test_points_of_a_space_have_the_bytes_of_estimate(variant: str) -> None:
    base = job(variant, gpu="H200", global_batch_size=128)
    space = Space(
        tensor_model_parallel_size=(1, 2, 4), context_parallel_size=(1, 2), expert_model_parallel_size=(4, 8),
        pipeline_model_parallel_size=(1, 2), micro_batch_size=(1, 2), recompute=("none", "layernorm", "full"),
        sequence_parallel=(True, False),
    )  # fmt: skip
    for plan in sampled(base, space, 12, seed=1):
        assert plan.job.layout.pipeline_model_parallel_layout is None
        same_figures(plan)


@pytest.mark.parametrize("tp", [1, 4, 8])
def test_wide_norms_of_all_ranks_are_whole_on_each(tp: int) -> None:
    """MiniMax-M2: 48 query heads and 8 groups of 128; the norms' inputs, and a number a token of each, are of all heads."""
    made = TrainingJob.from_hf(
        "MiniMaxAI/MiniMax-M2.5", 64, qk_layernorm_scope="gathered_projection", tensor_model_parallel_size=tp, sequence_parallel=tp > 1,
        expert_model_parallel_size=8, seq_length=TOKENS,
    )  # fmt: skip
    found = layer_unit(context_of(made), "gqa")
    norms = [param.numel for param in found.params if re.search(r"attention\.[qk]_layernorm", param.name)]
    assert norms == [6144, 1024]
    kept = [
        t for op in flattened(found.unit.items) for t in op.saves if re.search(r"attention\.[qk]_layernorm", t.name)
    ]
    assert sum(t.nbytes for t in kept if "input" in t.name) == TOKENS * 7168 * 2
    assert [t.nbytes for t in kept if "rsigma" in t.name] == [4 * TOKENS, 4 * TOKENS]


def test_wide_norms_of_groups_that_ranks_share_are_refused() -> None:
    wide = TrainingJob.from_hf(
        "Qwen/Qwen3-0.6B", 16, tensor_model_parallel_size=16, qk_layernorm_scope="gathered_projection"
    )
    with pytest.raises(LayoutError, match="num_query_groups"):
        estimate(wide)
