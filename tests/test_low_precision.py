"""fp8 and fp4: bytes of weights and of what a layer keeps, hand-worked from TransformerEngine's tensor classes.

Llama-like layer of `small_config`: hidden 1024, 16 heads of 64, 4 groups, ffn 4096; weights per layer: qkv 1536 x 1024,
proj 1024 x 1024, fc1 8192 x 1024, fc2 1024 x 4096.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.estimator import Stage
from megatron_memory_estimator.job.hardware import find_gpu
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.modules.quantization import RECIPES, scale_bytes
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.tensor import Dim, Param
from megatron_memory_estimator.throughput.kernels import quantize
from megatron_memory_estimator.throughput.machine import machine

from .helpers import context, moe_config, small_config
from .test_activation_rules import DENSE_LAYER, FE, HID, MOE_LAYER, ROWS, B, D, E, F, H, K, M, N, S, T, kept

LAYERS = 4
WEIGHTS = LAYERS * 1024 * (1536 + 1024 + 8192 + 4096)
HOPPER: dict[str, Any] = {"gpu": "H100"}
BLACKWELL: dict[str, Any] = {"gpu": "B200"}


def low(recipe: str, **settings: Any) -> dict[str, Any]:
    kind: dict[str, Any] = {"fp4": "e2m1"} if recipe == "nvfp4" else {"fp8": "hybrid", "fp8_recipe": recipe}
    return {**kind, **settings}


def stage(num_gpus: int = 1, config: dict[str, Any] | None = None, **settings: Any) -> Stage:
    job = TrainingJob.from_config(config or small_config(), num_gpus, **{"seq_length": 1024, **settings})
    return estimate(job).stages[0]


CACHED: list[tuple[dict[str, Any], int, int]] = [
    ({**low("delayed"), **HOPPER}, 2 * WEIGHTS, 0),
    ({**low("tensorwise"), **HOPPER}, 2 * WEIGHTS, 0),
    ({**low("delayed"), **BLACKWELL}, WEIGHTS, 0),
    ({**low("tensorwise"), **BLACKWELL}, WEIGHTS, 0),
    ({**low("tensorwise"), "gpu": "L40S"}, 2 * WEIGHTS, 0),
    ({**low("blockwise"), **HOPPER}, 2 * WEIGHTS, 2 * 4 * WEIGHTS // 16384),
    ({**low("mxfp8"), **BLACKWELL}, 2 * WEIGHTS, 2 * WEIGHTS // 32),
    ({**low("nvfp4"), **BLACKWELL}, WEIGHTS, 2 * WEIGHTS // 16),
    ({**low("tensorwise", first_last_layers_bf16=True), **BLACKWELL}, WEIGHTS // 2, 0),
    ({**low("tensorwise", first_last_layers_bf16=True, num_layers_at_end_in_bf16=0), **BLACKWELL}, WEIGHTS * 3 // 4, 0),
]


@pytest.mark.parametrize(("settings", "data", "scales"), CACHED, ids=lambda x: str(x)[:70])
def test_cached_copies_of_weights(settings: dict[str, Any], data: int, scales: int) -> None:
    rows = [row for row in stage(**settings).rows if "get_weight_workspace" in row.why]
    assert sum(row.nbytes for row in rows if "scales" not in row.name) == data
    assert sum(row.nbytes for row in rows if "scales" in row.name) == scales


GATHERED: list[tuple[dict[str, Any], float]] = [
    ({**low("delayed"), **HOPPER}, 2),
    ({**low("tensorwise"), **HOPPER}, 2),
    ({**low("tensorwise"), **BLACKWELL}, 1),
    ({**low("blockwise"), **HOPPER}, 2 + 2 * 4 / 16384),
    ({**low("mxfp8", reuse_grad_buf_for_mxfp8_param_ag=True), **BLACKWELL}, 2 + 2 / 32),
    ({**low("nvfp4"), **BLACKWELL}, 1 + 2 / 16),
]


@pytest.mark.parametrize(("settings", "each"), GATHERED, ids=lambda x: str(x)[:70])
def test_weights_in_low_precision_only(settings: dict[str, Any], each: float) -> None:
    gather: dict[str, Any] = {"fp4_param_gather": True} if "fp4" in settings else {"fp8_param_gather": True}
    found = stage(4, use_distributed_optimizer=True, **settings, **gather)
    rows = [row for row in found.rows if row.part == "weights"]
    other = 2 * 32000 * 1024 * 2 + 2 * 1024 * (2 * LAYERS + 1)  # two embeddings and the norms stay in bf16
    assert sum(row.nbytes for row in rows) == int(each * WEIGHTS) + other
    masters = [row.nbytes for row in found.rows if row.name.startswith("main_param")]
    assert sum(masters) == 4 * (WEIGHTS + other // 2) // 4
    assert not any("get_weight_workspace" in row.why for row in found.rows)


def test_scales_of_a_weight_are_padded() -> None:
    weight = Param("w", (Dim("out", 100), Dim("in", 96)))
    # mxfp8: rows [128, 4] and columns [4, 128]; nvfp4: [128, 8] and [128, 8]; blockwise: fp32 [1, 4] and [1, 4]
    assert scale_bytes(RECIPES["mxfp8"], weight) == 128 * 4 + 4 * 128
    assert scale_bytes(RECIPES["nvfp4"], weight) == 128 * 8 + 128 * 8
    assert scale_bytes(RECIPES["blockwise"], weight) == 4 * (4 + 4)
    assert scale_bytes(RECIPES["tensorwise"], weight) == 0
    few = Param("w", (Dim("out", 40), Dim("in", 96)))  # 40 rows are padded to 128 as well, 3 blocks of 16 to 4
    assert scale_bytes(RECIPES["mxfp8"], few) == 128 * 4 + 4 * 128
    assert scale_bytes(RECIPES["nvfp4"], few) == 128 * 8 + 128 * 4


ACT, CONTEXT = 2 * T * F, 2 * T * N * D
# delayed: three inputs (two norm outputs, fc2) in 1 byte instead of 2, and one more byte of attention's output
DENSE: list[tuple[dict[str, Any], float]] = [
    (low("delayed"), -H / 2 * 2 - ACT / 2 + CONTEXT / 2),
    (low("tensorwise"), -H / 2 * 2 - ACT / 2),
    (low("tensorwise", transformer_engine_version="2.5"), -H / 2 * 2 - ACT / 2 + CONTEXT / 2),
    (low("blockwise"), (2 * H + ACT) * (-1 / 2 + 4 / 128 / 2)),
    (low("mxfp8", **BLACKWELL), (2 * H + ACT) * (-1 / 2 + 1 / 32 / 2)),
    (low("nvfp4", **BLACKWELL), (2 * H + ACT) * (-3 / 4 + 1 / 16 / 2)),
    (
        low("nvfp4", **BLACKWELL, transformer_engine_version="2.6"),
        (2 * H + ACT) * (-3 / 4 + 1 / 16 / 2) + CONTEXT * (1 / 4 + 1 / 16 / 2),
    ),
    (low("tensorwise", activation_func_fp8_input_store=True), -H / 2 * 2 - ACT / 2 - 2 * T * F),
    (low("tensorwise", fp8_dot_product_attention=True), -H / 2 * 2 - ACT / 2 - T * (N + 2 * M) * D),
    (low("delayed", fp8_dot_product_attention=True), -H / 2 * 2 - ACT / 2 - T * (N + 2 * M) * D),
]


@pytest.mark.parametrize(("settings", "delta"), DENSE, ids=lambda x: str(x)[:70])
def test_dense_layer(settings: dict[str, Any], delta: float) -> None:
    assert kept(small_config(), **{**HOPPER, **settings}) - DENSE_LAYER == delta


EXPERTS = -2 * ROWS * HID / 2 - 2 * ROWS * FE / 2  # inputs of fc1 and fc2
MOE: list[tuple[dict[str, Any], float]] = [
    (low("tensorwise"), -H / 2 + EXPERTS),
    (low("tensorwise", moe_router_padding_for_quantization=True), -H / 2 + EXPERTS),
    (
        low("tensorwise", recompute_granularity="selective", recompute_modules=("moe_act",)),
        -H / 2 + EXPERTS - ROWS * FE,
    ),
]


@pytest.mark.parametrize(("settings", "delta"), MOE, ids=lambda x: str(x)[:70])
def test_moe_layer(settings: dict[str, Any], delta: float) -> None:
    """Balanced rows divide by every padding here: 4096 rows over 8 experts."""
    assert S * B * K // E % 128 == 0
    assert kept(moe_config(), **{**HOPPER, **settings}) - MOE_LAYER == delta


def test_rows_of_each_expert_are_padded() -> None:
    config = moe_config()
    tokens = {"seq_length": 40, "micro_batch_size": 1}  # 80 rows over 8 experts: 10 each
    sixteen, one_two_eight = (
        stage(1, config, **tokens, **settings).rank.context.padded_expert_rows.size
        for settings in ({**low("tensorwise"), **HOPPER}, {**low("nvfp4"), **BLACKWELL})
    )
    assert (sixteen, one_two_eight) == (8 * 16, 8 * 128)


def test_buffers_in_sixteen_bits_have_no_scales() -> None:
    low_weights = stage(4, **low("mxfp8", fp8_param_gather=True, reuse_grad_buf_for_mxfp8_param_ag=True), **BLACKWELL,
                        use_distributed_optimizer=True)  # fmt: skip
    assert [(buffer.recipe, buffer.param_dtype, buffer.scale_bytes) for buffer in low_weights.rank.buffers] == [
        ("", "bf16", 0), ("mxfp8", "fp8", 2 * WEIGHTS // 32),
    ]  # fmt: skip
    (plain,) = stage(4, use_distributed_optimizer=True).rank.buffers
    assert (plain.recipe, plain.scale_bytes, plain.offloaded, plain.owned_matrices) == ("", 0, 0, 0)


def test_turning_it_off_again_gives_the_same_bytes() -> None:
    plain, off = (
        stage(**BLACKWELL),
        stage(**BLACKWELL, fp8=None, fp4=None, fp8_recipe="delayed", first_last_layers_bf16=True),
    )
    assert plain.peak_allocated_bytes == off.peak_allocated_bytes
    assert plain.rows == off.rows


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (low("mxfp8", gpu="H100"), "mxfp8 needs a GPU of compute capability 10.0"),
        (low("blockwise", gpu="A100"), "blockwise needs a GPU of compute capability 9.0"),
        (low("nvfp4", gpu="H200"), "fp4=e2m1 needs a GPU"),
        ({"fp8": "hybrid", "fp4": "e2m1", **BLACKWELL}, "exclude each other"),
        (low("delayed", fp8_param_gather=True), "needs use_distributed_optimizer"),
        (low("mxfp8", fp8_param_gather=True, use_distributed_optimizer=True, **BLACKWELL), "needs reuse_grad_buf"),
        (low("delayed", first_last_layers_bf16=True), "does not work with fp8_recipe=delayed"),
        (
            low("delayed", recompute_granularity="selective", recompute_modules=("layernorm",)),
            "recompute_modules layernorm",
        ),
        ({"fp8_param_gather": True}, "fp8_param_gather needs fp8"),
        ({"fp4": "e2m1", "params_dtype": "fp32", **BLACKWELL}, "fp4 needs params_dtype bf16 or fp16"),
        (
            low("tensorwise", params_dtype="fp32", fp8_param_gather=True, use_distributed_optimizer=True),
            "fp8_param_gather with params_dtype=fp32 is not modelled",
        ),
        (low("tensorwise", params_dtype="fp32", fp8_dot_product_attention=True), "needs params_dtype bf16 or fp16"),
        (low("mxfp8", reuse_grad_buf_for_mxfp8_param_ag=True, **BLACKWELL), "needs fp8_param_gather"),
        (low("tensorwise", disable_parameter_transpose_cache=True), "quantized weights of its own"),
    ],
)
def test_what_low_precision_needs(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        stage(**{**HOPPER, **settings})


def test_the_param_buffer_is_padded_and_mxfp8_weights_are_not() -> None:
    """Six ranks pad 60,817,408 elements to a multiple of 384. A copy by columns, and the weights of mxfp8, are the modules' own."""

    def weights(**settings: Any) -> dict[str, int]:
        states = stage(6, use_distributed_optimizer=True, fp8_param_gather=True, **settings).rank.states
        return {s.tensor: s.nbytes for s in states if s.part == "weights" and s.dtype == "fp8"}

    padded = 158_379 * 384
    assert WEIGHTS < padded < WEIGHTS + 384
    assert weights(**low("tensorwise"), **HOPPER) == {"weights": padded, "weights by columns": WEIGHTS}
    assert weights(**low("mxfp8", reuse_grad_buf_for_mxfp8_param_ag=True), **BLACKWELL) == {
        "weights": WEIGHTS,
        "weights by columns": WEIGHTS,
    }


@pytest.mark.parametrize(("recipe", "gpu", "copies"), [("tensorwise", HOPPER, 1), ("mxfp8", BLACKWELL, 2)])
def test_fully_sharded_weights_are_transposed_after_the_gather(recipe: str, gpu: dict[str, Any], copies: int) -> None:
    """Of what is sharded there is one orientation, of mxfp8 both."""
    found = stage(8, use_megatron_fsdp=True, fp8_param_gather=True, **low(recipe), **gpu)
    kept = [s.nbytes for s in found.rank.states if s.part == "weights" and s.dtype == "fp8"]
    assert kept == [WEIGHTS // 8] * copies


def masters_to_quantize(num_gpus: int = 4, config: dict[str, Any] | None = None, **settings: Any) -> dict[str, int]:
    given = {"use_distributed_optimizer": True, "fp8_param_gather": True, **settings}
    states = stage(num_gpus, config, **given).rank.states
    return {s.group: s.nbytes for s in states if s.tensor == "main_param to be quantized" and s.since == "optimizer"}


QUANTIZED: list[tuple[dict[str, Any], dict[str, int]]] = [
    (low("delayed"), {"dense delayed": 2 * WEIGHTS // 4}),
    (low("tensorwise"), {"dense tensorwise": 2 * WEIGHTS // 4}),
    (low("blockwise"), {"dense blockwise": 2 * WEIGHTS // 4}),
    (low("mxfp8", reuse_grad_buf_for_mxfp8_param_ag=True, **BLACKWELL), {}),
    (low("nvfp4", fp4_param_gather=True, fp8_param_gather=False, **BLACKWELL), {"dense nvfp4": 2 * WEIGHTS // 4}),
    (low("tensorwise", fp8_param_gather=False), {}),
    (low("tensorwise", use_precision_aware_optimizer=True), {"dense tensorwise": 2 * WEIGHTS // 4}),
    (low("delayed", use_precision_aware_optimizer=True), {}),
    (low("tensorwise", use_megatron_fsdp=True), {"dense tensorwise": 2 * WEIGHTS // 4}),
]


@pytest.mark.parametrize(("settings", "copies"), QUANTIZED, ids=lambda x: str(x)[:70])
def test_masters_in_16_bits_while_weights_are_quantized(settings: dict[str, Any], copies: dict[str, int]) -> None:
    """Of a quarter of the weights, two bytes each, all together (TransformerEngine `cast_master_weights_to_fp8`)."""
    assert masters_to_quantize(**{**HOPPER, **settings}) == copies


def test_dense_and_expert_masters_are_quantized_one_after_the_other() -> None:
    """Experts: 4 layers of 8 x 3 x 512 x 1024 elements, 2 of 8 experts and their whole data-parallel group on every rank of ep 4."""
    config = moe_config()
    found = masters_to_quantize(4, config, expert_model_parallel_size=4, **HOPPER, **low("tensorwise"))
    layers = config["num_layers"]
    assert found == {"expert tensorwise": 2 * layers * 2 * 3 * 512 * 1024}


def test_the_optimizer_step_of_fp8_weights_has_gradients_and_masters_beside_the_state() -> None:
    """Llama-3-70B with tp 8, pp 4 and vpp 5 on 32 H100 (NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-memory-tuning): rank 0
    peaked at 50.2 GB; 20 layers of 106,954,752 weights in fp8, fp32 gradients of all 2,271,215,616 parameters and 2 bytes of each
    weight stand beside the state."""
    config = {
        "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_query_groups": 8,
        "kv_channels": 128, "vocab_size": 128256, "padded_vocab_size": 129024, "normalization": "RMSNorm",
        "gated_linear_unit": True, "activation_func": "silu", "add_bias_linear": False,
        "share_embeddings_and_output_weights": False, "position_embedding_type": "rope", "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }  # fmt: skip
    settings: dict[str, Any] = {
        "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5,
        "sequence_parallel": True, "seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 32, "grad_reduce_in_bf16": True,
        "gradient_accumulation_fusion": True, "use_distributed_optimizer": True, "fp8_param_gather": True,
        "tp_comm_overlap": True, "overlap_p2p_comm": True, "transformer_engine_version": "2.13", "phases": "training",
        "apply_rope_fusion": True, "bias_activation_fusion": True,
    }  # fmt: skip
    found = estimate(TrainingJob.from_config(config, 32, **settings, **HOPPER, **low("tensorwise"))).stages[0]
    assert found.peak.candidate.label == "optimizer step"
    weights, all_parameters = 20 * 106_954_752, 20 * 106_954_752 + 129024 // 8 * 8192 + 20 * 2 * 8192
    copies = {row.name: row.nbytes for row in found.rows if row.name.startswith("main_param to be quantized")}
    gradients = sum(row.nbytes for row in found.rows if row.name.startswith("fp32 copy of gradients"))
    assert sum(copies.values()) == 2 * weights
    assert gradients == 4 * all_parameters
    assert abs(found.peak_allocated_bytes / 50.2e9 - 1) < 0.005


@pytest.mark.parametrize(("recipe", "scales"), [("tensorwise", None), ("blockwise", 4 / 128), ("mxfp8", 1 / 32)])
def test_block_recipes_cast_an_input_by_rows_and_by_columns_at_once(recipe: str, scales: float | None) -> None:
    """The copy that the weight's gradient needs stays; the one that linear_fc1's product reads is there while it runs."""
    job = TrainingJob.from_config(small_config(), 1, seq_length=S, micro_batch_size=B, **low(recipe), **BLACKWELL)
    ops = flattened(layer_unit(context(job), job.model.kinds[0]).unit.items)
    (op,) = (one for one in ops if one.name == "mlp.linear_fc1")
    by_rows = sum(t.nbytes for t in op.forward if "by rows" in t.name)
    assert by_rows == (0 if scales is None else T * HID * (1 + scales))


def test_a_cast_with_a_scale_of_the_whole_tensor_reads_it_twice() -> None:
    """nvfp4 has one beside those of 16 elements: 2 x 2 bytes read and 2 copies of half a byte written; mxfp8 2 and 2 of one byte."""
    b200 = machine(find_gpu("B200"))
    nvfp4, mxfp8 = (quantize(b200, 10**9, recipe) for recipe in ("nvfp4", "mxfp8"))
    assert nvfp4 / mxfp8 == pytest.approx((2 * 2 + 2 / 2) / (2 + 2))
