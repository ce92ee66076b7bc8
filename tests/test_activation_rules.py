"""What each setting adds to or takes from the bytes that one layer keeps, hand-worked from the sources in the modules.

Symbols: tokens T (inside tensor parallelism) and Ts (residual stream), H = 2*Ts*h, heads n, groups m, head dim d.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.device.outside import outside_terms
from megatron_memory_estimator.modules.layers import layer_unit, mtp_unit, output_unit
from megatron_memory_estimator.modules.moe import kept as moe_kept
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.simulate import alive_at, leftovers, trace

from .helpers import context, moe_config, moe_job, small_config, small_job

S, B, HID, N, M, D, F = 1024, 2, 1024, 16, 4, 64, 4096
T = S * B
H = 2 * T * HID
PROBS = B * N * S * S


def kept(config: dict[str, Any], num_gpus: int = 1, **settings: Any) -> int:
    job = TrainingJob.from_config(
        config, num_gpus, **{"seq_length": S, "micro_batch_size": B, "router_imbalance": 1, **settings}
    )
    unit = layer_unit(context(job), job.model.kinds[0]).unit
    assert unit.entry is not None
    assert list(leftovers(unit).values()) == [unit.entry.nbytes], "a backward leaves the gradient of its input alone"
    return trace(unit).saved_bytes


def selective(*modules: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": modules}


DENSE_LAYER = 4 * H + 8 * T + 2 * T * (N + 2 * M) * D + 2 * T * N * D + 4 * T * N + 2 * T * 3 * F
DENSE: list[tuple[dict[str, Any], int]] = [
    ({}, 0),
    ({"hidden_dropout": 0.1}, 2 * T * HID),
    ({"normalization": "LayerNorm"}, 8 * T),
    ({"gated_linear_unit": False, "activation_func": "gelu", "add_bias_linear": True}, -2 * T * F),
    ({"gated_linear_unit": False, "activation_func": "squared_relu"}, -2 * T * F),
    ({"bias_activation_fusion": False}, 4 * T * F),
    (
        {"activation_func": "quick_gelu", "activation_func_clamp_value": 7.0, "bias_activation_fusion": False},
        3 * 2 * T * F,
    ),
    ({"attention_kernel": "flash"}, 2 * T * N * D),
    ({"attention_kernel": "flash", "micro_batch_size": 1, "seq_length": 2 * S}, 0),
    ({"attention_kernel": "unfused"}, -4 * T * N + 2 * PROBS + 2 * T * 2 * (N - M) * D),
    ({"attention_kernel": "unfused", "attention_dropout": 0.1}, -4 * T * N + 5 * PROBS + 2 * T * 2 * (N - M) * D),
    ({"qk_layernorm": True}, 2 * T * (N + M) * D + 4 * T * (N + M)),
    ({"apply_rope_fusion": False}, 8 * S * D),
    ({"position_embedding_type": "none"}, 0),
    ({"fp32_residual_connection": True}, 0),  # the norms keep a 16-bit cast of their input
    (selective("core_attn"), -4 * T * N + 2 * T * (N + M) * D),
    (selective("mlp"), -H - 4 * T - 2 * T * 3 * F + 0),
    (selective("layernorm"), 0),
    ({"attention_output_gate": True}, 4 * T * N * D),
    ({"attention_output_gate": True, "compiled_gates": False}, 6 * T * N * D),
]


@pytest.mark.parametrize(("settings", "delta"), DENSE, ids=lambda x: str(x)[:60])
def test_dense_layer(settings: dict[str, Any], delta: int) -> None:
    assert kept(small_config(), **settings) - DENSE_LAYER == delta


def test_tensor_and_sequence_parallelism_divide_everything() -> None:
    four = {"tensor_model_parallel_size": 4}
    assert kept(small_config(), 4, **four, sequence_parallel=True) == DENSE_LAYER // 4
    shared = 4 * H + 8 * T
    assert kept(small_config(), 4, **four) == shared + (DENSE_LAYER - shared) // 4


@pytest.mark.parametrize(("kind", "delta"), [("p2p", 0), ("all_gather", 0), ("a2a", 2 * T * N * D // 2)])
def test_context_parallelism(kind: str, delta: int) -> None:
    found = kept(small_config(), 2, context_parallel_size=2, cp_comm_type=kind)
    assert found == DENSE_LAYER // 2 + delta


def test_more_ranks_than_groups_work_on_one_group_each() -> None:
    found = kept(small_config(num_query_groups=2), 8, tensor_model_parallel_size=8, sequence_parallel=True)
    attention = 2 * T * (2 + 2) * D + 2 * T * 2 * D + 4 * T * 2
    assert found == (4 * H + 8 * T) // 8 + attention + 2 * T * 3 * F // 8


E, K, FE = 8, 2, 512
ROWS = T * K
# residual, norm, router, unfused permutation, expert fc1 input, fc1 output and fc2 input, probabilities
MOE_PART = 2 * H + 4 * T + 12 * T * K + 8 * T * K + 8 * T * E + 2 * ROWS * HID + 2 * ROWS * 3 * FE + 2 * ROWS
MOE_LAYER = DENSE_LAYER - (2 * H + 4 * T + 2 * T * 3 * F) + MOE_PART
SHARED = {"moe_shared_expert_intermediate_size": 1024}
SHARED_BYTES = 2 * T * 3 * 1024
MOE: list[tuple[dict[str, Any], int]] = [
    ({}, 0),
    ({"moe_aux_loss_coeff": 0.01}, 4 * T * E + 8 * E),
    ({"moe_router_score_function": "sigmoid"}, 4 * T * E + 4 * T),
    ({"moe_router_score_function": "sigmoid", "moe_aux_loss_coeff": 0.01}, 8 * T * E + 8 * T + 8 * E),
    ({"moe_router_fusion": True}, 5 * T * E - 12 * T * K),  # scores and the map, TransformerEngine pytorch/router.py
    ({"moe_router_fusion": True, "moe_router_score_function": "sigmoid", "moe_aux_loss_coeff": 0.01}, 9 * T * E + 8 * E - 12 * T * K),
    ({"moe_router_fusion": True, "transformer_engine_version": "2.12"}, 3 * T * E - 12 * T * K),  # scores in the logits' dtype
    ({"moe_permute_fusion": True}, 4 * T * (2 * E + 1) + 8 * ROWS - 8 * T * K - 8 * T * E),
    ({"moe_router_dtype": "fp32"}, 2 * ROWS),
    (SHARED, SHARED_BYTES),
    ({**SHARED, "moe_shared_expert_gate": True}, SHARED_BYTES + H + 2 * T),
    ({**SHARED, **selective("shared_experts")}, 0),
    ({"moe_latent_size": 256}, -2 * ROWS * (HID - 256) + 2 * T * 256),
    (selective("moe_act"), -2 * ROWS * FE),
    (selective("layernorm"), -H - 4 * T),
    (selective("moe"), -(MOE_PART - 2 * H - 4 * T)),
    (selective("moe", "layernorm"), -(MOE_PART - H)),
    ({"gated_linear_unit": False, "activation_func": "gelu", "bias_activation_fusion": False}, 0),
    ({"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
     16 * ROWS + T * E - 8 * T * K - 8 * T * E),
    ({"deterministic_mode": True}, 2 * ROWS * HID),  # index_add keeps the rows that it adds
    ({"deterministic_mode": True, "moe_permute_fusion": True}, 4 * T * (2 * E + 1) + 8 * ROWS - 8 * T * K - 8 * T * E),
    ({"deterministic_mode": True, "megatron_core_version": "0.14"}, 0),  # scatter_add
    ({"megatron_core_version": "0.12"}, 2 * ROWS * HID),  # probabilities weigh the rows that return
    ({"megatron_core_version": "0.12", "gated_linear_unit": False, "activation_func": "gelu", "bias_activation_fusion": False},
     2 * ROWS * HID - 2 * ROWS * FE),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "delta"), MOE, ids=lambda x: str(x)[:60])
def test_moe_layer(settings: dict[str, Any], delta: int) -> None:
    assert kept(moe_config(), **settings) - MOE_LAYER == delta


def test_deterministic_unpermutation_keeps_rows_before_or_after_they_are_scattered() -> None:
    for dispatcher, rows in (("alltoall", ROWS // 2), ("allgather", ROWS)):
        settings = {
            "tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 2,
            "moe_token_dispatcher_type": dispatcher,
        }  # fmt: skip
        more = kept(moe_config(), 2, **settings, deterministic_mode=True) - kept(moe_config(), 2, **settings)
        assert more == 2 * rows * HID


def test_expert_parallelism_is_free_when_balanced() -> None:
    assert kept(moe_config(), 8, expert_model_parallel_size=8) == MOE_LAYER


@pytest.mark.parametrize("factor", [1.25, 2.0])
def test_imbalance_scales_the_rows_of_the_busiest_rank(factor: float) -> None:
    more = kept(moe_config(), 4, expert_model_parallel_size=4, router_imbalance=factor) - MOE_LAYER
    rows = int(ROWS * (factor - 1))
    assert more == rows * (2 * HID + 6 * FE + 2)


def test_expert_tensor_parallelism_gathers_rows_and_splits_widths() -> None:
    settings = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    whole = kept(moe_config(), 2, **settings, expert_tensor_parallel_size=1, expert_model_parallel_size=2)
    split = kept(moe_config(), 2, **settings, expert_tensor_parallel_size=2)
    assert split - whole == ROWS // 2 * (2 * HID + 2)


def test_mtp_depth_keeps_five_residuals_and_a_layer() -> None:
    job = TrainingJob.from_config(small_config(mtp_num_layers=1), 1, seq_length=S, micro_batch_size=B)
    unit = mtp_unit(context(job), owns_embedding=False).unit
    statistics = 3 * 4 * T
    assert trace(unit).saved_bytes == 5 * H + DENSE_LAYER + statistics + 8 * T


def test_an_mtp_chunk_of_its_own_has_an_embedding_copy_even_on_the_first_rank() -> None:
    job = TrainingJob.from_config(
        small_config(mtp_num_layers=1), 2, seq_length=S, pipeline_model_parallel_size=2,
        pipeline_model_parallel_layout="E|tttt|m|L",
    )  # fmt: skip
    first, last = estimate(job).stages
    names = [param.name for plan in first.rank.plans for param, _ in plan.params]
    assert names.count("embedding.word_embeddings.weight") == 2
    assert "mtp.layers.0.eh_proj.weight" in names
    assert "output_layer.weight" in [param.name for plan in last.rank.plans for param, _ in plan.params]


def test_a_stage_after_mtp_receives_all_depths() -> None:
    job = TrainingJob.from_config(
        small_config(mtp_num_layers=1), 3, seq_length=S, micro_batch_size=B, pipeline_model_parallel_size=3,
        pipeline_model_parallel_layout="Ett|ttm|L",
    )  # fmt: skip
    last = estimate(job).stages[2]
    sizes = {row.name: row.nbytes for row in last.rows if row.part == "pipeline"}
    assert set(sizes.values()) == {2 * H}


@pytest.mark.parametrize("n", [1, 2, 4])
def test_full_uniform_recompute_keeps_one_input_per_group(n: int) -> None:
    job = TrainingJob.from_config(
        small_config(), 1, seq_length=S, micro_batch_size=B, recompute_granularity="full", recompute_method="uniform",
        recompute_num_layers=n,
    )  # fmt: skip
    runs = [r for r in estimate(job).stages[0].rank.plans[0].runs if r.first_layer >= 0]
    assert sum(r.trace.saved_bytes * r.copies for r in runs) == 4 // n * H
    brought_back = max(event.nbytes for event in runs[0].trace.backward)
    assert brought_back > n * DENSE_LAYER


@pytest.mark.parametrize("n", [0, 1, 3, 9])
def test_full_block_recompute_covers_the_first_layers_of_every_chunk(n: int) -> None:
    job = TrainingJob.from_config(
        small_config(num_layers=8), 2, seq_length=S, micro_batch_size=B, recompute_granularity="full",
        recompute_method="block", recompute_num_layers=n, pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2,
    )  # fmt: skip
    chunk = estimate(job).stages[0].rank.plans[1]
    inside = min(n, 2)
    assert chunk.saved_bytes == inside * H + (2 - inside) * DENSE_LAYER


def test_distributed_checkpoint_input() -> None:
    job = TrainingJob.from_config(
        small_config(), 4, seq_length=S, micro_batch_size=B, recompute_granularity="full", tensor_model_parallel_size=4,
        distribute_saved_activations=True,
    )  # fmt: skip
    runs = [r for r in estimate(job).stages[0].rank.plans[0].runs if r.first_layer >= 0]
    assert runs[0].trace.saved_bytes == H // 4


MLA: dict[str, Any] = small_config(
    multi_latent_attention=True, q_lora_rank=256, kv_lora_rank=128, qk_head_dim=64, qk_pos_emb_head_dim=32,
    v_head_dim=64, qk_layernorm=True, num_query_groups=None,
)  # fmt: skip
MLP_PART = 2 * H + 4 * T + 2 * T * 3 * F
MLA_LAYER = MLP_PART + 2 * H + 4 * T * 256 + 4 * T * 128 + T * N * (4 * 96 + 4 * 64 + 4) + 12 * T


@pytest.mark.parametrize(
    ("settings", "delta"),
    [
        ({}, 0),
        ({"apply_rope_fusion": False}, 8 * S * 32),
        ({"q_lora_rank": None}, -4 * T * 256 - 4 * T + H + 4 * T),
        ({"q_lora_rank": None, "megatron_core_version": "0.16"}, -4 * T * 256 - 4 * T),
        (selective("mla_up_proj"), -2 * T * 256 - 2 * T * (128 - 32) - T * N * (4 * 96 + 2 * 64) - 8 * T),
        (selective("layernorm"), -H - 4 * T),
        ({"qk_layernorm": False}, -2 * T * 256 - 2 * T * 128 - 8 * T),
        ({"attention_kernel": "flash", "micro_batch_size": 1, "seq_length": 2 * S}, 2 * T * N * (32 + 96)),
    ],
    ids=lambda x: str(x)[:60],
)
def test_mla_layer(settings: dict[str, Any], delta: int) -> None:
    assert kept(MLA, **settings) - MLA_LAYER == delta


LOSS: list[tuple[dict[str, Any], int, int]] = [
    # settings; bytes per logit that stay, bytes per logit at the most in forward
    ({}, 4, 6),
    ({"cross_entropy_loss_fusion": True}, 4, 10),
    (
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te", "transformer_engine_version": "2.17"},
        2,
        2,
    ),
    (
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te", "transformer_engine_version": "2.18"},
        4,
        6,
    ),
    (  # from 2.19 the forward copies the logits, and the gradient overwrites the copy
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te", "transformer_engine_version": "2.20"},
        2,
        4,
    ),
]


@pytest.mark.parametrize(("settings", "stays", "most"), LOSS, ids=lambda x: str(x)[:40])
def test_cross_entropy(settings: dict[str, Any], stays: int, most: int) -> None:
    job = TrainingJob.from_config(small_config(), 1, seq_length=S, micro_batch_size=B, **settings)
    run = next(r for r in estimate(job).stages[0].rank.plans[0].runs if r.unit.name == "output")
    logits = T * 32000
    assert (run.trace.saved_bytes - H) / logits == pytest.approx(stays, abs=1e-3)
    peak = max(event.nbytes for event in run.trace.forward)
    assert (peak - H) / logits == pytest.approx(most, abs=1e-3)


def test_query_key_layer_scaling_means_a_softmax_in_fp32() -> None:
    """TransformerConfig.__post_init__; measured in the fp16 runs of the local spec (docs/explanation/accuracy.md, group ee9d1d87)."""
    base: dict[str, Any] = {
        "transformer_impl": "local",
        "seq_length": 1024,
        "masked_softmax_fusion": False,
        "params_dtype": "fp16",
    }
    scaled, in_fp32 = (
        TrainingJob.from_config(small_config(), 1, **{**base, name: True})
        for name in ("apply_query_key_layer_scaling", "attention_softmax_in_fp32")
    )
    assert scaled.training == in_fp32.training


def test_userbuffers_replace_gathers_and_add_workspaces() -> None:
    """12 buffers of [s*b, h] in bf16 outside torch, three more TE workspaces inside, no gathered tensors of four linears."""
    settings: dict[str, Any] = {
        "seq_length": S,
        "micro_batch_size": B,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
    }
    on, off = (
        estimate(TrainingJob.from_config(small_config(), 2, gpu="H100", **settings, tp_comm_overlap=value)).stages[0]
        for value in (True, False)
    )
    assert on.steady_allocated_bytes - off.steady_allocated_bytes == 3 * (32 * 2**20 + 1024)
    layer_on, layer_off = (max(e.nbytes for e in stage.rank.plans[0].runs[1].trace.forward) for stage in (on, off))
    assert layer_off > layer_on
    terms = {term.name: term.low for term in outside_terms(TrainingJob.from_config(
        small_config(), 2, gpu="H100", **settings, tp_comm_overlap=True), on.rank.context)}  # fmt: skip
    assert terms["userbuffers"] == 24 * S * B * HID


def test_an_empty_list_of_modules_recomputes_nothing() -> None:
    """None is core_attn; an empty list, as published DeepSeek-V3 recipes have it, is none (Megatron-LM `transformer_config.py`)."""

    def peak(**settings: Any) -> int:
        return (
            estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tensor_model_parallel_size=2, **settings))
            .stages[0]
            .peak_allocated_bytes
        )

    plain = peak()
    assert peak(recompute_granularity="selective", recompute_modules=[]) == plain
    assert peak(recompute_granularity="selective") == peak(
        recompute_granularity="selective", recompute_modules=["core_attn"]
    )
    assert peak(recompute_granularity="selective") != plain


def test_a_router_with_a_bias_of_its_experts_has_two_buffers_of_them() -> None:
    """expert_bias and local_tokens_per_expert in fp32 (Megatron-LM `moe/router.py`); a hash needs neither."""
    job = TrainingJob.from_config(
        moe_config(moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid"), 1, seq_length=S
    )
    found = {
        hashed: sum(
            t.nbytes for t, _ in moe_kept(context(job), 4, hashed=hashed) if t.name == "router balancing buffers"
        )
        for hashed in (False, True)
    }
    assert found == {False: 4 * 2 * E * 4, True: 0}


@pytest.mark.parametrize(
    ("rank", "first"),
    [(256, {"linear_q_down_proj", "linear_kv_down_proj"}), (None, {"linear_q_proj", "linear_kv_down_proj"})],
)
def test_projections_of_the_layers_input_are_the_qkv_linear_of_mla(rank: int | None, first: set[str]) -> None:
    """What reads the normed input is `qkv_linear` to offloading and to graphs; up projections read what was compressed."""
    job = TrainingJob.from_config({**MLA, "q_lora_rank": rank}, 1, seq_length=S)
    ops = flattened(layer_unit(context(job), job.model.kinds[0]).unit.items)
    assert {op.name.removeprefix("self_attention.") for op in ops if op.part == "qkv_linear"} == first


def alive(op: str, **settings: Any) -> dict[str, int]:
    """Tensors of a layer that are alive while an op of its forward runs."""
    job = TrainingJob.from_config(small_config(), 1, **{"seq_length": S, "micro_batch_size": B, **settings})
    unit = layer_unit(context(job), job.model.kinds[0]).unit
    at = next(i for i, event in enumerate(trace(unit).forward) if event.op == op)
    return {live.tensor.name: live.tensor.nbytes for live in alive_at(unit, at)}


@pytest.mark.parametrize(("version", "held"), [("0.14", 0), ("0.15", 2 * T * N * D), ("0.16", 2 * T * N * D)])
def test_the_query_before_rope_is_a_variable_since_megatron_core_0_15(version: str, held: int) -> None:
    """`attention.py`: 0.14 binds query, key and value anew; 0.15 has the three in qkv_output beside them, to the end of its forward. The
    query is a tensor of its own there: heads of several groups are copied together."""
    there = alive("self_attention.linear_proj", megatron_core_version=version)
    assert there.get("self_attention.q of all groups", 0) == held


@pytest.mark.parametrize(("sequences", "copied"), [(1, 0), (2, 2 * T * (N + 2 * M) * D)])
def test_flash_attention_copies_several_sequences(sequences: int, copied: int) -> None:
    """It works on [b, s, ...], which [s, b, ...] is too where b is 1: else query, key and value are copied beside those that stay."""
    settings: dict[str, Any] = {
        "attention_kernel": "flash",
        "micro_batch_size": sequences,
        "seq_length": T // sequences,
    }
    there = alive("self_attention.core_attention", **settings)
    assert sum(nbytes for name, nbytes in there.items() if name.endswith("[b, s]")) == copied


@pytest.mark.parametrize(
    ("groups", "bytes_of_a_token"),
    [
        (2, 2 * (2 * 16)),  # query: in order beside what came, 2q + k - v
        (8, 2 * (16 + 3 * 8)),  # key: q + k + v + k
    ],
)
def test_what_an_all_to_all_before_attention_has_beside_what_it_makes(groups: int, bytes_of_a_token: int) -> None:
    """TransformerEngine `context_parallel.py` (flash_attn_a2a_communicate): each of q, k and v is sent while the one before it is put in
    order, and what was sent stays in a list. While q is put in order there are q and k as sent and as received, and q in order: 3q + 2k, of
    which q + k + v are what the op makes. While k is, there are q, k and v as sent, q and k in order, k and v as received."""
    config = small_config(num_query_groups=groups)
    job = TrainingJob.from_config(
        config, 2, seq_length=S, micro_batch_size=B, context_parallel_size=2, cp_comm_type="a2a"
    )
    items = layer_unit(context(job), job.model.kinds[0]).unit.items
    op = next(one for one in flattened(items) if one.name == "self_attention.core_attention.all_to_all")
    assert sum(t.nbytes for t in op.forward) == T // 2 * bytes_of_a_token * D


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"moe_expert_capacity_factor": 2.0}, ROWS),
        ({"moe_expert_capacity_factor": 0.5}, ROWS // 2),
        ({"moe_expert_capacity_factor": 2.0, "moe_pad_expert_input_to_capacity": True}, 2 * ROWS),
        ({"moe_expert_capacity_factor": 0.5, "moe_pad_expert_input_to_capacity": True}, ROWS // 2),
    ],
)
def test_a_capacity_drops_rows_and_makes_some_only_where_it_is_padded(settings: dict[str, Any], rows: int) -> None:
    """Megatron-LM `moe_utils.py`: an expert gets at most factor x tokens x top-k / experts rows, and exactly as many with padding."""
    job = TrainingJob.from_config(moe_config(), 1, seq_length=S, micro_batch_size=B, **settings)
    assert context(job).sent_rows.size == rows


def test_a_loss_in_chunks_has_the_logits_of_one_chunk_and_their_softmax_in_fp32() -> None:
    """256 of 1,024 tokens, and all 32,000 words of the vocabulary, in the forward and again in the backward."""
    c = context(small_job(8, loss_function="skyrl_fused", loss_chunk_size=256))
    (op,) = (
        op
        for op in flattened(output_unit(c, owns_weight=True, shared=False).unit.items)
        if op.name.endswith("cross_entropy")
    )
    for there in (op.forward, op.backward):
        found = {t.name.rpartition(".")[2]: t.nbytes for t in there if "of a chunk" in t.name}
        assert found == dict.fromkeys(("logits of a chunk", "softmax of a chunk"), 256 * 32_000 * 4)


def test_rows_of_experts_are_full_but_where_a_rank_has_a_capacity() -> None:
    """Twice the rows that a rank gets on average are half full."""
    assert context(moe_job(8, router_imbalance=1.0)).filled == 1.0
    dropping = {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "moe_router_dtype": "fp32",
    }
    paged = {
        **dropping,
        "moe_expert_rank_capacity_factor": 2.0,
        "expert_model_parallel_size": 4,
        "router_imbalance": 1.0,
    }
    assert context(moe_job(8, gpu="GB200", **paged)).filled == pytest.approx(0.5, rel=0.05)
