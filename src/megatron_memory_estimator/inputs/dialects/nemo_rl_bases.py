"""The base files of NeMo-RL's own repository, for run files that build on them from elsewhere.

Source: NVIDIA-NeMo/RL `examples/configs/grpo_math_1B.yaml`, `grpo_math_1B_megatron.yaml`, `sft.yaml`: the keys that decide memory.
"""

from __future__ import annotations

from typing import Any

from .hydra import merged

TOKENS = "${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}"
LOGPROB_TOKENS = "${mul:${policy.max_total_sequence_length}, ${policy.logprob_batch_size}}"
GRPO: dict[str, Any] = {
    "loss_fn": {"reference_policy_kl_penalty": 0.01},
    "policy": {
        "model_name": "Qwen/Qwen2.5-1.5B",
        "train_global_batch_size": 512,
        "train_micro_batch_size": 4,
        "logprob_batch_size": "${policy.train_micro_batch_size}",
        "max_total_sequence_length": 512,
        "precision": "bfloat16",
        "megatron_cfg": {
            "activation_checkpointing": False,
            "tensor_model_parallel_size": 1,
            "expert_tensor_parallel_size": 1,
            "sequence_parallel": False,
            "freeze_moe_router": True,
            "moe_router_dtype": "fp64",
            "moe_router_load_balancing_type": "none",
            "moe_permute_fusion": True,
            "moe_token_dispatcher_type": "alltoall",
            "apply_rope_fusion": True,
            "bias_activation_fusion": True,
            "gradient_accumulation_fusion": False,
            "mtp_num_layers": 0,
            "peft": {"enabled": False, "dim": 8},
            "optimizer": {
                "optimizer": "adam",
                "use_distributed_optimizer": True,
                "use_precision_aware_optimizer": True,
                "optimizer_cpu_offload": False,
                "optimizer_offload_fraction": 0.0,
            },
            "distributed_data_parallel_config": {
                "grad_reduce_in_fp32": False,
                "overlap_grad_reduce": True,
                "overlap_param_gather": True,
            },
        },
        "dynamic_batching": {"enabled": False, "train_mb_tokens": TOKENS, "logprob_mb_tokens": LOGPROB_TOKENS},
        "sequence_packing": {"enabled": True, "train_mb_tokens": TOKENS, "logprob_mb_tokens": LOGPROB_TOKENS},
        "generation": {
            "backend": "vllm",
            "colocated": {"enabled": True},
            "vllm_cfg": {"tensor_parallel_size": 1, "gpu_memory_utilization": 0.6},
        },
    },
    "cluster": {"gpus_per_node": 1, "num_nodes": 1},
}
"""The base of GRPO, without its choice of an engine."""
SFT: dict[str, Any] = merged(
    {"cluster": GRPO["cluster"], "policy": GRPO["policy"]},
    {
        "policy": {
            "model_name": None,
            "train_global_batch_size": 32,
            "train_micro_batch_size": 1,
            "max_total_sequence_length": 1024,
            "megatron_cfg": {"freeze_moe_router": False},
            "sequence_packing": {"enabled": False},
            "generation": None,
        },
    },
)
"""The base of supervised training, where it differs; its model is not said here."""
ENGINES: dict[str, tuple[str, bool]] = {
    "grpo_math_1B.yaml": ("grpo", False),
    "grpo_math_1B_megatron.yaml": ("grpo", True),
    "sft.yaml": ("sft", False),
}
"""Bases by name: the kind of run, and whether Megatron is their engine."""


def base_of(name: str) -> dict[str, Any] | None:
    """The base of the framework's own by the last part of its path, or None for one that is not known."""
    kind, megatron = ENGINES.get(name.rsplit("/", 1)[-1], ("", False))
    if not kind:
        return None
    engine = {"policy": {"megatron_cfg": {"enabled": megatron}, "dtensor_cfg": {"enabled": not megatron}}}
    return merged(defaults_of(kind), {**engine, kind: {}})


def defaults_of(kind: str) -> dict[str, Any]:
    """What holds where a whole file of this kind says nothing."""
    return SFT if kind == "sft" else GRPO
