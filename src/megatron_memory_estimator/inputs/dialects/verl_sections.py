"""Keys of verl in Megatron's names, section by section, and those that have no effect on memory.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/engine/megatron.yaml`, `actor/*.yaml`, `optim/megatron.yaml`, `model/hf_model.yaml`,
`verl/workers/engine/megatron/transformer_impl.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...wording import shown
from ..spellings import kernel_of
from .hydra import Tree
from .keys import translated

ENGINE = """
    _target_ param_offload grad_offload optimizer_offload use_dist_checkpointing dist_checkpointing_* dist_ckpt_*
    distrib_optim_* entropy_from_logits_* seed override_* use_mbridge vanilla_mbridge use_remove_padding pad_*
    forward_only dtype router_replay qat load_weight use_fused_kernels strategy sequence_parallel
    dynamic_context_parallel max_seqlen_per_dp_cp_rank use_cpu_optimizer default_fsdp_args extra profiler
    engine_kwargs
"""
"""Keys of the engine that are read one by one, or have no effect."""
FIELDS = """
    attention_backend moe_enable_deepep mtp_* moe_router_load_balancing_type pipeline_model_parallel_layout
    persist_layer_norm bias_dropout_fusion calculate_per_token_loss moe_router_bias_update_rate recompute_modules
    moe_router_dtype moe_router_force_load_balancing use_flash_attn use_fused_*
    variable_seq_lengths sequence_parallel
"""
"""Fields of TransformerConfig that are read one by one, or have no effect."""
OPTIMIZER = """
    _target_ lr* betas clip_grad min_lr weight_decay* total_training_steps use_checkpoint_opt_param_scheduler muon_*
    override_* use_layer_wise_distributed_optimizer num_cycles warmup_style overlap_cpu_optimizer_d2h_h2d
    decoupled_weight_decay adam_* sgd_* initial_loss_scale
"""
ACTOR = """
    _target_ strategy megatron optim ppo_* clip_* tau_* loss_* kl_* use_kl_loss entropy_* calculate_*
    use_torch_compile checkpoint profiler data_loader_seed shuffle rollout_n use_dynamic_bsz use_fused_kernels
    fsdp_config ulysses_* grad_clip policy_loss freeze_vision_tower use_remove_padding load_weight qat router_replay
    nccl_timeout use_rollout_log_probs use_prefix_grouper tis_imp_ratio_cap checkpoint_engine self_distillation
    global_batch_info sum_pi_* optimizer_offload param_offload behav_* recompute_old_log_prob grad_offload veomni
    torchtitan use_unpadding profile
"""
"""Keys of the actor beside those that are read: most are of the loss, of other engines, or of files."""
MODEL = """
    _target_ path hf_config_path tokenizer_path tokenizer use_shm trust_remote_code custom_chat_template
    external_lib override_config enable_gradient_checkpointing gradient_checkpointing_kwargs
    enable_activation_offload use_remove_padding lora_rank lora_alpha target_modules exclude_modules
    lora_adapter_path use_liger use_fused_kernels fused_kernel_options tiled_mlp mtp lora fsdp_config
    share_embeddings_* load_tokenizer base_model* ckpt_path hf_config generation_config architectures local_*
    lora_dropout target_parameters
"""


class Places(NamedTuple):
    """Where the keys of a program stand."""

    actor: str
    engine: str
    optimizer: str
    model: str


PPO = Places(
    "actor_rollout_ref.actor",
    "actor_rollout_ref.actor.megatron",
    "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.model",
)
SFT = Places("", "engine", "optim", "model")


def sections_of(tree: Tree, at: Places) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of the sections whose keys are Megatron's, or the framework's own names for them."""
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    refused: list[str] = []
    fields = f"{at.engine}.override_transformer_config"
    sections = [
        (f"{at.engine}.override_ddp_config", {"bucket_size": "ddp_bucket_size"}, ""),
        (at.engine, {}, ENGINE), (fields, {}, FIELDS), (at.optimizer, {}, OPTIMIZER),
        (f"{at.optimizer}.override_optimizer_config", {}, OPTIMIZER), (at.model, {}, MODEL),
    ]  # fmt: skip
    if at.actor:
        sections.append((at.actor, {}, ACTOR))
    for path, table, nothing in sections:
        found, strange, wrong = translated(tree.section(path), table, nothing, f"{path}.")
        if path == at.optimizer and not found.get("use_precision_aware_optimizer"):
            found = {key: each for key, each in found.items() if not key.endswith("_dtype")}
        settings |= found
        unknown += strange
        refused += wrong
    if settings.get("optimizer") == "muon":
        settings["use_distributed_optimizer"] = tree.on(f"{at.optimizer}.use_layer_wise_distributed_optimizer")
    return settings | _fields(tree, fields) | _older_recompute(tree, at), unknown, refused


def _older_recompute(tree: Tree, at: Places) -> dict[str, Any]:
    """Recomputation as it was given until the middle of 2025, beside the model."""
    older = tree.section(f"{at.model}.gradient_checkpointing_kwargs")
    if not tree.on(f"{at.model}.enable_gradient_checkpointing", True):
        return {}
    found = {
        f"recompute_{name}": older.get(f"activations_checkpoint_{name}")
        for name in ("granularity", "method", "num_layers")
    }
    return {name: value for name, value in found.items() if value is not None}


def _fields(tree: Tree, path: str) -> dict[str, Any]:
    """Fields of TransformerConfig that are spelled otherwise than our settings."""
    found: dict[str, Any] = {}
    found |= kernel_of(tree.at(f"{path}.attention_backend") or "flash")
    if tree.on(f"{path}.moe_router_force_load_balancing"):
        found["routing_phase"] = "forced_balance"
    if tree.on(f"{path}.moe_enable_deepep"):
        found["moe_flex_dispatcher_backend"] = "deepep"
    balancing = tree.at(f"{path}.moe_router_load_balancing_type", "none")
    if balancing != "none" and not tree.has(f"{path}.moe_aux_loss_coeff"):
        found["moe_aux_loss_coeff"] = 1e-3
    layout = tree.at(f"{path}.pipeline_model_parallel_layout")
    if layout is not None:
        from ..bridge_config import layout_string

        found["pipeline_model_parallel_layout"] = layout_string(layout)
    modules = tree.at(f"{path}.recompute_modules", ["core_attn"])
    if tree.at(f"{path}.recompute_granularity") == "selective":
        found["recompute_modules"] = tuple(modules) if isinstance(modules, list) else (str(modules),)
    router = str(tree.at(f"{path}.moe_router_dtype") or "")
    return found | ({"moe_router_dtype": router} if router in ("fp32", "fp64") else {})


HARMLESS_OVERRIDES = ("moe_config", "model_config", "attn_implementation", "max_position_embeddings", "rope_scaling", "rope_theta",
                      "attention_dropout", "torch_dtype", "use_cache", "sliding_window", "router_aux_loss_coef")  # fmt: skip


def not_modelled(tree: Tree, at: Places) -> list[str]:
    """Switches that change memory in ways that are not modelled."""
    switches = [f"{at.engine}.qat.enable", f"{at.engine}.dynamic_context_parallel", "distillation.enabled"]
    switches += [f"{at.actor}.qat.enable"] if at.actor else []
    refused = [f"{path}=true decides memory and is not modelled" for path in switches if tree.on(path)]
    for path in (f"{at.model}.override_config", f"{at.model}.override_config.model_config"):
        for key, given in tree.section(path).items():
            if key not in HARMLESS_OVERRIDES and not key.endswith("token_id"):
                refused.append(f"{path}.{key}={shown(given)} changes the model; give its config with --model")
    return refused
