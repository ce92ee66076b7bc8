"""What is beside the training steps of NeMo-RL: GPUs of the engine that generates, the reference policy, what is in host memory.

Sources: NVIDIA-NeMo/RL `nemo_rl/algorithms/grpo.py` (setup), `nemo_rl/models/policy/workers/megatron_policy_worker.py`.
"""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ...wording import shown
from .hydra import Tree

COLOCATED, GENERATION = "policy.generation.colocated", "policy.generation"


def gpus_of(tree: Tree) -> int:
    """GPUs that train: those of the cluster without those of an engine that has its own. Raises ConfigError where none are left."""
    each, nodes = tree.count("cluster.gpus_per_node", 1) or 1, tree.count("cluster.num_nodes", 1) or 1
    if not tree.section(GENERATION) or tree.on(f"{COLOCATED}.enabled", True):
        return each * nodes
    taken = tree.count(f"{COLOCATED}.resources.num_nodes")
    if nodes == 1 or taken is None:
        left = nodes * (each - (tree.count(f"{COLOCATED}.resources.gpus_per_node") or 0))
    else:
        left = (nodes - taken) * each
    if left < 1:
        raise ConfigError(
            f"{COLOCATED}.resources takes all of the cluster's {nodes} nodes of {each} GPUs; leave some to train"
        )
    return left


def phases(tree: Tree, kind: str, *, tokens: int) -> tuple[dict[str, Any], list[str]]:
    """Settings of the phases and warnings; `tokens` are those of a training microbatch before context parallelism."""
    if kind == "sft":
        return {}, []
    penalty = tree.number(
        "dpo.reference_policy_kl_penalty" if kind == "dpo" else "loss_fn.reference_policy_kl_penalty", 0.0
    )
    found: dict[str, Any] = {"reference_model": "host" if penalty else "none"}
    if kind == "dpo":
        return found, []
    states = ("optimizer",) if tree.on("policy.offload_optimizer_for_logprob") else ()
    found |= {"rollout_offload": ("weights", "gradients", "optimizer"), "log_prob_offload": ("gradients", *states)}
    forward = _forward_tokens(tree)
    if forward and forward != tokens:
        found["log_prob_micro_batch_tokens"] = forward
    backend = str(tree.at(f"{GENERATION}.backend", "vllm"))
    if backend not in ("vllm", "sglang"):
        warning = f"{GENERATION}.backend={shown(backend)} is not modelled: the phase that generates is not counted"
        return {**found, "rollout_offload": ()}, [warning]
    colocated = tree.on(f"{COLOCATED}.enabled", True)
    found |= {"rollout_engine": backend, "rollout_colocated": colocated, "rollout_sleeps": True}
    if not colocated:
        return found | {"rollout_offload": ()}, []
    share = f"{GENERATION}.vllm_cfg.gpu_memory_utilization"
    if backend == "sglang":
        share = f"{GENERATION}.sglang_cfg.mem_fraction_static"
    found["rollout_tensor_parallel_size"] = tree.count(f"{GENERATION}.{backend}_cfg.tensor_parallel_size", 1)
    found["rollout_memory_share"] = tree.number(share, 0.6)
    return found, [f"the engine {backend} shares the GPUs; what it leaves behind asleep is not known"]


def _forward_tokens(tree: Tree) -> int | None:
    """Tokens of a microbatch of the forward for log-probabilities, before context parallelism."""
    for name in ("sequence_packing", "dynamic_batching"):
        if tree.on(f"policy.{name}.enabled"):
            return tree.count(f"policy.{name}.logprob_mb_tokens")
    samples = tree.count("policy.logprob_batch_size")
    return samples and samples * (tree.count("policy.max_total_sequence_length") or 1)
