"""verl's run files: what decides memory is read with verl's defaults, other engines are refused by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_memory_estimator import ConfigError, EstimatorError, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.inputs.dialects.hydra import merged
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.inputs.dialects.verl import DIALECT

from .dialect_runs import job, started, written
from .random_trees import leaves, paths_with_values, trees

PPO = "verl.trainer.main_ppo"
A = "actor_rollout_ref.actor"
M = f"{A}.megatron"
R = "actor_rollout_ref.rollout"
BASE = (
    "--config-path=config --config-name=ppo_megatron_trainer.yaml algorithm.adv_estimator=grpo "
    "actor_rollout_ref.model.path=/data/models/Qwen3-8B data.max_prompt_length=1024 data.max_response_length=3072 "
    f"{A}.ppo_mini_batch_size=32 {A}.ppo_micro_batch_size_per_gpu=2 {R}.n=4 {R}.name=vllm "
    f"{M}.tensor_model_parallel_size=2 trainer.nnodes=2 trainer.n_gpus_per_node=8"
)
DYNAMIC = f"{BASE} {A}.use_dynamic_bsz=True"


def ppo(words: str = "", base: str = BASE, **more: Any) -> TrainingJob:
    return job(started(PPO, f"{base} {words}", **more))


def noted(found: TrainingJob, words: str) -> bool:
    return any(words in note for note in (*found.assumptions, *found.warnings))


def test_words_give_the_run_with_the_defaults_of_verl() -> None:
    found = ppo()
    layout, training, model = found.layout, found.training, found.model
    assert (layout.world_size, layout.tp, layout.pp, layout.cp, layout.dp) == (16, 2, 1, 1, 8)
    assert layout.sequence_parallel
    assert layout.expert_tensor_parallel_size is None
    assert (training.seq_length, training.micro_batch_size, training.global_batch_size) == (4096, 2, 128)
    assert training.use_distributed_optimizer
    assert not training.use_precision_aware_optimizer
    assert training.grad_dtype == "fp32"
    assert not training.overlap_grad_reduce
    assert training.recompute_granularity is None
    assert training.gradient_accumulation_fusion
    assert not training.create_attention_mask_in_dataloader
    assert training.loss_function == "verl"
    assert not training.loss_entropy
    assert model.padded_vocab(layout.tp) == 151936
    assert noted(found, "at most 8192 tokens in a microbatch")
    assert noted(found, "the folder Qwen3-8B is the catalogue model")


def test_the_engine_and_what_leaves_the_gpu() -> None:
    rollout = ppo().rollout
    assert (rollout.rollout_engine, rollout.rollout_colocated, rollout.rollout_sleeps) == ("vllm", True, True)
    assert (rollout.rollout_memory_share, rollout.rollout_tensor_parallel_size) == (0.5, 2)
    assert rollout.rollout_offload == rollout.log_prob_offload == ()
    assert (rollout.reference_model, rollout.critic_model) == ("none", "none")
    assert rollout.weight_sync_bytes == 2048 * 2**20
    away = ppo(
        f"{M}.param_offload=True {M}.optimizer_offload=True {R}.gpu_memory_utilization=0.85 {A}.use_kl_loss=True"
    )
    assert away.rollout.rollout_offload == ("weights", "gradients", "optimizer")
    assert away.rollout.log_prob_offload == ("gradients", "optimizer")
    assert away.rollout.reference_model == "offloaded"
    assert away.rollout.rollout_memory_share == 0.85
    assert not away.training.optimizer_cpu_offload, "between the phases, not during the step"
    kept = ppo(f"{M}.param_offload=True {M}.grad_offload=False")
    assert kept.rollout.rollout_offload == ("weights",), "the older switch of gradients"
    assert ppo("algorithm.use_kl_in_reward=True").rollout.reference_model == "device"
    assert ppo(f"{A}.use_kl_loss=True actor_rollout_ref.model.lora.rank=8").rollout.reference_model == "none"
    apart = ppo("actor_rollout_ref.hybrid_engine=False").rollout
    assert not apart.rollout_colocated
    assert apart.rollout_memory_share is None


def test_a_draft_model_of_the_engine_is_named() -> None:
    words = "+actor_rollout_ref.rollout.engine_kwargs.sglang.speculative_algorithm=EAGLE"
    assert any("the engine's draft model are not counted" in one for one in ppo(words).warnings)
    assert not any("draft" in one for one in ppo().warnings)


def test_dynamic_batches_are_one_row_of_the_limit_times_cp() -> None:
    found = ppo(f"{M}.context_parallel_size=2 {A}.ppo_max_token_len_per_gpu=6000", DYNAMIC)
    assert (found.training.seq_length, found.training.micro_batch_size) == (12000, 1)
    assert noted(found, "at most 12000 tokens")
    assert ppo("", DYNAMIC).training.seq_length == 16384, "verl's default"
    short = ppo(f"{A}.ppo_max_token_len_per_gpu=2048", DYNAMIC)
    assert noted(short, "a sample may have 4096 tokens")
    assert short.training.seq_length == 2048
    forward = ppo(f"{R}.log_prob_max_token_len_per_gpu=32768", DYNAMIC)
    assert forward.rollout.log_prob_micro_batch_tokens == 32768
    assert ppo(f"{R}.log_prob_micro_batch_size_per_gpu=8").rollout.log_prob_micro_batch_tokens == 8 * 4096


def test_fields_of_megatron_behind_overrides() -> None:
    fields, optimizer = f"+{M}.override_transformer_config", f"+{A}.optim.override_optimizer_config"
    found = ppo(
        f"{fields}.recompute_granularity=full {fields}.recompute_method=uniform {fields}.recompute_num_layers=1 "
        f"{fields}.moe_token_dispatcher_type=flex {fields}.moe_enable_deepep=True {fields}.apply_rope_fusion=True "
        f"{fields}.moe_z_loss_coeff=0.001 "
        f"{optimizer}.optimizer_cpu_offload=True {optimizer}.optimizer_offload_fraction=0.5 "
        f"{optimizer}.use_precision_aware_optimizer=True {optimizer}.overlap_cpu_optimizer_d2h_h2d=True "
        f"{M}.expert_model_parallel_size=8 {M}.expert_tensor_parallel_size=1 actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B"
    )
    training = found.training
    assert (training.recompute_granularity, training.recompute_method) == ("full", "uniform")
    assert (training.moe_token_dispatcher_type, training.moe_flex_dispatcher_backend) == ("flex", "deepep")
    assert training.apply_rope_fusion
    assert training.optimizer_cpu_offload
    assert training.optimizer_offload_fraction == 0.5
    assert training.use_precision_aware_optimizer
    assert (found.layout.ep, found.layout.etp) == (8, 1)
    assert found.model.moe_aux_loss_coeff == 0
    assert training.moe_grouped_gemm
    assert not found.warnings[1:], found.warnings


def test_gradients_follow_the_precision_aware_optimizer() -> None:
    aware = f"{A}.optim.use_precision_aware_optimizer=True {A}.optim.main_grads_dtype=bf16 {A}.optim.exp_avg_dtype=bf16"
    found = ppo(aware).training
    assert (found.grad_dtype, found.exp_avg_dtype) == ("bf16", "bf16")
    assert ppo(f"{A}.optim.exp_avg_dtype=bf16").training.exp_avg_dtype == "fp32", (
        "without it the moments stay as they are"
    )
    assert ppo(f"+{M}.override_ddp_config.grad_reduce_in_fp32=False").training.grad_dtype == "bf16"
    half = ppo(f"{M}.dtype=float16").training
    assert (half.params_dtype, half.use_precision_aware_optimizer, half.store_param_remainders) == ("fp16", True, False)


def test_fusions_are_those_of_the_family_in_megatron_bridge() -> None:
    assert not ppo().training.bias_activation_fusion, "Qwen"
    llama = ppo("actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B-Instruct").training
    assert llama.bias_activation_fusion
    assert llama.apply_rope_fusion


def test_the_loss() -> None:
    assert ppo(f"{A}.entropy_coeff=0.001").training.loss_entropy
    chunked = ppo(f"{A}.calculate_entropy=True {A}.entropy_from_logits_with_chunking=True").training
    assert (chunked.loss_entropy, chunked.loss_chunk_size) == (True, 2048)
    assert ppo(f"{A}.entropy_from_logits_with_chunking=True").training.loss_chunk_size is None
    fused = "actor_rollout_ref.model.use_fused_kernels=True"
    assert ppo(fused).training.loss_function == "fused"
    assert ppo(f"{fused} {M}.use_remove_padding=False").training.loss_function == "verl", "they need packed rows"
    assert ppo(f"{R}.temperature=0.7").training.loss_temperature


def test_lora_of_megatron_bridge() -> None:
    lora = "actor_rollout_ref.model.lora"
    found = ppo(f"{lora}.rank=16 {lora}.type=canonical_lora {lora}.target_modules='[linear_q,linear_proj]'").training
    assert (found.peft, found.peft_dim, found.peft_target_modules) == (
        "canonical_lora",
        16,
        ("linear_q", "linear_proj"),
    )
    assert ppo(f"{lora}.rank=0").training.peft == "none"
    others = ppo("actor_rollout_ref.model.lora_rank=32")  # FSDP's word
    assert others.training.peft == "none" and any("lora.rank gives adapters" in said for said in others.warnings)
    for words in (
        f"{lora}.type=vlm_lora",
        f"{lora}.exclude_modules=[linear_fc1]",
        f"{lora}.target_modules=['*.layers.0.*.linear_qkv']",
    ):
        with pytest.raises(ConfigError, match=r"model\.lora"):
            ppo(f"{lora}.rank=16 {words}")


def test_mtp_layers_are_off_unless_they_are_enabled() -> None:
    deepseek = (
        f"actor_rollout_ref.model.path=deepseek-ai/DeepSeek-V3 {M}.pipeline_model_parallel_size=4 {M}.tensor_model_parallel_size=1 "
        f"{M}.expert_model_parallel_size=4 {M}.expert_tensor_parallel_size=1 "
        f"+{M}.override_transformer_config.num_layers_in_last_pipeline_stage=13"
    )
    assert not ppo(deepseek).model.mtp
    assert ppo(f"{deepseek} actor_rollout_ref.model.mtp.enable=True").model.mtp == 1


def test_the_critic_and_the_default_estimator() -> None:
    gae = BASE.replace("adv_estimator=grpo", "adv_estimator=gae")
    with pytest.raises(
        ConfigError, match="critic: tensor_model_parallel_size=1 beside the policy's 2"
    ):  # verl's own default
        ppo("critic.ppo_micro_batch_size_per_gpu=8", gae)
    gae += " critic.megatron.tensor_model_parallel_size=2"
    found = ppo("critic.ppo_micro_batch_size_per_gpu=8", gae)
    assert found.rollout.critic_model == "device"
    assert noted(found, "a critic as large as the policy")
    assert noted(found, "up to 32768 tokens")
    away = " ".join(
        f"{who}.megatron.{what}=True" for who in ("critic", A) for what in ("param_offload", "optimizer_offload")
    )
    assert ppo(away, gae).rollout.critic_model == "in_turn"
    assert ppo("critic.enable=False", gae).rollout.critic_model == "none"
    with pytest.raises(ConfigError, match="critic: 'Qwen/Qwen3-32B' is another model"):
        ppo("critic.model.path=Qwen/Qwen3-32B", gae)
    with pytest.raises(ConfigError, match="critic: pipeline_model_parallel_size=2 beside the policy's 1"):
        ppo("critic.megatron.pipeline_model_parallel_size=2", gae)
    silent = ppo("", BASE.replace("algorithm.adv_estimator=grpo ", ""))
    assert silent.rollout.critic_model == "none"
    assert noted(silent, "adv_estimator is not given")


def test_a_yaml_with_the_same_tree() -> None:
    text = """
defaults: [ppo_megatron_trainer, _self_]
length: 1024
algorithm: {adv_estimator: grpo}
data: {max_prompt_length: "${length}", max_response_length: "${mul:${length},3}"}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B, gradient_checkpointing_kwargs: {activations_checkpoint_granularity: full}}
  actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 1, megatron: {tensor_model_parallel_size: 4}}
  rollout: {name: sglang, n: 8}
trainer: {nnodes: "${oc.env:NODES,2}", n_gpus_per_node: 8}
"""
    found = job(written(text))
    assert (found.layout.world_size, found.training.seq_length) == (16, 4096)
    assert (found.training.global_batch_size, found.rollout.rollout_engine) == (512, "sglang")
    assert found.training.recompute_granularity == "full", "as it was given until 2025"
    assert job(written(text, env={"NODES": "4"})).layout.world_size == 32
    unset = text.replace("NODES,2", "NODES")
    with pytest.raises(ConfigError, match=r"variable NODES, which is not set; give --set NODES=N"):
        job(written(unset))
    assert job(written(unset, variables={"NODES": "1"})).layout.world_size == 8


def test_a_config_of_ones_own() -> None:
    mine = "defaults: [ppo_megatron_trainer]\nactor_rollout_ref: {rollout: {n: 16, gpu_memory_utilization: 0.3}}\n"
    words = BASE.replace("ppo_megatron_trainer.yaml", "mine")
    found = job(started(PPO, words, {"config/mine.yaml": mine}))
    assert (found.rollout.rollout_memory_share, found.training.global_batch_size) == (0.3, 128), "words win"
    with pytest.raises(ConfigError, match=r"mine.yaml, on which the run builds, is not beside run.sh"):
        job(started(PPO, words))
    with pytest.raises(ConfigError, match="builds on more than"):
        job(started(PPO, words, {"config/mine.yaml": "defaults: [mine]"}))


def test_supervised_training() -> None:
    words = (
        "data.train_batch_size=64 data.max_length=2048 model=hf_model model.path=Qwen/Qwen3-8B engine=megatron optim=megatron "
        "engine.tensor_model_parallel_size=2 engine.context_parallel_size=2"
    )
    found = job(started("verl.trainer.sft_trainer", words, num_gpus=8))
    training = found.training
    assert (found.layout.world_size, training.seq_length, training.micro_batch_size) == (8, 2 * 8192, 1)
    assert training.global_batch_size == 64
    assert found.rollout.rollout_engine is None
    still = job(started("verl.trainer.sft_trainer", f"{words} data.use_dynamic_bsz=False", num_gpus=8)).training
    assert (still.seq_length, still.micro_batch_size) == (2048, 4)
    with pytest.raises(UnsupportedError, match="fsdp"):
        job(started("verl.trainer.sft_trainer", words.replace("engine=megatron ", "")
                    .replace("engine.", "engine.x_"), num_gpus=8))  # fmt: skip


def test_dynamic_context_parallelism_packs_rows_of_its_own() -> None:
    """verl 0.9.1 `dynamic_cp_scheduler.py`: whatever the batch sizes say, at most so many tokens on a rank, by a newer Megatron-Core."""
    found = ppo(f"{M}.dynamic_context_parallel=True {M}.max_seqlen_per_dp_cp_rank=2048 {A}.use_dynamic_bsz=True")
    training = found.training
    assert (found.layout.cp, found.layout.dp, training.seq_length, training.micro_batch_size) == (2, 4, 4096, 1)
    assert training.mcore == (0, 20)
    assert noted(found, "2 ranks with 2,048 tokens each (seq_length 4,096")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (f"{A}.strategy=fsdp2", "fsdp2"),
        (f"{M}.dynamic_context_parallel=True", "max_seqlen_per_dp_cp_rank is not given"),
        (f"{M}.qat.enable=True", "qat"),
        ("distillation.enabled=True", "distillation.enabled"),
        (f"+{M}.swap_layers=3", "swap_layers="),
        (f"+{A}.optim.override_optimizer_config.swap_optimizer=True", "swap_optimizer"),
        (f"+{A}.freeze_layers=4", "freeze_layers="),
        ("+actor_rollout_ref.model.override_config.num_hidden_layers=4", "num_hidden_layers=4"),
        (f"{A}.ppo_micro_batch_size_per_gpu=null", "--micro-batch-size N"),
        ("trainer.nnodes=", "--num-gpus N"),
        (f"{A}.ppo_mini_batch_size=many", "ppo_mini_batch_size='many' must be a whole number"),
        (f"{M}.param_offload=maybe", "param_offload='maybe' must be true or false"),
        ("actor_rollout_ref.model.path=null", "--model NAME"),
    ],
)  # fmt: skip
def test_what_is_refused_or_asked(words: str, text: str) -> None:
    with pytest.raises(EstimatorError) as error:
        ppo(words)
    assert text in str(error.value)


def test_programs_that_do_not_train_with_megatron() -> None:
    with pytest.raises(UnsupportedError, match="fsdp"):
        job(started(PPO, "actor_rollout_ref.model.path=Qwen/Qwen3-8B"))
    with pytest.raises(UnsupportedError, match="trains nothing"):
        job(started("verl.trainer.main_generation", "model.path=Qwen/Qwen3-8B"))
    with pytest.raises(UnsupportedError, match="fsdp"):
        job(started("verl.trainer.fsdp_sft_trainer", "model.path=Qwen/Qwen3-8B"))


def test_unknown_keys_are_named_and_keys_without_effect_are_not() -> None:
    found = ppo(
        f"+{M}.new_switch=3 {A}.kl_loss_coef=0.01 {A}.optim.lr=1e-6 {R}.val_kwargs.n=4 trainer.logger='[console,wandb]' "
        "data.train_files=\"['/a/b.parquet']\" ~data.val_files +custom_reward_function.path=x.py"
    )
    assert noted(found, f"unknown keys of verl passed over: {M}.new_switch")
    assert len(found.warnings) == 2


def test_the_older_micro_batch_counts_all_ranks() -> None:
    words = BASE.replace(f"{A}.ppo_micro_batch_size_per_gpu=2", f"{A}.ppo_micro_batch_size=32")
    assert ppo("", words).training.micro_batch_size == 4


def test_estimates_are_made_of_it() -> None:
    assert estimate(ppo("", DYNAMIC)).verdict().word in ("fits", "tight", "does not fit")


def test_runs_of_others_are_not_known() -> None:
    assert dialect_of(Run(program="pretrain_gpt.py", words=("--num-layers", "2"))) is None
    assert dialect_of(Run(document={"model": {"path": 1}, "training": {}})) is None


WORDS = (
    "actor_rollout_ref actor megatron rollout ref model optim data algorithm critic trainer override_transformer_config lora rank path "
    "tensor_model_parallel_size context_parallel_size ppo_micro_batch_size_per_gpu use_dynamic_bsz n nnodes entropy_coeff enable strategy "
    "recompute_modules target_modules pipeline_model_parallel_layout dtype mtp defaults engine max_prompt_length name"
)
PARTS = st.sampled_from(WORDS.split())
LEAVES = leaves("megatron", "${data}", "${mul:${data.n},${n}}", "Qwen/Qwen3-8B")


@settings(max_examples=150, deadline=None)
@given(
    tree=trees(PARTS, LEAVES),
    words=paths_with_values(PARTS, LEAVES),
)
def test_no_tree_and_no_words_crash(tree: dict[str, Any], words: list[tuple[list[str], Any]]) -> None:
    overrides = tuple(f"{'.'.join(path)}={value}" for path, value in words)
    sound: dict[str, Any] = {
        "actor_rollout_ref": {"actor": {"strategy": "megatron"}, "model": {"path": "Qwen/Qwen3-8B"}}
    }
    for run in (
        Run(document=merged(sound, tree)),
        Run(program=PPO, words=(*BASE.split(), *overrides)),
        Run(program="verl.trainer.sft_trainer", words=("engine=megatron", "model.path=Qwen/Qwen3-8B", *overrides)),
    ):
        with suppress(EstimatorError):
            job_of(DIALECT, run, None, {})
