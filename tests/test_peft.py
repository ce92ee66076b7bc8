"""LoRA, canonical LoRA, DoRA: adapters' parameters and states, and what a frozen layer keeps, worked by hand.

Layer of `small_config`: hidden 1024, qkv 1536 (q 1024, k and v 256 each), ffn 4096 (gated: fc1 8192); four layers.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, Stage, estimate

from .helpers import small_job

LAYERS, H, QKV, FC1, F, VOCAB = 4, 1024, 1536, 8192, 4096, 32000
BASE = LAYERS * (QKV * H + H * H + FC1 * H + H * F + 2 * H) + H + VOCAB * H * 2
R = 16


def lora(rank: int = R) -> int:
    """linear_in [rank, in] and linear_out [out, rank] of the four linears."""
    return LAYERS * rank * ((H + QKV) + (H + H) + (H + FC1) + (F + H))


def stage(num_gpus: int = 1, **settings: Any) -> Stage:
    given = {"peft": "lora", "peft_dim": R, "share_embeddings_and_output_weights": False, **settings}
    return estimate(small_job(num_gpus, **given)).stages[0]


def parts(found: Stage) -> dict[str, int]:
    sums: dict[str, int] = {}
    for state in found.rank.states:
        sums[state.part] = sums.get(state.part, 0) + state.nbytes
    return sums


def saved(found: Stage) -> dict[str, int]:
    """What the first layer keeps, by name."""
    layer = next(run for run in found.rank.plans[0].runs if run.first_layer == 0)
    return {live.tensor.name: live.tensor.nbytes for live in layer.trace.saved}


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({}, lora()),
        ({"peft_dim": 64}, lora(64)),
        ({"peft_target_modules": ("linear_qkv",)}, LAYERS * R * (H + QKV)),
        ({"peft": "dora"}, lora() + LAYERS * (QKV + H + FC1 + H)),  # one magnitude per output
        ({"peft": "canonical_lora"}, LAYERS * R * ((3 * H + QKV) + (H + H) + (2 * H + FC1) + (F + H))),
    ],
)
def test_only_adapters_have_gradients_and_optimizer_state(settings: dict[str, Any], trained: int) -> None:
    """bf16 weights of everything; 4 bytes of gradient and 12 of optimizer for each adapter parameter."""
    found = parts(stage(**settings))
    assert found == {"weights": 2 * (BASE + trained), "gradients": 4 * trained, "optimizer": 12 * trained}


def test_parts_of_canonical_lora_are_the_rows_of_linear_qkv() -> None:
    """Values of 96 channels beside queries and keys of 64: 16 x 64, 4 x 64 and 4 x 96 rows, and each part reads all of hidden."""
    found = stage(peft="canonical_lora", peft_target_modules=("linear_q", "linear_k", "linear_v"), value_channels=96)
    assert parts(found)["gradients"] == 4 * LAYERS * R * (3 * H + 16 * 64 + 4 * 64 + 4 * 96)


def test_the_distributed_optimizer_shards_the_adapters_only() -> None:
    found = parts(stage(4, use_distributed_optimizer=True))
    assert found["weights"] == pytest.approx(2 * (BASE + lora()), rel=1e-4)
    assert found["optimizer"] == pytest.approx(12 * lora() / 4, rel=1e-2)


def test_adapters_are_sharded_over_tensor_parallel_ranks() -> None:
    """Every adapter weight has one side that tp divides."""
    found = parts(stage(2, tensor_model_parallel_size=2, sequence_parallel=True))
    assert found["gradients"] == 4 * lora() // 2


def test_frozen_linears_keep_no_input_but_adapters_keep_theirs() -> None:
    """1,024 tokens: the norm's output is kept by linear_in, the low-rank rows by linear_out; without a target, nothing is."""
    every, none = saved(stage()), saved(stage(peft_target_modules=("linear_qkv",)))
    tokens = 1024
    low = {name: nbytes for name, nbytes in every.items() if name.endswith(".low")}
    assert set(low.values()) == {tokens * R * 2} and len(low) == 4
    fc2_input = "mlp.activation.output"
    assert every[fc2_input] == tokens * F * 2
    assert fc2_input not in none
    assert "mlp.linear_fc1.output" in none  # the activation still needs its input


def test_sequence_parallel_adapters_gather_their_input_once_more() -> None:
    names = saved(stage(2, tensor_model_parallel_size=2, sequence_parallel=True))
    gathered = {name: nbytes for name, nbytes in names.items() if name.endswith("input gathered")}
    assert set(gathered) == {
        "self_attention.linear_qkv.adapter.input gathered",
        "mlp.linear_fc1.adapter.input gathered",
    }
    assert set(gathered.values()) == {1024 * H * 2}


FUSED_NORMS = {"self_attention.linear_qkv": "input_layernorm.output", "mlp.linear_fc1": "pre_mlp_layernorm.output"}
"""Linears with a norm inside, and what it puts out."""


@pytest.mark.parametrize("targets", [("linear_qkv", "linear_fc1"), ("linear_qkv", "linear_proj"), ("linear_proj",)])
def test_a_norm_keeps_its_local_output_for_an_adapter(targets: tuple[str, ...]) -> None:
    """TransformerEngine keeps what it returns to the adapter: 512 local tokens beside the 1,024 gathered ones that linear_in keeps."""
    names = saved(stage(2, tensor_model_parallel_size=2, sequence_parallel=True, peft_target_modules=targets))
    for linear, norm in FUSED_NORMS.items():
        adapted = linear.rsplit(".", 1)[1] in targets
        assert names.get(norm, 0) == adapted * 512 * H * 2
        assert names.get(f"{linear}.adapter.input gathered", 0) == adapted * 1024 * H * 2


def test_in_fp8_the_norm_keeps_a_quantized_output_beside_the_adapters() -> None:
    names = saved(stage(fp8="hybrid", fp8_recipe="tensorwise", gpu="B200"))
    assert names["input_layernorm.output"] == 1024 * H * 2
    assert names["self_attention.linear_qkv.input tensorwise"] == 1024 * H


ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
RANDOM_STATE = 16
"""Bytes of the kernel's seed and offset, which fused attention keeps; a copy of 8 where nothing before it needs a gradient."""


@pytest.mark.parametrize(
    ("tp", "targets", "counted"),
    [
        (1, ALL, 38_969_360), (1, ALL[:2], 28_418_064), (1, ALL[1:2], 26_288_152),
        (2, ALL, 23_744_528), (2, ALL[:2], 16_338_960), (2, ALL[1:2], 13_160_472),
    ],
)  # fmt: skip
def test_a_layer_keeps_what_the_real_classes_keep(tp: int, targets: tuple[str, ...], counted: int) -> None:
    """A second layer of Megatron-Core 0.19.2 with Megatron-Bridge 0.6.2's adapters, on fake tensors; sequence parallel with tp 2."""
    found = saved(
        stage(
            tp, tensor_model_parallel_size=tp, sequence_parallel=tp > 1, peft_target_modules=targets, num_query_groups=2,
            num_attention_heads=8, bias_activation_fusion=True, apply_rope_fusion=True,
        )
    )  # fmt: skip
    assert 0 <= counted - sum(found.values()) - RANDOM_STATE <= 8


def test_what_is_not_modelled_says_so() -> None:
    with pytest.raises(
        LayoutError,
        match="use_megatron_fsdp is not modelled with peft or with freeze_language_model",
    ):
        stage(2, use_megatron_fsdp=True)
    with pytest.raises(ConfigError, match="peft='prefix' is not one of"):
        estimate(small_job(peft="prefix"))


def test_frozen_weights_in_fp8() -> None:
    """The linears' weights in one byte, embeddings and norms in bf16; adapters stay in bf16. Without fp8 all frozen weights in bf16."""
    linears = LAYERS * (QKV * H + H * H + FC1 * H + H * F)
    low = stage(
        4, fp8="hybrid", fp8_recipe="tensorwise", fp8_param_gather=True, gpu="B200", use_distributed_optimizer=True
    )
    plain = stage(4, gpu="B200", use_distributed_optimizer=True)
    for found, expected in (
        (low, {"frozen weights": 2 * (BASE - linears), "weights": linears}),
        (plain, {"frozen weights": 2 * BASE}),
    ):
        assert {s.tensor: s.nbytes for s in found.rank.states if s.frozen} == expected
        assert {s.nbytes for s in found.rank.states if s.part == "weights" and not s.frozen} == {
            2 * found.rank.buffers[0].numel
        }
        assert found.rank.buffers[0].numel_unpadded == lora()
