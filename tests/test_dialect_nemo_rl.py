"""NeMo-RL's run files: chains of defaults, what decides memory with NeMo-RL's defaults, other engines refused by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.inputs.dialects.hydra import merged
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.nemo_rl import DIALECT
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of

from .dialect_runs import job, started, written
from .random_trees import leaves, paths_with_values, trees

RUN = """
defaults: ../../grpo_math_1B_megatron.yaml
policy:
  model_name: Qwen/Qwen3-8B
  train_micro_batch_size: 2
  max_total_sequence_length: 4096
  megatron_cfg: {tensor_model_parallel_size: 2, sequence_parallel: true}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""


def grpo(changes: str = "", **more: Any) -> TrainingJob:
    """The run with changes of dotted keys, one a line."""
    return job(
        started("examples/run_grpo_math.py", f"--config conf/run.yaml {changes}", {"conf/run.yaml": RUN}, **more)
    )


def noted(found: TrainingJob, words: str) -> bool:
    return any(words in note for note in (*found.assumptions, *found.warnings))


def test_a_file_over_the_frameworks_own_base() -> None:
    found = job(written(RUN))
    layout, training = found.layout, found.training
    assert (layout.world_size, layout.tp, layout.dp, layout.sequence_parallel, layout.etp) == (16, 2, 8, True, 1)
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (4096, 2, 512)
    assert training.grad_dtype == "bf16"
    assert training.use_distributed_optimizer
    assert training.use_precision_aware_optimizer
    assert training.overlap_grad_reduce
    assert training.overlap_param_gather
    assert not training.gradient_accumulation_fusion
    assert training.apply_rope_fusion
    assert training.bias_activation_fusion
    assert (training.loss_function, training.loss_chunk_size) == ("nemo_rl", None)
    assert training.freeze_moe_router
    assert found.model.padded_vocab(2) == 151936
    assert noted(found, "defaults of grpo_math_1B_megatron.yaml")
    assert noted(found, "at most 8192 tokens in a microbatch")
    assert not any("moe" in warning for warning in found.warnings), "every file carries them"


def test_the_engine_the_reference_and_what_leaves_the_gpu() -> None:
    rollout = grpo().rollout
    assert (rollout.rollout_engine, rollout.rollout_memory_share, rollout.rollout_sleeps) == ("vllm", 0.6, True)
    assert rollout.rollout_offload == ("weights", "gradients", "optimizer")
    assert rollout.log_prob_offload == ("gradients",)
    assert (rollout.reference_model, rollout.rollout_tensor_parallel_size) == ("host", 1)
    changed = grpo(
        "policy.offload_optimizer_for_logprob=true loss_fn.reference_policy_kl_penalty=0 policy.logprob_batch_size=4"
    ).rollout
    assert changed.log_prob_offload == ("gradients", "optimizer")
    assert changed.reference_model == "none"
    assert changed.log_prob_micro_batch_tokens == 4 * 4096
    own = "policy.generation.colocated.enabled=false policy.generation.colocated.resources"
    apart = grpo(f"{own}.num_nodes=1")
    assert (apart.layout.world_size, apart.rollout.rollout_colocated) == (8, False)
    assert apart.rollout.rollout_memory_share is None
    one = grpo(f"{own}.gpus_per_node=4 cluster.num_nodes=1")
    assert one.layout.world_size == 4
    with pytest.raises(ConfigError, match="leave some to train"):
        grpo(f"{own}.num_nodes=2")
    assert grpo("policy.generation.backend=megatron").rollout.rollout_engine is None


def test_chains_of_defaults_are_merged_key_by_key() -> None:
    files = {
        "base/one.yaml": RUN.replace("../../grpo", "grpo"),
        "two.yaml": """
defaults: [base/one.yaml]
policy:
  sequence_packing: {train_mb_tokens: "${mul:${policy.max_total_sequence_length}, ${max:${tp}, 3}}"}
  megatron_cfg:
    activation_checkpointing: true
    optimizer: {optimizer_cpu_offload: true, optimizer_offload_fraction: 1.0}
tp: ${policy.megatron_cfg.tensor_model_parallel_size}
""",
    }
    found = job(written("defaults: two.yaml\npolicy: {train_global_batch_size: 64}\n", files))
    training = found.training
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (3 * 4096, 1, 64)
    assert (training.recompute_granularity, training.recompute_method, training.recompute_num_layers) == (
        "full",
        "uniform",
        1,
    )
    assert training.optimizer_cpu_offload
    assert training.use_precision_aware_optimizer, "the base's"
    replaced = (
        "defaults: two.yaml\npolicy: {megatron_cfg: {_override_: true, enabled: true, tensor_model_parallel_size: 4}}\n"
    )
    assert job(written(replaced, files)).training.recompute_granularity is None
    assert (
        job(
            written("defaults: two.yaml\npolicy: {sequence_packing: {train_mb_tokens: null}}", files)
        ).training.seq_length
        == 4096
    )
    with pytest.raises(ConfigError, match="or on itself"):
        job(written("defaults: me.yaml\npolicy: {megatron_cfg: {}}", {"me.yaml": "defaults: me.yaml"}))


def test_words_win_over_the_file() -> None:
    found = grpo("cluster.num_nodes=1 ++policy.megatron_cfg.mtp_num_layers=0 policy.model_name=Qwen/Qwen3-14B ~grpo")
    assert found.layout.world_size == 8
    assert found.name == "Qwen/Qwen3-14B"
    base = started(
        "run_grpo.py", "policy.megatron_cfg.enabled=true policy.model_name=Qwen/Qwen3-8B cluster.gpus_per_node=4"
    )
    assert job(base).layout.world_size == 4, "over the base that the script takes"


def test_packing_batches_and_length() -> None:
    still = grpo("policy.sequence_packing.enabled=false").training
    assert (still.seq_length, still.micro_batch_size) == (4096, 2)
    dynamic = grpo(
        "policy.sequence_packing.enabled=false policy.dynamic_batching.enabled=true policy.dynamic_batching.train_mb_tokens=9000"
    )
    assert (dynamic.training.seq_length, dynamic.training.micro_batch_size) == (9000, 1)
    short = grpo("policy.sequence_packing.train_mb_tokens=1024")
    assert short.training.seq_length == 4096
    assert noted(short, "it runs alone")
    odd = grpo("policy.train_global_batch_size=8").training
    assert (odd.seq_length, odd.micro_batch_size, odd.global_batch_size) == (8192, 1, 8), "rows, not samples, divide"
    assert noted(
        grpo("policy.megatron_cfg.context_parallel_size=2 policy.sequence_packing.enabled=false"),
        "sequence_packing.enabled",
    )


def test_recomputation_loss_and_low_precision() -> None:
    engine = "policy.megatron_cfg"
    modules = grpo(
        f"{engine}.activation_checkpointing=true {engine}.recompute_granularity=selective {engine}.recompute_modules=[layernorm]"
    )
    assert modules.training.recompute_modules == ("layernorm",)
    assert grpo(f"{engine}.recompute_granularity=full").training.recompute_granularity is None, "the switch is off"
    chunks = grpo(f"{engine}.defer_fp32_logits=true policy.logprob_chunk_size=1024").training
    assert (chunks.loss_function, chunks.loss_chunk_size) == ("nemo_rl", 1024)
    whole = grpo("policy.logprob_chunk_size=1024")
    assert whole.training.loss_chunk_size is None
    assert noted(whole, "needs policy.megatron_cfg.defer_fp32_logits")
    assert grpo(f"{engine}.use_linear_ce_fusion_loss=true").training.loss_function == "fused"
    eight = grpo(
        f"{engine}.fp8_cfg.enabled=true {engine}.fp8_cfg.fp8=e4m3 {engine}.fp8_cfg.fp8_recipe=blockwise"
    ).training
    assert (eight.fp8, eight.fp8_recipe, eight.fp8_param_gather) == ("e4m3", "blockwise", False)
    assert grpo(f"{engine}.distributed_data_parallel_config.grad_reduce_in_fp32=true").training.grad_dtype == "fp32"


def test_log_probabilities_from_hidden_states_have_chunks_and_stop_beside_three_things() -> None:
    """NVIDIA-NeMo/RL `nemo_rl/models/megatron/setup.py`: chunks of 256 tokens where none are given."""
    engine = "policy.megatron_cfg"
    gather = f"{engine}.distributed_data_parallel_config.overlap_param_gather"
    alone = f"{engine}.use_fused_linear_logprobs=true policy.sequence_packing.enabled=false {gather}=false"
    found = grpo(alone).training
    assert (found.loss_function, found.loss_chunk_size) == ("nemo_rl_fused", 256)
    assert grpo(f"{alone} {engine}.fused_linear_logprobs_chunk_size=512").training.loss_chunk_size == 512
    for key in ("policy.sequence_packing.enabled=true", f"{gather}=true"):
        with pytest.raises(EstimatorError, match=f"does not work with {key.partition('=')[0]}"):
            grpo(f"{alone} {key}")


def test_overrides_of_the_provider_are_fields_of_its_class() -> None:
    found = grpo("+policy.megatron_cfg.model_overrides.apply_rope_fusion=false").training
    assert not found.apply_rope_fusion and grpo().training.apply_rope_fusion


def test_one_layer_of_mtp_serves_all_depths_with_its_switch() -> None:
    """Megatron-LM `multi_token_prediction.py` (MultiTokenPredictionBlock): its weights once, its activations for each depth."""
    engine = "policy.megatron_cfg"
    plain = estimate(grpo(f"+{engine}.mtp_num_layers=2")).stages[-1]
    repeated = estimate(grpo(f"+{engine}.mtp_num_layers=2 +{engine}.mtp_use_repeated_layer=true")).stages[-1]
    once = estimate(grpo(f"+{engine}.mtp_num_layers=1")).stages[-1]
    assert repeated.num_parameters == once.num_parameters < plain.num_parameters


def test_experts() -> None:
    engine = "policy.megatron_cfg"
    found = grpo(
        f"policy.model_name=Qwen/Qwen3-30B-A3B {engine}.expert_model_parallel_size=8 {engine}.moe_enable_deepep=true "
        f"{engine}.moe_token_dispatcher_type=flex {engine}.freeze_moe_router=false"
    )
    training = found.training
    assert (training.moe_token_dispatcher_type, training.moe_flex_dispatcher_backend) == ("flex", "deepep")
    assert training.moe_grouped_gemm
    assert training.moe_permute_fusion
    assert training.moe_router_dtype == "fp64"
    assert not training.freeze_moe_router
    assert found.model.moe_aux_loss_coeff == 0
    assert (found.layout.ep, found.layout.etp) == (8, 1)


def test_lora() -> None:
    peft = "policy.megatron_cfg.peft"
    found = grpo(f"{peft}.enabled=true {peft}.dim=16 {peft}.target_modules=[linear_qkv,linear_proj]").training
    assert (found.peft, found.peft_dim, found.peft_target_modules) == ("lora", 16, ("linear_qkv", "linear_proj"))
    every = grpo(f"{peft}.enabled=true")
    assert every.training.peft_dim == 8
    assert "linear_fc2" in every.training.peft_target_modules
    assert noted(every, "output layer is not counted")
    fewer = grpo(
        f"{peft}.enabled=true '{peft}.exclude_modules=[linear_fc1,\"*out_proj*\"]'"
    ).training.peft_target_modules
    assert "linear_fc2" in fewer
    assert not {"linear_fc1", "out_proj"} & set(fewer)
    with pytest.raises(ConfigError, match="exclude_modules"):
        grpo(f"{peft}.enabled=true {peft}.target_modules=[linear_qkv] {peft}.exclude_modules=[linear_fc1]")


def test_supervised_training_and_preferences() -> None:
    text = RUN.replace("grpo_math_1B_megatron", "sft").replace("megatron_cfg: {", "megatron_cfg: {enabled: true, ")
    found = job(written(text))
    assert found.rollout.rollout_engine is None
    assert found.training.global_batch_size == 32
    assert not found.training.freeze_moe_router
    pairs = job(
        written(
            RUN.replace(
                "policy:", "dpo: {reference_policy_kl_penalty: 0.05}\npolicy:\n  sequence_packing: {enabled: false}"
            )
        )
    )
    assert (pairs.training.micro_batch_size, pairs.training.global_batch_size) == (4, 1024), (
        "a chosen and a rejected answer"
    )
    assert (pairs.rollout.reference_model, pairs.rollout.rollout_engine) == ("host", None)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ("policy.megatron_cfg.enabled=false", "policy.dtensor_cfg.enabled"),
        ("policy.megatron_cfg.enabled=false", "policy.megatron_cfg.enabled"),
        ("policy.draft.enabled=true", "policy.draft.enabled"),
        ("+policy.megatron_cfg.quant_cfg=fp4", "quant_cfg"),
        ("+policy.megatron_cfg.swap_layers=2", "swap_layers"),
        ("policy.train_micro_batch_size=some", "train_micro_batch_size='some' must be a whole number"),
        ("policy.model_name=null", "--model NAME"),
    ],
)  # fmt: skip
def test_what_is_refused_or_asked(changes: str, text: str) -> None:
    with pytest.raises(EstimatorError) as error:
        grpo(changes)
    assert text in str(error.value)


def test_other_bases_are_asked_for_and_other_engines_refused() -> None:
    with pytest.raises(ConfigError, match=r"recipes/mine.yaml', on which run.yaml builds, is not there"):
        job(written(RUN.replace("../../grpo_math_1B_megatron.yaml", "recipes/mine.yaml")))
    with pytest.raises(UnsupportedError, match=r"dtensor_cfg.enabled is True"):
        job(written(RUN.replace("grpo_math_1B_megatron", "grpo_math_1B")))


def test_students_and_reward_models_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a student of a teacher"):
        job(started("run_distillation_math.py", "--config run.yaml", {"run.yaml": RUN}))
    with pytest.raises(UnsupportedError, match="a reward model"):
        job(written(RUN + "rm: {max_num_epochs: 1}\n"))


def test_variables_and_unknown_keys() -> None:
    engine = "policy.megatron_cfg"
    found = grpo(f"+{engine}.env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True +{engine}.new_switch=3 +{engine}.scheduler.lr=1 "
                 "logger.wandb_enabled=true checkpointing.enabled=false grpo.max_num_steps=5")  # fmt: skip
    assert found.env.expandable_segments
    muon = grpo(
        f"{engine}.optimizer.optimizer=muon +{engine}.optimizer.muon_nesterov=true +{engine}.optimizer.muon_num_ns_steps=5"
    )
    assert muon.training.muon_nesterov and not noted(muon, "muon_num_ns_steps")
    assert noted(found, f"unknown keys of NeMo-RL passed over: {engine}.new_switch")
    assert grpo("cluster.num_nodes='${oc.env:NODES}'", env={"NODES": "4", "path": "x"}).layout.world_size == 32


def test_runs_of_others_are_not_known() -> None:
    assert dialect_of(Run(program="run_sft.py", words=("--lr", "1"))) is None
    assert dialect_of(Run(document={"policy": {"name": "x"}})) is None


WORDS = (
    "policy megatron_cfg cluster num_nodes gpus_per_node generation colocated resources enabled peft dim target_modules optimizer defaults "
    "sequence_packing train_mb_tokens train_micro_batch_size max_total_sequence_length fp8_cfg fp8 tensor_model_parallel_size loss_fn "
    "pipeline_model_parallel_layout recompute_modules activation_checkpointing dpo sft env_vars precision distributed_data_parallel_config"
)
PARTS = st.sampled_from(WORDS.split())
LEAVES = leaves("${cluster}", "${mul:${cluster.num_nodes},2}", "run.yaml")


@settings(max_examples=150, deadline=None)
@given(
    tree=trees(PARTS, LEAVES),
    words=paths_with_values(PARTS, LEAVES),
)
def test_no_tree_and_no_words_crash(tree: dict[str, Any], words: list[tuple[list[str], Any]]) -> None:
    overrides = tuple(f"{'.'.join(path)}={value}" for path, value in words)
    files = {"run.yaml": RUN}.get
    for run in (
        Run(document=merged({"defaults": "run.yaml"}, tree), text_of=files),
        Run(program="run_grpo.py", words=("--config", "run.yaml", *overrides), text_of=files),
    ):
        with suppress(EstimatorError):
            job_of(DIALECT, run, None, {})
