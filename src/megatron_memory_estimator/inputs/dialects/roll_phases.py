"""What is beside the training steps of ROLL: the engine, reference and critic, and what leaves the GPU meanwhile.

Sources: alibaba/ROLL `roll/distributed/strategy/megatron_strategy.py` (offload_states, log-probabilities and entropy from logits),
`roll/configs/base_config.py` (model_update_buffer_size_mb, is_offload_states), `roll/pipeline/rlvr/rlvr_pipeline.py`.
"""

from __future__ import annotations

from typing import Any

from ...wording import shown
from .hydra import Tree
from .roll_devices import devices

ENGINES = ("vllm", "sglang")
SHARE = {"vllm": 0.9, "sglang": 0.9}
"""Share of a GPU where the engine's config gives none: the engines' own default."""
BUCKET_MEGABYTES = 1024
POLICY = "actor_train"


def phases(tree: Tree, worker: str, trains: frozenset[int] | None, *, lora: bool) -> tuple[dict[str, Any], list[str]]:
    """Settings of the phases of reinforcement learning, and warnings; nothing for a worker that trains alone."""
    if worker != POLICY or not tree.section("actor_infer"):
        return {}, []
    found, warnings = _engine(tree, trains)
    found["loss_function"] = "roll"
    if tree.number("entropy_loss_coef"):
        found["loss_entropy"] = True
    states = tree.on("is_offload_states", True)
    found["rollout_offload"] = ("weights", "gradients", "optimizer") if states else ()
    steps_only = tree.on("is_offload_optimizer_states_in_train_step")
    found["log_prob_offload"] = ("gradients", "optimizer") if states else (("optimizer",) if steps_only else ())
    kl = any(tree.on(key) for key in ("use_kl_loss", "add_token_level_kl", "enable_reference"))
    if tree.section("reference") and not lora and (kl or not _silent(tree)):
        where = devices(tree.at("reference.device_mapping"), "reference.device_mapping")
        if where is None or trains is None or where & trains:
            found["reference_model"] = "offloaded" if states else "device"
    if tree.at("adv_estimator") == "gae" or tree.section("critic.strategy_args"):
        where = devices(tree.at("critic.device_mapping"), "critic.device_mapping")
        if where is None or trains is None or where & trains:
            found["critic_model"] = "in_turn" if states else "device"
            warnings.append("a critic trains on the same GPUs; it is counted as large as the policy")
    return found, warnings


def _silent(tree: Tree) -> bool:
    """Whether the run says of every use of a reference that there is none."""
    return all(tree.has(key) for key in ("use_kl_loss", "add_token_level_kl"))


def _engine(tree: Tree, trains: frozenset[int] | None) -> tuple[dict[str, Any], list[str]]:
    name = str(tree.at("actor_infer.strategy_args.strategy_name") or "vllm")
    if name not in ENGINES:
        return {}, [
            f"actor_infer with strategy_name={shown(name)} is not modelled: the phase that generates is not counted"
        ]
    where = devices(tree.at("actor_infer.device_mapping"), "actor_infer.device_mapping")
    colocated = where is None or trains is None or bool(where & trains)
    config = "actor_infer.strategy_args.strategy_config"
    found: dict[str, Any] = {
        "rollout_engine": name,
        "rollout_colocated": colocated,
        "rollout_sleeps": tree.number(f"{config}.sleep_level", 2) > 0,
        "weight_sync_bytes": int(tree.number("model_update_buffer_size_mb", BUCKET_MEGABYTES) * 2**20),
    }
    if not colocated:
        return found, []
    share = "gpu_memory_utilization" if name == "vllm" else "mem_fraction_static"
    found["rollout_memory_share"] = tree.number(f"{config}.{share}", SHARE[name])
    return found, [f"the engine {name} shares the GPUs; what it leaves behind asleep is not known"]
