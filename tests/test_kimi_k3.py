"""Kimi K3: attention residuals with their bank of prefixes, between layers, under checkpoints and between pipeline stages."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, LayoutError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator import plan as planned
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.modules.gated_delta_net import RULE_FLOPS
from megatron_memory_estimator.modules.layers import Declaration, layer_unit
from megatron_memory_estimator.planner.search import sampled
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.rank.boundary import pipeline_tensors
from megatron_memory_estimator.rank.chunks import ChunkPlan
from megatron_memory_estimator.tape.ops import flattened
from megatron_memory_estimator.tape.simulate import trace
from megatron_memory_estimator.tape.work import Streamed

from .helpers import context
from .test_planner import same_figures

NAME = "moonshotai/Kimi-K3"
S, H = 3584, 7168
PREFIX = 2 * S * H
FULL = {"recompute_granularity": "full", "recompute_method": "uniform"}


def job(**settings: Any) -> TrainingJob:
    return TrainingJob.from_hf(
        NAME, 192, **{"seq_length": S, "expert_model_parallel_size": 64, "router_imbalance": 1, **settings}
    )


def plans(**settings: Any) -> list[ChunkPlan]:
    return [stage.rank.plans[0] for stage in estimate(job(pipeline_model_parallel_size=3, **settings)).stages]


def kept(plan: ChunkPlan) -> int:
    return sum(run.trace.saved_bytes * run.copies for run in plan.runs if run.first_layer >= 0)


def test_a_bank_has_the_prefixes_of_the_blocks_before() -> None:
    kinds = job().model.kinds
    assert kinds[:2] == ("k3_kda+k3_dense@bank0_joined", "k3_kda+k3_moe@bank1")
    assert kinds[11:14] == ("k3_mla+k3_moe@bank1", "k3_kda+k3_moe@bank1_joined", "k3_kda+k3_moe@bank2")
    assert kinds[92] == "k3_mla+k3_moe@bank8_last"


def test_a_checkpoint_keeps_a_prefix_and_a_stage_each_bank_once() -> None:
    """Of 31 layers each: banks of 1, 2, 3 rows behind the layers 0, 12, 24; then those received and made behind 36, 48, 60; 72, 84."""
    found = [kept(plan) for plan in plans(**FULL)]
    assert found == [PREFIX * (31 + banks) for banks in (1 + 2 + 3, 3 + 4 + 5 + 6, 6 + 7 + 8)]


def test_layers_of_one_checkpoint_keep_a_bank_that_is_new_to_them() -> None:
    """Checkpoints of 13 layers begin at 0, 13, 26: behind the banks that the layers 12 and 24 made."""
    assert kept(plans(**FULL, recompute_num_layers=13)[0]) == PREFIX * (3 + 2 + 3)


def test_a_stage_keeps_what_it_received() -> None:
    """Without a checkpoint the first layer of a stage behind the first keeps prefix and bank beside its own."""
    first, second, _ = plans()
    like = {run.unit.name: run.trace.saved_bytes for run in second.runs[1:]}
    alone = second.runs[0]
    assert alone.copies == 1
    assert alone.trace.saved_bytes - like[alone.unit.name] == PREFIX * (1 + 3)
    assert first.runs[0].unit.name == "embedding"


def test_what_crosses_the_border_of_a_stage_has_the_bank_with_it() -> None:
    middle = estimate(job(pipeline_model_parallel_size=3)).stages[1].rank
    assert [t.nbytes for t in pipeline_tensors(middle, "F")] == [PREFIX * (1 + rows) for rows in (3, 3, 6)]


def test_a_sum_of_more_rows_keeps_more() -> None:
    """Two tensors in fp32 of the rows and the prefix in each of two sums, and two numbers of each."""
    like = {run.unit.name: run.trace.saved_bytes for plan in plans() for run in plan.runs}
    apart = like["k3_kda+k3_moe@bank2"] - like["k3_kda+k3_moe@bank1"]
    assert apart == 2 * (2 * 4 * S * H + 2 * 4 * S)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"context_parallel_size": 2}, "is not modelled"),
        ({"pipeline_model_parallel_size": 3, "virtual_pipeline_model_parallel_size": 31}, "excludes virtual pipeline stages"),
        ({"bias_activation_fusion": True}, "excludes bias_activation_fusion"),
        ({"fp8": "hybrid"}, "fp8 or fp4 is not modelled"),
        ({"cuda_graph_impl": "transformer_engine"}, "excludes cuda_graph_impl"),
        ({"recompute_granularity": "selective", "recompute_modules": ("moe",)}, "only moe_act is modelled"),
        ({"moe_shared_expert_overlap": True}, "excludes moe_shared_expert_overlap"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((LayoutError, UnsupportedError), match=sentence):
        estimate(job(**settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mtp_num_layers": 1}, "attn_res_block_size excludes mtp_num_layers"),
        ({"position_embedding_type": "rope"}, "needs position_embedding_type none"),
        ({"attn_res_block_size": 0}, "attn_res_block_size=0 must be at least 1"),
    ],
    ids=str,
)
def test_other_models_are_no_kimi_k3(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        job(**settings)


def test_kimi_linear_without_attention_residuals_is_refused() -> None:
    text = {**entries()[NAME]["config"]["text_config"], "attn_res_block_size": None}
    with pytest.raises(UnsupportedError, match="Kimi Linear without attention residuals"):
        TrainingJob.from_hf(text, 64)


def test_layers_that_are_named_twice_or_not_are_refused() -> None:
    text = entries()[NAME]["config"]["text_config"]
    odd = {**text, "linear_attn_config": {**text["linear_attn_config"], "kda_layers": [1, 2, 3]}}
    with pytest.raises(ConfigError, match="must be all layers, each once"):
        TrainingJob.from_hf(odd, 64)


def test_plans_have_the_figures_of_estimate() -> None:
    """What crosses the border of a stage depends on its layers, which tables of the planner do not hold: whole ranks on arrays."""
    space = Space(
        tensor_model_parallel_size=(1, 2), expert_model_parallel_size=(32, 64), micro_batch_size=(1, 2),
        pipeline_model_parallel_size=(3, 8), virtual_pipeline_model_parallel_size=(1,), context_parallel_size=(1,),
        recompute=("none", "moe_act"),
    )  # fmt: skip
    made = TrainingJob.from_hf(NAME, 1536, gpu="H200", seq_length=S, global_batch_size=1536)
    plans = sampled(made, space, 12, seed=3)
    assert len(plans) == 12
    for plan in plans:
        same_figures(plan)


TOKENS, HEADS, DIM = S, 96, 128
"""Of Kimi Delta Attention: heads and their width; chunks of 64 tokens."""


def layer(kind: str, **settings: Any) -> Declaration:
    return layer_unit(context(job(**settings)), kind)


def test_kimi_delta_attention_has_the_parameters_of_its_class() -> None:
    """No projection has a bias (Megatron-Bridge `kimi_k3_layers.py`): q, k, v, g and o of [96 x 128, h], three convolutions of 4 taps,
    the gate's two factors over 128 numbers, a beta and a decay per head, a time step per channel and the norm of a head."""
    width = HEADS * DIM
    count = 5 * width * H + 3 * 4 * width + DIM * H + width * DIM + HEADS * H + HEADS + width + DIM
    found = layer("k3_kda+k3_moe@bank1").params
    assert sum(p.numel for p in found if p.name.startswith("self_attention.")) == count


def test_the_delta_rule_makes_a_state_of_each_chunk() -> None:
    """A matrix of 128 x 128 per head and 64 tokens in 16 bits; the products of a token are with a head's whole matrix."""
    (rule,) = (op for op in flattened(layer("k3_kda+k3_moe@bank1").unit.items) if op.name.endswith(".delta_rule"))
    states = {t.name.rsplit(".", 1)[1]: t.nbytes for t in (*rule.forward, *rule.backward) if "states" in t.name}
    assert states == dict.fromkeys(("chunk states", "chunk states grad"), 2 * TOKENS // 64 * HEADS * DIM * DIM)
    (work,) = rule.work
    assert isinstance(work, Streamed) and work.flops == RULE_FLOPS * TOKENS * HEADS * DIM * DIM


def test_a_norm_op_by_op_has_a_statistic_of_each_token_of_all_sequences() -> None:
    saved = trace(layer("k3_mla+k3_moe@bank1", micro_batch_size=2).unit).saved
    found = {live.tensor.name: live.tensor.nbytes for live in saved if live.tensor.name.endswith("_layernorm.rsigma")}
    assert found["self_attention.q_a_layernorm.rsigma"] == found["self_attention.kv_a_layernorm.rsigma"] == 4 * 2 * S


LORA: dict[str, Any] = {
    "peft": "lora", "peft_dim": 16, "peft_experts": "linear_out_each",
    "peft_target_modules": ("o_proj", "q_a_proj", "kv_a_proj_with_mqa", "linear_fc1", "linear_fc2"),
}  # fmt: skip
"""Adapters as radixark/miles trains them (pull request 1825): rank 16, one linear_in for all experts and a linear_out for each."""


def adapters(**settings: Any) -> dict[str, int]:
    """Elements of adapters of all ranks of a pipeline on 64 GPUs by the linear beside them, experts of one expert-parallel rank."""
    given = {"seq_length": S, "expert_model_parallel_size": 64, "router_imbalance": 1, **LORA, **settings}
    found: dict[str, int] = {}
    for stage in estimate(TrainingJob.from_hf(NAME, 64, **given)).stages:
        for param, count in stage.rank.plans[0].params:
            if ".adapter." in param.name:
                key = param.name.split(".adapter.")[0].removeprefix("self_attention.")
                found[key] = found.get(key, 0) + param.numel * count
    return found


def test_adapters_have_a_linear_in_for_all_experts_and_a_linear_out_for_each() -> None:
    """By hand: 93 layers, 24 of latent attention, the first dense (33,792 wide), 92 with 896 experts of 3,584 x 3,072 and shared ones of
    6,144; every linear_in is [16, in], every linear_out [out, 16]."""
    model = job().model
    shared, wide = model.moe_shared_expert_intermediate_size or 0, model.moe_ffn
    assert (model.moe_latent_size, wide, shared) == (3584, 3072, 6144)
    local = 896 // 64
    assert adapters() == {
        "o_proj": 93 * 16 * (H + 96 * 128),
        "q_a_proj": 24 * 16 * (H + 1536),
        "kv_a_proj_with_mqa": 24 * 16 * (H + 576),
        "mlp.linear_fc1": 16 * (H + 2 * 33792),
        "mlp.linear_fc2": 16 * (H + 33792),
        "mlp.experts.linear_fc1": 92 * 16 * (3584 + local * 2 * wide),
        "mlp.experts.linear_fc2": 92 * 16 * (wide + local * 3584),
        "mlp.shared_experts.linear_fc1": 92 * 16 * (H + 2 * shared),
        "mlp.shared_experts.linear_fc2": 92 * 16 * (H + shared),
    }


def test_one_adapter_of_all_local_experts_is_smaller() -> None:
    """Megatron-Bridge's: a linear_out for the experts of a rank (`lora_layers.py`)."""
    found = adapters(peft_experts="shared")
    assert found["mlp.experts.linear_fc1"] == 92 * 16 * (3584 + 2 * 3072)


def test_a_frozen_base_has_two_bytes_a_parameter_and_keeps_what_adapters_need() -> None:
    """The base is in 16 bits but for convolutions, decays and time steps, which are in fp32 in its layers of delta attention. Sums over the
    bank keep no normed rows without weights to train."""
    plain, frozen = (estimate(job(pipeline_model_parallel_size=3, **more)).stages[1] for more in ({}, LORA))
    weights = sum(s.nbytes for s in frozen.rank.states if s.frozen)
    base = sum(p.numel * n * (4 if p.dtype == "fp32" else 2) for p, n in plain.rank.plans[0].params)
    assert weights == base
    names = {one.tensor.name for run in frozen.rank.plans[0].runs for one in run.trace.saved}
    assert not any(name.endswith(("_res.normed", "layernorm.normed")) for name in names)
    assert any(name.endswith("_res.values") for name in names)
    assert kept(frozen.rank.plans[0]) < kept(plain.rank.plans[0])


def test_plans_of_adapters_on_64_gpus_are_their_estimates() -> None:
    """The only public runs are LoRA on 64 GB300: layouts fit, and are what the estimate says."""
    asked = TrainingJob.from_hf(NAME, 64, gpu="GB300", seq_length=4096, **LORA)
    found = planned(asked, {"micro_batch_size": "1", "recompute": "full"}, global_batch_size=64).found.plans
    assert found
    for one in found[:3]:
        same_figures(one)
