#!/usr/bin/env bash
# GRPO with verl on one node: nothing leaves the GPUs between the phases.
python3 -m verl.trainer.main_ppo \
    --config-path=config --config-name=ppo_megatron_trainer \
    algorithm.adv_estimator=grpo \
    data.max_prompt_length=1024 data.max_response_length=7168 data.train_batch_size=128 \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization="${SHARE:-0.6}" \
    trainer.nnodes=1 trainer.n_gpus_per_node=8
