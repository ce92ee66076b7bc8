"""Tensors at the edges of a layer, hand-worked from the named sources: what kernels, routers and optimizers keep beside the layer."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.estimator import Stage

MIB = 2**20
EXPERTS: dict[str, Any] = {
    "num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 32000, "seq_length": 1024, "micro_batch_size": 1,
    "global_batch_size": 8, "num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 1024, "ffn_hidden_size": 1024,
    "router_imbalance": 1,
}  # fmt: skip
ROWS = 2 * 1024
"""Rows of the experts: top-2 of 1,024 tokens."""


def first(**settings: Any) -> Stage:
    return estimate(TrainingJob.from_config({**EXPERTS, **settings}, 8)).stages[0]


def saved(stage: Stage) -> dict[str, int]:
    """Bytes that a layer keeps, by tensor."""
    return {live.tensor.name: live.tensor.nbytes for live in stage.rank.plans[0].runs[1].trace.saved}


@pytest.mark.parametrize(("cp", "each"), [(1, 2304), (2, 1152)])
def test_flash_attention_keeps_the_kernels_output_beside_the_transposed_one(cp: int, each: int) -> None:
    """TransformerEngine 2.14 `backends.py` (FlashAttention.forward), `context_parallel.py`: the kernel's [b, s] output is saved, and its
    transposed copy by linear_proj. Qwen3-8B, tp 2, micro batch 2, 8,192 tokens: 8192/cp x 2 x 16 x 128 x 2 bytes x 36 layers each."""
    job = TrainingJob.from_hf(
        "Qwen/Qwen3-8B", 4, tensor_model_parallel_size=2, context_parallel_size=cp, seq_length=8192, micro_batch_size=2,
        attention_kernel="flash", gpu="A100-80GB",
    )  # fmt: skip
    found = {
        row.name.rsplit(".", 1)[1]: row.nbytes for row in estimate(job).stages[0].rows if "core_attention" in row.name
    }
    assert each * MIB == 8192 // cp * 2 * 16 * 128 * 2 * 36
    assert found["kernel output"] == each * MIB
    assert found["output"] == each * MIB


@pytest.mark.parametrize(("dtype", "count"), [(None, 1), ("fp32", 1), ("fp64", 0)])
def test_routers_of_the_local_spec_call_transformer_engines_gemm(dtype: str | None, count: int) -> None:
    """Megatron-LM `moe/moe_utils.py` (RouterGatingLinearFunction): te_general_gemm but in fp64; 32 MiB and 1 KiB from Hopper on."""
    stage = first(transformer_impl="local", moe_grouped_gemm=False, moe_router_dtype=dtype)
    found = [one.nbytes for one in stage.rank.workspaces if one.name == "TE cuBLAS workspace"]
    assert found == [32 * MIB + 1024] * count


@pytest.mark.parametrize(("dtype", "each"), [(None, 2), ("fp32", 4), ("fp64", 8)])
def test_probabilities_have_the_routers_dtype(dtype: str | None, each: int) -> None:
    """Megatron-LM `moe/router.py` (gating casts input and weight; probabilities are of the logits' type), `moe/moe_utils.py` (permute)."""
    kept = saved(first(moe_router_dtype=dtype))
    assert kept["mlp.experts.probs"] == ROWS * each
    assert kept["mlp.permute.local_probs"] == ROWS * 4 * each, "of the four ranks' tokens"


@pytest.mark.parametrize("layers", range(1, 5))
def test_one_more_recomputed_layer_never_keeps_more(layers: int) -> None:
    def kept(number: int) -> int:
        block: dict[str, Any] = {
            "recompute_granularity": "full",
            "recompute_method": "block",
            "recompute_num_layers": number,
        }
        return sum(plan.saved_bytes for plan in first(**block).rank.plans)

    assert kept(layers + 1) < kept(layers)


@pytest.mark.parametrize(("apart", "copies"), [(False, 4), (True, 3)])
def test_two_optimizers_quantize_their_weights_one_after_the_other(*, apart: bool, copies: int) -> None:
    """Megatron-LM `optimizer/__init__.py` (the first chunk and the others), `optimizer.py` (_step): Llama-3-8B, pp 4, vpp 4, dp 8, a chunk
    has 2 layers of 218,103,808 weights in fp8, of which a rank owns an eighth; its masters in bf16 are 104 MiB."""
    job = TrainingJob.from_hf(
        "meta-llama/Meta-Llama-3-8B", 32, pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=4, micro_batch_size=1,
        global_batch_size=32, fp8="hybrid", fp8_recipe="tensorwise", fp8_param_gather=True, overlap_grad_reduce=True,
        overlap_param_gather=True, overlap_param_gather_with_optimizer_step=apart,
    )  # fmt: skip
    states = estimate(job).stages[1].rank.states
    assert 104 * MIB == 2 * 218_103_808 * 2 // 8
    assert [one.nbytes for one in states if one.tensor == "main_param to be quantized"] == [104 * MIB] * copies
