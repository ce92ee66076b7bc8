"""Twelve rules that the real classes showed, each by hand-worked bytes (test_random_configurations.py has whole configurations).

The classes: Megatron-Core 0.19.2, TransformerEngine 2.20.2. One layer of 1,024 x 2 tokens, width 1,024, 16 heads of 64 in 4 groups.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.rank.boundary import resting_tensors
from megatron_memory_estimator.rank.peak import flattened_gradients
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.simulate import alive_at, trace

from .helpers import context, moe_config, moe_job, small_config, small_job
from .test_activation_rules import DENSE_LAYER, PROBS, B, D, F, H, M, N, S, T, kept, selective

SQUARE = S * S
UNFUSED = DENSE_LAYER - 4 * T * N + 2 * T * 2 * (N - M) * D
"""A dense layer with a softmax in place of its statistics, keys and values at all heads; the softmax comes on top."""
LOCAL: dict[str, Any] = {"transformer_impl": "local"}
FULL: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


@pytest.mark.parametrize(
    ("settings", "softmax"),
    [
        ({}, 2 * PROBS),
        (
            {"masked_softmax_fusion": False, "attention_softmax_in_fp32": True},
            2 * PROBS,
        ),  # TransformerEngine reads neither
        ({"micro_batch_size": 1, "tensor_model_parallel_size": 8, "seq_length": 2 * S}, None),
        ({"seq_length": 1012}, None),  # not in eights
    ],
)
def test_transformer_engines_softmax_kernel(settings: dict[str, Any], softmax: int | None) -> None:
    """Rows of scores (batch x heads) in fours and keys in eights below 16,384; else torch keeps an fp32 softmax and a bool mask."""
    gpus = settings.get("tensor_model_parallel_size", 1)
    job = TrainingJob.from_config(
        small_config(num_query_groups=16), gpus,
        **{"seq_length": S, "micro_batch_size": B, "attention_backend": "unfused", **settings},
    )  # fmt: skip
    found = {
        t.tensor.name.rsplit(".", 1)[-1]: t.tensor.nbytes
        for t in trace(layer_unit(context(job), job.model.kinds[0]).unit).saved
    }
    if softmax:
        assert found["softmax"] == softmax and "fp32" not in found
    else:
        s, rows = job.training.seq_length, 16 // gpus * job.training.micro_batch_size
        assert (found["fp32"], found["torch_softmax"], found["mask"]) == (4 * rows * s * s, 2 * rows * s * s, s * s)


def test_fp32_keeps_one_softmax() -> None:
    """No kernel takes fp32, and nothing is widened or cast back: the softmax and the mask."""
    job = small_job(
        bf16=False,
        attention_backend="unfused",
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        micro_batch_size=B,
    )
    saved = trace(layer_unit(context(job), job.model.kinds[0]).unit).saved
    found = {t.tensor.name: t.tensor.nbytes for t in saved if "softmax" in t.tensor.name}
    assert sorted(found.values()) == [SQUARE, 4 * PROBS]


@pytest.mark.parametrize(
    ("settings", "softmax"),
    [
        ({}, 2 * PROBS),
        ({"masked_softmax_fusion": False, "attention_softmax_in_fp32": False}, 2 * PROBS + SQUARE),  # with a mask
        ({"masked_softmax_fusion": False, "attention_softmax_in_fp32": True}, 6 * PROBS + SQUARE),
        ({"masked_softmax_fusion": False, "create_attention_mask_in_dataloader": True}, 6 * PROBS),  # the batch's mask
    ],
)
def test_local_softmax(settings: dict[str, Any], softmax: int) -> None:
    """Megatron-Core's own kernel; without it PyTorch, which widens only where that is asked for."""
    base = kept(small_config(num_query_groups=16), **LOCAL, apply_rope_fusion=False)
    assert (
        kept(small_config(num_query_groups=16), **LOCAL, apply_rope_fusion=False, **settings) - base
        == softmax - 2 * PROBS
    )


@pytest.mark.parametrize(("seq_length", "kernel"), [(4096, True), (4100, False), (20, True), (16, False)])
def test_megatrons_kernel_takes_17_to_4096_keys(seq_length: int, kernel: bool) -> None:
    """`fused_softmax.py`, FusedScaleMaskSoftmax.is_kernel_available: 16 < sk <= 4096."""
    job = small_job(**LOCAL, seq_length=seq_length)
    names = {t.tensor.name for t in trace(layer_unit(context(job), job.model.kinds[0]).unit).saved}
    assert ("self_attention.core_attention.torch_softmax.mask" not in names) is kernel


def test_an_fp32_residual_stream_is_kept_in_16_bits() -> None:
    """TransformerEngine's norms cast their input and keep the cast."""
    assert kept(moe_config(), fp32_residual_connection=True) == kept(moe_config())


def test_what_transformer_engine_would_stop_is_said() -> None:
    """A norm inside a linear refuses an fp32 stream; layers of multi-latent attention and experts have norms of their own."""
    (said,) = (warning for warning in small_job(fp32_residual_connection=True).warnings if "fp32_residual" in warning)
    assert "stops at its first layer" in said
    config = {k: v for k, v in moe_config().items() if k != "num_query_groups"} | MLA
    job = TrainingJob.from_config(config, 1, seq_length=S, fp32_residual_connection=True)
    assert not [warning for warning in job.warnings if "fp32_residual" in warning]


MLA: dict[str, Any] = {
    "multi_latent_attention": True, "q_lora_rank": 256, "kv_lora_rank": 128, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32,
    "v_head_dim": 64, "qk_layernorm": True,
}  # fmt: skip


def test_the_gathered_position_key_is_an_input_of_the_up_projection() -> None:
    """[s, b, 32] of the whole sequence, where it is recomputed under sequence parallelism; without it, a view of kv_down's output."""
    settings: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "vocab_size": 32000,
        "apply_rope_fusion": True,
    }
    config = {k: v for k, v in small_config().items() if k != "num_query_groups"} | MLA | {"rope_type": "yarn"}
    job = TrainingJob.from_config(config, 2, seq_length=S, micro_batch_size=B, **settings, **selective("mla_up_proj"))
    found = {t.tensor.name: t.tensor.nbytes for t in trace(layer_unit(context(job), job.model.kinds[0]).unit).saved}
    assert found["self_attention.k_pos_emb gathered"] == 2 * T * 32
    assert found["self_attention.linear_kv_down_proj.output"] == 2 * T // 2 * (128 + 32)


def test_local_norms_are_modules_of_their_own() -> None:
    """The norm before the MLP is outside its checkpoint, whose input is the norm's output; both are dropped with layernorm."""
    whole = kept(small_config(), **LOCAL)
    assert whole - kept(small_config(), **LOCAL, **selective("mlp")) == 2 * T * 3 * F
    assert whole - kept(small_config(), **LOCAL, **selective("layernorm")) == 2 * (H + 4 * T)


def test_norms_of_pytorch_pin_the_packed_projection() -> None:
    """Local norms on query and key: Apex's keep contiguous copies, PyTorch's the views, and with them linear_qkv's output."""
    config = small_config(num_query_groups=16, normalization="LayerNorm", qk_layernorm=True)
    copies, packed = 2 * 2 * T * N * D, 2 * T * 3 * N * D
    assert kept(config, **LOCAL) - kept(config, **LOCAL, apex=False) == copies
    job = TrainingJob.from_config(config, 1, seq_length=S, micro_batch_size=B, **LOCAL, apex=False)
    found = {t.tensor.storage: t.tensor.nbytes for t in trace(layer_unit(context(job), job.model.kinds[0]).unit).saved}
    assert found["self_attention.linear_qkv.output"] == packed
    with pytest.raises(LayoutError, match="PyTorch's norms"):
        estimate(small_job(2, **LOCAL, tensor_model_parallel_size=2, sequence_parallel=True))


def test_the_fused_swiglu_keeps_no_clamped_copy() -> None:
    assert kept(small_config(), activation_func_clamp_value=7.0) == DENSE_LAYER
    plain = kept(small_config(), activation_func="quick_gelu", bias_activation_fusion=False)
    assert (
        kept(
            small_config(), activation_func="quick_gelu", bias_activation_fusion=False, activation_func_clamp_value=7.0
        )
        - plain
        == 2 * T * F
    )


def test_scores_before_the_choice_are_kept_whole() -> None:
    """moe_router_pre_softmax: fp32 scores of every expert in place of those of the chosen."""
    assert kept(moe_config(), moe_router_pre_softmax=True) - kept(moe_config()) == 4 * T * 8 - 4 * T * 2


def test_the_final_norm_of_mtp_is_inside_its_checkpoint() -> None:
    job = small_job(**FULL, mtp_num_layers=1, micro_batch_size=B)
    (mtp,) = (run for run in estimate(job).stages[0].rank.plans[0].runs if run.unit.name == "mtp")
    assert {t.tensor.name for t in mtp.trace.saved} == {
        "hidden_states",
        "mtp.layers.0.embedding.token_ids",
        "mtp.layers.0.embedding.output",
    }


def test_a_hybrids_mtp_layers_obey_block() -> None:
    """The stack of one MTP depth recomputes its own first layers; other models leave MTP alone."""
    settings: dict[str, Any] = {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 1,
        "micro_batch_size": B,
    }
    config = small_config(hybrid_layer_pattern="*-*-/*-")
    job = TrainingJob.from_config(config, 1, seq_length=S, **settings)
    (mtp,) = (run for run in estimate(job).stages[0].rank.plans[0].runs if run.unit.name == "mtp")
    savers = {saver.name for t in mtp.trace.saved for saver in t.saved_by}
    assert "mtp.layers.0.layers.0.checkpoint" in savers and "mtp.layers.0.layers.1.mlp.linear_fc1" in savers


def test_context_parallelism_copies_what_is_packed() -> None:
    """MHA without RoPE on a ring: the query, and keys and values joined; not linear_qkv's output. all_gather: two halves of statistics."""
    config = small_config(num_query_groups=16)
    layer = DENSE_LAYER + 2 * T * 2 * (N - M) * D
    for kind in ("p2p", "all_gather"):
        assert kept(config, 2, context_parallel_size=2, position_embedding_type="none", cp_comm_type=kind) == layer // 2


@pytest.mark.parametrize(
    ("settings", "stage", "ends"),
    [
        ({"mtp_num_layers": 1}, 0, True),  # untied: MTP has a copy of the embedding on the last stage
        ({"mtp_num_layers": 1}, 1, True),
        ({}, 0, False),
        ({"share_embeddings_and_output_weights": True}, 1, True),
    ],
)
def test_copies_of_the_embedding_have_buckets_of_their_own(settings: dict[str, Any], stage: int, ends: bool) -> None:
    job = small_job(2, pipeline_model_parallel_size=2, use_distributed_optimizer=True, **settings)
    plan = estimate(job).stages[stage].rank.plans[0]
    marked = [param.name for param, _ in plan.params if param.shared_embedding]
    expected = (
        ["embedding.word_embeddings.weight"] if "mtp_num_layers" in settings or stage == 0 else ["output_layer.weight"]
    )
    assert marked == (expected if ends else [])


def largest(job: TrainingJob, phase: str) -> dict[str, int]:
    """Tensors alive at the largest event of a phase of the first layer."""
    unit = layer_unit(context(job), job.model.kinds[0]).unit
    found = trace(unit)
    events = found.forward + found.backward
    at = max((i for i, event in enumerate(events) if event.phase == phase), key=lambda i: events[i].nbytes)
    return {live.tensor.name: live.tensor.nbytes for live in alive_at(unit, at)}


def test_moments_of_experts() -> None:
    """The experts' output lives until its rows are sorted and summed over tensor-parallel ranks, and what was sent back dies when what
    came back is there; before Megatron-Core 0.16 it lived until the tokens were whole."""
    rows = 2 * T // 2 * 2 * 1024
    settings: dict[str, Any] = {"expert_model_parallel_size": 4, "micro_batch_size": B, "router_imbalance": 1}
    job = moe_job(
        4,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        expert_tensor_parallel_size=2,
        **settings | {"expert_model_parallel_size": 2},
    )
    found = largest(job, "forward")
    assert found["mlp.experts.linear_fc2.output"] == found["mlp.combine.unsorted"] == 2 * rows
    for version, names in (("0.20", set()), ("0.15", {"mlp.combine.unsorted"})):
        unit = layer_unit(context(moe_job(4, **settings, megatron_core_version=version)), "gqa+moe").unit
        events = trace(unit).forward
        at = next(i for i, event in enumerate(events) if event.op == "mlp.unpermute")
        alive = {live.tensor.name for live in alive_at(unit, at)}
        assert alive & {"mlp.combine.unsorted", "mlp.experts.linear_fc2.output"} == names


def test_a_forward_without_gradients_holds_pythons_variables() -> None:
    """Under full recompute nothing is kept, but fc1's output and the activation are variables while fc2 runs."""
    job = moe_job(**FULL, micro_batch_size=B)
    unit = estimate(job).stages[0].rank.plans[0].runs[1].unit
    events = trace(unit).forward
    at = next(i for i, event in enumerate(events) if event.op == "mlp.experts.linear_fc2")
    alive = {live.tensor.name for live in alive_at(unit, at)}
    assert {"mlp.experts.linear_fc1.output", "mlp.experts.activation.output", "pre_mlp_layernorm.output"} <= alive


def test_leaves_of_recomputed_moe_layers_stay_between_steps() -> None:
    """The dispatcher refers to the router's graph, whose leaf is the checkpoint's input: it and its gradient, of all 4 layers."""
    for settings in (FULL, selective("moe")):
        found = sum(t.nbytes for t in resting_tensors(estimate(moe_job(**settings, micro_batch_size=B)).stages[0].rank))
        assert found == 4 * 2 * H
    assert not resting_tensors(estimate(moe_job(micro_batch_size=B)).stages[0].rank)
    assert not resting_tensors(estimate(small_job(**FULL, micro_batch_size=B)).stages[0].rank)


@pytest.mark.parametrize(("layers", "measured"), [(1, 245_268_754), (2, 346_407_202)])
def test_leaves_of_recomputed_moe_layers_are_there_in_their_backward(layers: int, measured: int) -> None:
    """Four MoE layers of a middle stage, in checkpoints of one or two: in the backward of the first there are the inputs of the others and
    their gradients, and the gradient that the stage received; the maps of layers that are done (1.2 MiB) are not counted.

    Megatron-Core 0.19.2 and TransformerEngine 2.20.2 on tensors without contents.
    """
    config = moe_config(num_layers=12, num_query_groups=None, kv_channels=64, moe_permute_fusion=True) | {
        "moe_ffn_hidden_size": 1024
    }
    settings = {
        **FULL,
        "gradient_accumulation_fusion": True,
        "recompute_num_layers": layers,
        "seq_length": 4096,
        "pipeline_model_parallel_size": 3,
    }
    plan = estimate(TrainingJob.from_config(config, 3, **settings, router_imbalance=1)).stages[1].rank.plans[0]
    top = plan.tops["B"]
    assert top.copy == 0
    assert (plan.behind(0, 0), plan.received(0, 0)) == (2 * (4 // layers - 1) - 1, 1)
    assert top.nbytes == pytest.approx(measured, rel=0.006)


def test_the_schedule_holds_what_a_stage_received() -> None:
    """An fp32 stream is cast before it is kept, and the received tensor itself stays with the schedule: once per microbatch in flight."""
    extra: dict[str, Any] = {"pipeline_model_parallel_size": 2, "micro_batch_size": B}
    wide = TrainingJob.from_config(small_config(fp32_residual_connection=True), 2, seq_length=S, **extra)
    received, other, *_ = estimate(wide).stages[1].rank.plans[0].runs
    assert received.trace.saved_bytes - other.trace.saved_bytes == 2 * H
    narrow = estimate(small_job(2, **extra)).stages[1].rank.plans[0]
    assert narrow.runs[0].copies == 2, "a norm keeps the received tensor, and all layers are equal"


def test_a_router_widens_its_input_for_the_weights_gradient() -> None:
    """Both fp32 tensors are there at once, and the gradient in 16 bits only behind that."""
    job = moe_job(moe_router_dtype="fp32", micro_batch_size=B)
    unit = layer_unit(context(job), job.model.kinds[0]).unit
    op = next(item for item in flattened(unit.items) if item.name == "mlp.router")
    assert sum(t.nbytes for t in op.backward if "logits" not in t.name) + H == 2 * (2 * H)


@pytest.mark.parametrize(
    ("settings", "tensors"),
    [
        ({}, 1),
        ({"hidden_dropout": 0.1}, 2),
        ({"hidden_dropout": 0.1, "add_bias_linear": True}, 3),
        ({"hidden_dropout": 0.1, "add_bias_linear": True, "fp32_residual_connection": True}, 6),
    ],
)
def test_every_step_of_an_unfused_addition_makes_a_tensor(settings: dict[str, Any], tensors: int) -> None:
    """Bias, dropout and residual: the sum alone, with the dropped input, with its sum with the bias; in fp32 of twice the bytes each.
    What the linear made is alive to the end, and the fused kernel makes the sum alone."""
    found = {}
    for fused in (False, True):
        config = small_config(**settings, bias_dropout_fusion=fused)
        job = TrainingJob.from_config(config, 1, seq_length=S, micro_batch_size=B)
        unit = layer_unit(context(job), job.model.kinds[0]).unit
        events = trace(unit).forward
        at = next(i for i, event in enumerate(events) if event.op == "mlp_bda")
        alive = {live.tensor.name: live.tensor.nbytes for live in alive_at(unit, at)}
        assert alive["mlp.linear_fc2.output"] == H
        found[fused] = sum(n for name, n in alive.items() if name.startswith("mlp_bda") and "mask" not in name)
        assert trace(unit).saved_bytes == kept(small_config(**settings))
    assert (found[False], found[True]) == (tensors * H, H * (2 if "fp32_residual_connection" in settings else 1))


def test_the_local_specs_mask_is_made_of_ones_in_fp32() -> None:
    """torch.ones and its upper triangle (`transformer/utils.py`, get_default_causal_mask), beside the bool mask that stays;
    TransformerEngine has made its mask before, and applies that."""
    for settings, made in ((LOCAL, 2 * 4 * SQUARE), ({"attention_backend": "unfused"}, 0)):
        job = small_job(**{"seq_length": S, "params_dtype": "fp32", **settings})
        unit = layer_unit(context(job), job.model.kinds[0]).unit
        (op,) = (one for one in flattened(unit.items) if one.name.endswith("torch_softmax.causal_mask"))
        assert (sum(t.nbytes for t in op.writes), sum(t.nbytes for t in op.forward)) == (SQUARE, made)


def test_biases_of_columns_are_no_replicated_parameters() -> None:
    """With sequence parallelism gradients of parameters that all ranks have alike are flattened for a sum over them
    (`distributed/finalize_model_grads.py`): of a layer two norms of 2 h, and the biases of linear_proj and linear_fc2; the final norm."""
    settings = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "num_layers": 4}
    rank = estimate(small_job(2, **settings, add_bias_linear=True, normalization="LayerNorm")).stages[0].rank
    (row,) = flattened_gradients(rank)
    assert row.nbytes == 4 * (4 * (2 * 2 + 1 + 1) + 2) * 1024


def test_frozen_parameters_have_no_gradients_to_sum() -> None:
    """A router of 128 experts in each of 48 layers (`distributed/finalize_model_grads.py`: parameters that require a gradient); of LoRA's
    run neither norms nor what the adapters' tensor-parallel linears share out."""

    def flattened(**settings: Any) -> int:
        job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, tp=2, ep=4, sequence_parallel=True, **settings)
        return sum(row.nbytes for row in flattened_gradients(estimate(job).stages[0].rank))

    assert flattened() - flattened(freeze_moe_router=True) == 4 * 48 * 128 * 2048
    assert flattened(peft="lora") == 0
