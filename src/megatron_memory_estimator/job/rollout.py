"""Reinforcement learning around the training steps: who else is on the GPU, and what is in host memory meanwhile.

Without an engine and a second model there is none, and the run is training alone. Sources: THUDM/slime
`slime/backends/megatron_utils/actor.py`, `train.py`; volcengine/verl `verl/workers/engine/megatron/transformer_impl.py`,
`verl/utils/megatron_utils.py`; NVIDIA-NeMo/RL `nemo_rl/models/policy/workers/megatron_policy_worker.py`; alibaba/ROLL
`roll/distributed/strategy/megatron_strategy.py`; modelscope/ms-swift `swift/megatron/trainers/`.
"""

from __future__ import annotations

from ..dataclass import dataclass
from ..errors import ConfigError
from .settings import setting

MOVED = ("weights", "gradients", "optimizer")
"""What frameworks move to host memory between phases."""


@dataclass(frozen=True)
class Rollout:
    """The phases of a step of reinforcement learning beside its training."""

    rollout_engine: str | None = setting(None, "engine that generates samples", choices=("vllm", "sglang"))
    rollout_colocated: bool = setting(True, "the engine runs on the GPUs that train")
    rollout_memory_share: float | None = setting(
        None, "share of a GPU's memory that the engine takes while it generates, 0 to 1"
    )
    rollout_tensor_parallel_size: int | None = setting(None, "GPUs that share one copy of the engine's weights")
    rollout_sleeps: bool = setting(True, "the engine gives its memory back while others run")
    rollout_offload: tuple[str, ...] = setting(
        (), "what of the trainer is in host memory while samples are generated", choices=MOVED, kind="list"
    )
    log_prob_offload: tuple[str, ...] = setting(
        (), "what of the trainer is in host memory while log-probabilities are computed", choices=MOVED, kind="list"
    )
    log_prob_micro_batch_tokens: int | None = setting(
        None, "tokens of a microbatch of that forward, before context parallelism; default: those of training"
    )
    reference_model: str = setting(
        "none",
        "the reference policy: in host memory and swapped into the policy's weights, on the device beside them, or on the "
        "device for its forward only",
        choices=("none", "host", "device", "offloaded"),
    )
    critic_model: str = setting(
        "none",
        "PPO's critic, as large as the policy: on the device beside it, or each offloaded while the other trains",
        choices=("none", "device", "in_turn"),
    )
    torch_memory_saver: bool = setting(
        False,
        "what of the trainer leaves is paused by torch_memory_saver: gradient buffers have a copy in host memory too",
    )
    disable_grad_buffers_cpu_backup: bool = setting(False, "torch_memory_saver: gradient buffers have no copy")
    disable_param_buffers_cpu_backup: bool = setting(
        False, "torch_memory_saver: parameter buffers have no copy; they come back from the main parameters"
    )
    weight_sync_bytes: int = setting(0, "bytes of a bucket of the weight sync to the engine")

    def __post_init__(self) -> None:
        share = self.rollout_memory_share
        size = self.rollout_tensor_parallel_size
        if size is not None and size < 1:
            raise ConfigError(f"rollout_tensor_parallel_size={size} must be at least 1")
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"rollout_memory_share={share} must be above 0 and at most 1")
        if share is None and self.shares_gpus and not self.rollout_sleeps:
            raise ConfigError(
                f"rollout_engine={self.rollout_engine} is awake while the trainer runs (rollout_sleeps is off): what it takes must be "
                "known; give rollout_memory_share"
            )

    @property
    def has_phases(self) -> bool:
        """Whether a step has phases beside training."""
        return self.rollout_engine is not None or self.reference_model != "none" or self.critic_model != "none"

    @property
    def moved(self) -> frozenset[str]:
        """What of the trainer is in host memory in any phase."""
        return frozenset((*self.rollout_offload, *self.log_prob_offload))

    @property
    def shares_gpus(self) -> bool:
        """Whether an engine runs on the GPUs that train."""
        return self.rollout_engine is not None and self.rollout_colocated
