"""What settings may be: recomputable modules, phases of routing, adapted linears, kernels, versions; and by what tensors are listed."""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import ConfigError
from ..wording import shown, whole

RECOMPUTE_MODULES = (
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out", "mhc",
)  # fmt: skip
ROUTING: dict[str, tuple[float, float, float]] = {
    "forced_balance": (1.00, 1.01, 1.03),
    "first_steps": (1.05, 1.15, 1.4),
    "early": (1.15, 1.4, 2.0),
    "early_strong_balancing": (1.03, 1.1, 1.3),
    "pretraining": (1.03, 1.12, 1.3),
    "fine_tuning": (1.1, 1.4, 2.5),
}
"""Rows of the busiest rank relative to balanced routing, low, typical and high (see `routing.py`): routing forced to be even;
steps 1 and 2; a few hundred steps with weak balancing and many experts; the same with an auxiliary loss of 1e-2 and few
experts; converged pretraining; fine-tuning on a narrow domain."""
ROLLOUT_PHASES = ("generation", "log_probs", "reference", "weight_sync")
"""Phases of a step of reinforcement learning beside its training: the engine generates samples; the policy, and a reference that comes
and goes, take log-probabilities; the engine gets the new weights."""
PHASES = ("training", "first_step", "load", "save", "build", *ROLLOUT_PHASES)
"""Phases of a run whose memory a verdict holds: its steps, the first one where that may be above the others, loading a checkpoint with
optimizer state, saving one, building the model, and those of reinforcement learning where there are any."""
By = Literal["tensor", "parameter", "module", "layer"]
WAYS: tuple[By, ...] = get_args(By)
"""By what the largest of a stage is listed."""
Sizable = Literal["seq_length", "micro_batch_size", "max_tokens_per_gpu"]
SIZABLE: tuple[Sizable, ...] = get_args(Sizable)
"""Settings whose largest value that fits can be asked for."""
PACKING = (
    "verl", "verl_0_9_1", "slime", "miles", "slime_legacy", "nemo_rl", "nemo_rl_dynamic", "roll", "areal", "areal_kk", "skyrl", "skyrl_sft",
    "megatron_core", "megatron_lm_sft", "ms_swift", "ms_swift_sequential",
)  # fmt: skip
"""Rules by which frameworks make microbatches of samples (`lengths/microbatches.py`)."""
ROUTING_SHORT = "typical routing"
WORST_ROUTING = 1e6
"""A factor above every possible one: every token of the group sends all it can to this rank."""
NEWEST = {"transformer_engine_version": "2.20", "megatron_core_version": "0.20"}
"""The newest versions that the rules were read from (Megatron-Core's main of August 2026)."""
INSTALLED = {"transformer_engine_version": "2.20", "megatron_core_version": "0.19"}
"""The newest versions that a package index has: what is taken where nothing says otherwise."""
ADAPTED = (
    "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "linear_q", "linear_k", "linear_v", "linear_fc1_up", "linear_fc1_gate",
    "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "in_proj", "out_proj",
    "fc1_latent_proj", "fc2_latent_proj", "eh_proj", "o_proj", "q_a_proj", "kv_a_proj_with_mqa",
)  # fmt: skip
"""Linears that can have an adapter."""
LOSSES = (
    "cross_entropy",
    "slime",
    "verl",
    "nemo_rl",
    "roll",
    "swift",
    "skyrl",
    "fused",
    "skyrl_fused",
    "nemo_rl_fused",
)
"""What a loss makes of the logits: Megatron-LM's cross entropy, the log-probabilities of a framework, or one that never has the logits
whole."""
FUSED_LOSSES = ("fused", "skyrl_fused", "nemo_rl_fused")
"""Of these, the ones that take hidden states and the output weight."""
AT_LEAST_ONE = (
    "seq_length", "micro_batch_size", "global_batch_size", "ddp_bucket_size", "ddp_num_buckets", "peft_dim",
    "suggested_communication_unit_size", "loss_chunk_size", "packing_tokens", "mhc_recompute_layer_num",
)  # fmt: skip
NOT_NEGATIVE = ("recompute_num_layers", "moe_paged_stash_buffer_size_factor_cpu", "data_parallel_rank")
POSITIVE = (
    "moe_expert_capacity_factor", "moe_expert_rank_capacity_factor", "moe_paged_stash_buffer_size_factor_cuda",
)  # fmt: skip
"""Settings of a training with a least value."""
KERNELS = ("flash", "cudnn", "unfused", "local")


def check_least(settings: object) -> None:
    """Raise ConfigError for a number of a training's settings that is below its least value."""
    for name in AT_LEAST_ONE:
        value = getattr(settings, name)
        if isinstance(value, int) and value < 1:  # the planner gives arrays of legal values
            raise ConfigError(f"{name}={value} must be at least 1")
    for name in NOT_NEGATIVE:
        if (getattr(settings, name) or 0) < 0:
            raise ConfigError(f"{name}={getattr(settings, name)} must not be negative")
    for name in POSITIVE:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise ConfigError(f"{name}={value} must be positive")


def version(name: str, text: str) -> tuple[int, int]:
    """(major, minor) of a version. Raises ConfigError for what is none."""
    major, minor = (whole(part) for part in (*text.split(".", 2), "", "")[:2])
    if major is None or minor is None:
        raise ConfigError(f"{name}={shown(text)} must look like {NEWEST[name]}")
    return major, minor


DOORS: dict[str, str] = {
    "megatron-lm": "pretrain_gpt.py",
    "bridge": "Megatron-Bridge",
    "verl": "verl 0.9",
    "verl-0.8": "verl 0.8",
    "nemo-rl": "NeMo-RL",
    "slime": "slime",
    "skyrl": "SkyRL",
    "areal": "AReaL",
    "roll": "ROLL",
    "chatlearn": "ChatLearn",
    "ms-swift": "ms-swift",
    "llama-factory": "LLaMA-Factory",
    "primus": "Primus",
}
"""The doors that a model by name may come through, and what they are called."""
