"""Families that Megatron-Bridge builds with modules of its own: odd configs and odd layouts give a figure or one sentence."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import (
    EstimatorError,
    LayoutError,
    TrainingJob,
    UnsupportedError,
    count_parameters,
    estimate,
)
from megatron_memory_estimator.inputs.catalog import entries
from megatron_memory_estimator.inputs.hf.convert import convert
from megatron_memory_estimator.throughput import throughput

BASE: dict[str, Any] = {
    "hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    "intermediate_size": 256, "head_dim": 16, "max_position_embeddings": 4096, "sliding_window": 64,
}  # fmt: skip
TYPES = ["sliding_attention", "full_attention"] * 3
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
BLOCKS: list[dict[str, Any]] = [
    {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
    {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.3}},
    {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
    {"attention": {"n_heads_in_group": 4}, "ffn": {"replace_with_linear": True}},
    {"attention": {"no_op": True}, "ffn": {"no_op": True}},
    {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
]
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {},
    "exaone4": {"layer_types": TYPES},
    "exaone_moe": {**EXPERTS, "num_experts": 8, "num_shared_experts": 1, "layer_types": TYPES, "first_k_dense_replace": 1,
                   "num_nextn_predict_layers": 1, "swiglu_limits": [0, 0, 0, 0, 7.0, 7.0]},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8},
    "minimax_m2": {"num_local_experts": 8, "num_experts_per_tok": 2, "rotary_dim": 8, "scoring_func": "sigmoid",
                   "use_routing_bias": True},
    "nemotron-nas": {"block_configs": BLOCKS, "num_key_value_heads": None, "intermediate_size": None},
    "mimo_v2_flash": {**EXPERTS, "n_routed_experts": 8, "head_dim": 24, "v_head_dim": 16, "swa_num_key_value_heads": 8,
                      "hybrid_layer_pattern": [0, 1, 1, 0, 1, 1], "moe_layer_freq": [0, 1, 1, 1, 1, 1], "scoring_func": "sigmoid",
                      "partial_rotary_factor": 0.334, "sliding_window_size": 64},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128, "mamba_d_state": 32, "mamba_n_groups": 2,
                  "mamba_chunk_size": 64, "mamba_rms_norm": True},
    "minimax_m3_vl_text": {"num_local_experts": 8, "num_experts_per_tok": 2, "dense_intermediate_size": 256, "intermediate_size": 64,
                           "shared_intermediate_size": 64, "n_shared_experts": 1, "hidden_act": "swigluoai", "rotary_dim": 8,
                           "moe_layer_freq": [0, 1, 1, 1, 1, 1]},
    "gemma4_text": {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64, "layer_types": TYPES,
                    "global_head_dim": 32, "num_global_key_value_heads": 2, "attention_k_eq_v": False, "final_logit_softcapping": 30.0},
    "gemma4_dense": {"model_type": "gemma4_text", "enable_moe_block": False, "layer_types": TYPES, "num_kv_shared_layers": 2,
                     "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 1000, "use_double_wide_mlp": True,
                     "global_head_dim": 32, "num_global_key_value_heads": 2, "tie_word_embeddings": True},
    "kimi_linear": {**EXPERTS, "num_experts": 8, "num_shared_experts": 1, "attn_res_block_size": 2, "routed_expert_hidden_size": 64,
                    "first_k_dense_replace": 1, "hidden_act": "situ", "kv_lora_rank": 32, "q_lora_rank": 48, "qk_nope_head_dim": 16,
                    "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 8,
                    "linear_attn_config": {"num_heads": 8, "head_dim": 16, "kda_layers": [1, 2, 4, 5], "full_attn_layers": [3, 6]}},
    "step3p5": {"num_attention_groups": 4, "moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 64, "share_expert_dim": 64,
                "moe_layers_enum": "1,2,3,4,5", "layer_types": TYPES, "mtp_layer_types": ["sliding_attention"],
                "num_nextn_predict_layers": 1, "use_head_wise_attn_gate": True, "use_qk_norm": True, "need_fp32_gate": True,
                "swiglu_limits": [0, 0, 0, 0, 0, 7.0], "swiglu_limits_shared": [0, 0, 0, 0, 0, 16.0],
                "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 12,
                                            "num_attention_groups": 4, "head_dim": 16}},
}  # fmt: skip
ODD: list[Any] = [
    0, 1, -1, None, True, False, "x", "", [], {}, 10**9, 1.5, float("nan"), -0.5, [[1]], [1], ["x"], [None, 2], {"a": 1}, 7, 3,
    [0] * 50, "silu", [1] * 6, ["sliding_attention"] * 6, [0.5] * 6, [{}] * 6,
]  # fmt: skip
LAYOUT: dict[str, list[Any]] = {
    "tensor_model_parallel_size": [1, 1, 2, 4, 8, 3], "context_parallel_size": [1, 1, 2], "pipeline_model_parallel_size": [1, 2, 3],
    "expert_model_parallel_size": [1, 2, 8], "sequence_parallel": [True, False], "micro_batch_size": [1, 2], "seq_length": [256, 100],
    "cp_comm_type": ["p2p", "a2a", "all_gather"], "recompute_granularity": [None, "full", "selective"],
    "recompute_method": ["uniform", "block"], "recompute_num_layers": [1], "recompute_modules": [("core_attn", "mlp"), ("moe",)],
    "attention_kernel": ["flash", "cudnn", "unfused", "local"], "transformer_impl": ["local", "transformer_engine"],
    "bias_activation_fusion": [True, False], "apply_rope_fusion": [True, False], "fp8": ["hybrid"], "fp8_recipe": ["tensorwise", "delayed"],
    "peft": ["none", "lora", "dora", "canonical_lora"], "hidden_dropout": [0.0, 0.1], "attention_dropout": [0.1],
    "cuda_graph_impl": ["none", "transformer_engine", "full_iteration"], "mtp_num_layers": [0, 1, 2], "use_torch_fsdp2": [True],
    "overlap_moe_expert_parallel_comm": [True], "moe_token_dispatcher_type": ["alltoall", "allgather", "flex"],
    "fine_grained_activation_offloading": [True], "offload_modules": [("attn_proj", "core_attn")], "loss_function": ["fused"],
    "cross_entropy_fusion_impl": ["te", "native"], "cross_entropy_loss_fusion": [True], "optimizer": ["muon", "sgd"],
}  # fmt: skip


def config(kind: str) -> dict[str, Any]:
    return copy.deepcopy({**BASE, "model_type": kind, **CONFIGS[kind]})


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_small_config_of_the_family_is_estimated_and_timed(kind: str) -> None:
    found = estimate(TrainingJob.from_hf(config(kind), 1, seq_length=256))
    assert found.peak_stage.peak_allocated_bytes > 0
    assert throughput(found).step > 0
    model = found.job.model
    other = _padding(found.job) + _mtp(found.job) - sum(n for _, n in model.foreign_layers)
    assert count_parameters(model).total == sum(found.stages[0].num_parameters) - other


def _padding(job: TrainingJob) -> int:
    model = job.model
    tables = 1 if model.share_embeddings_and_output_weights else 2
    return tables * (model.padded_vocab(1) - (model.vocab_size or 0)) * model.hidden_size


def _mtp(job: TrainingJob) -> int:
    return count_parameters(job.model).mtp


@st.composite
def odd_jobs(draw: st.DrawFn, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A config with none to two odd values, and one to six odd settings."""
    found = config(kind)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(found)))
        if draw(st.integers(0, 3)):
            found[name] = draw(st.sampled_from(ODD))
        else:
            found.pop(name)
    names = draw(st.lists(st.sampled_from(sorted(LAYOUT)), min_size=1, max_size=6, unique=True))
    return found, {name: draw(st.sampled_from(LAYOUT[name])) for name in names}


@pytest.mark.parametrize("kind", CONFIGS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_odd_job_of_the_family_gives_a_figure_or_a_sentence(kind: str, data: st.DataObject) -> None:
    odd, given = data.draw(odd_jobs(kind))
    try:
        found = estimate(TrainingJob.from_hf(odd, 48, **given))
    except EstimatorError as error:
        said = str(error)
        assert said and "Traceback" not in said
    else:
        assert found.peak_stage.peak_allocated_bytes > 0


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("exaone_moe", {"layer_types": ["linear_attention"] * 6}, "full_attention and sliding_attention are known"),
    ("exaone_moe", {"sliding_windows": [64]}, "sliding_windows in config.json has 1 entries for 6 layers"),
    ("exaone_moe", {"mtp_layer_types": ["full_attention", "sliding_attention"]}, "differ from one another"),
    ("exaone_moe", {"swiglu_limits": ["x"]}, "swiglu_limits in config.json must be a list of numbers"),
    ("mimo_v2_flash", {"hybrid_layer_pattern": [0, 1]}, "0 or 1 for each layer"),
    ("mimo_v2_flash", {"hybrid_layer_pattern": [2] * 6}, "0 or 1 for each layer"),
    ("step3p5", {"moe_layers_enum": "1,x"}, "must be a list of layers"),
    ("step3p5", {"moe_layers_enum": 3}, "must be a list of layers"),
    ("step3p5", {"mtp_layer_types": ["sliding_attention", "full_attention"], "num_nextn_predict_layers": 2}, "differ from one another"),
    ("nemotron-nas", {"block_configs": [{"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 2}}] * 6},
     "num_attention_heads=8 in config.json is not divisible by n_heads_in_group=3"),
    ("nemotron-nas", {"block_configs": [{"attention": {"no_op": True, "replace_with_linear": True}, "ffn": {"ffn_mult": 2}}] * 6},
     "both no_op and replace_with_linear"),
    ("nemotron-nas", {"block_configs": [{"attention": {"no_op": True}, "ffn": {}}] * 6}, "ffn in block_configs of config.json has no"),
    ("olmoe", {"num_key_value_heads": 4}, "num_query_groups=4 to be num_attention_heads=8"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "said"), WRONG)
def test_what_the_family_cannot_be_is_refused_in_one_sentence(kind: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(EstimatorError, match=said):
        TrainingJob.from_hf({**config(kind), **change})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("allenai/OLMoE-1B-7B-0924", {"tensor_model_parallel_size": 2}, "qk_layernorm_scope=projection needs tensor_model_parallel_size=1"),
    ("google/gemma-2-2b", {"context_parallel_size": 2}, "core_attention=flex excludes context_parallel_size=2"),
    ("LGAI-EXAONE/EXAONE-4.0-32B", {"context_parallel_size": 2}, "core_attention=local excludes context_parallel_size=2"),
    ("google/gemma-3-27b-pt", {"context_parallel_size": 2}, "cp_comm_type p2p does not exist for sliding windows; use a2a or all_gather"),
    ("openai/gpt-oss-20b", {"context_parallel_size": 2}, "softmax_type=learnable with context parallelism needs cp_comm_type a2a"),
    ("google/gemma-3-27b-pt", {"bias_activation_fusion": True}, "excludes activation_func=fast_gelu; turn bias_activation_fusion off"),
    ("XiaomiMiMo/MiMo-V2-Flash", {"tensor_model_parallel_size": 8}, "at most num_query_groups=4; use tensor_model_parallel_size 1, 2 or 4"),
    ("XiaomiMiMo/MiMo-V2-Flash", {"context_parallel_size": 2}, "value_channels=128 excludes context_parallel_size=2"),
    ("stepfun-ai/Step-3.5-Flash", {"tensor_model_parallel_size": 64}, "num_attention_heads=96 is not divisible by"),
    ("MiniMaxAI/MiniMax-M2.5", {"tensor_model_parallel_size": 5}, "num_query_groups=8 and tensor_model_parallel_size=5 must divide"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "said"), REFUSED)
def test_what_the_real_classes_refuse_is_refused_with_a_fix(name: str, given: dict[str, Any], said: str) -> None:
    ways = given.get("tensor_model_parallel_size", 1) * given.get("context_parallel_size", 1)
    with pytest.raises(EstimatorError) as found:
        estimate(TrainingJob.from_hf(name, ways * 2, sequence_parallel=False, **given))
    assert said in str(found.value)


@pytest.mark.parametrize(
    "name",
    ["LGAI-EXAONE/K-EXAONE-236B-A23B", "XiaomiMiMo/MiMo-V2-Flash", "stepfun-ai/Step-3.5-Flash", "google/gemma-2-2b"],
)
def test_fusions_are_those_of_the_provider_unless_asked_for(name: str) -> None:
    """A provider of Megatron-Bridge leaves them off (`models/gpt_provider.py`); Megatron-LM's arguments have them on."""
    training = TrainingJob.from_hf(name, 64).training
    assert not training.bias_activation_fusion and not training.apply_rope_fusion
    assert TrainingJob.from_hf(name, 64, apply_rope_fusion=True).training.apply_rope_fusion
    assert TrainingJob.from_hf("Qwen/Qwen3-8B", 64).training.bias_activation_fusion


def test_clamps_of_the_last_layers_keep_copies() -> None:
    """Step-3.5's `swiglu_limits`: gate and linear half clamped, as unfused SwiGLU keeps them."""
    config = entries()["stepfun-ai/Step-3.5-Flash"]["config"]
    kept = [
        estimate(TrainingJob.from_hf({**config, "swiglu_limits": [limit] * 48}, 64, ep=16))
        .stages[0]
        .peak_allocated_bytes
        for limit in (0.0, 7.0)
    ]
    assert kept[1] > kept[0]


def test_who_builds_a_family_is_said() -> None:
    for name, provider in (
        ("google/gemma-2-2b", "Gemma2ModelProvider"),
        ("stepfun-ai/Step-3.5-Flash", "Step35ModelProvider"),
    ):
        warnings = convert(entries()[name]["config"], name, "the catalogue").warnings
        assert any(provider in warning and "not in Megatron-LM's own models" in warning for warning in warnings)


def test_olmo_2_stays_refused_because_nothing_builds_it() -> None:
    with pytest.raises(UnsupportedError, match="OLMo 2"):
        estimate(TrainingJob.from_hf("allenai/OLMo-2-1124-7B", 8))


STEP = "stepfun-ai/Step-3.5-Flash"


@pytest.mark.parametrize(("pp", "heads"), [(1, 96), (3, 64)])
def test_mtp_layers_of_a_later_stage_have_full_attention(pp: int, heads: int) -> None:
    """Megatron-Bridge `stepfun/step35_provider.py` (Step35DecoderLayer) adds the stage's offset to num_layers: 45 + 30 is behind the 48
    layer types. A dense layer of h = 4,096, f = 11,264, heads of 128 with gates, 8 groups: qkv, proj, fc1, fc2, norms; MTP adds eh_proj
    and three norms."""
    stage = estimate(TrainingJob.from_hf(STEP, 36 * pp, pp=pp, ep=36)).stages[-1]
    mtp = next(run for run in stage.rank.plans[0].runs if run.unit.name == "mtp")
    hidden, wide = 4096, 11264
    matrices = hidden * ((2 * heads + 16) * 128 + heads * 128 + 3 * wide + 2 * hidden)
    norms = 2 * hidden + 2 * 128 + 3 * hidden
    table = 128_896 * hidden if pp > 1 else 0
    assert sum(param.numel for param in mtp.params) == 3 * (matrices + norms) + table


def test_mtp_layers_behind_few_layers_are_refused() -> None:
    with pytest.raises(LayoutError, match="put at least 3 layers on the stages before"):
        estimate(TrainingJob.from_hf(STEP, 72, pp=2, ep=36, pipeline_model_parallel_layout="Et|t*44mmmL"))


def test_rotary_tables_have_the_models_width() -> None:
    """A layer's part of rotary dims in `partial_rotary_factors` changes no table: cos and sin, twice, of 128 dims in bf16."""
    config = {**entries()[STEP]["config"], "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0] * 12}
    stage = estimate(TrainingJob.from_hf(config, 36, ep=36, seq_length=4096)).stages[0]
    first = next(run for run in stage.rank.plans[0].runs if run.first_layer == 0)
    tables = [live.tensor.nbytes for live in first.trace.saved if ".rotary." in live.tensor.name]
    assert tables == [4096 * 128 * 2] * 4
