"""What is beside the training steps of verl: the engine that generates, reference and critic, and what leaves the GPU meanwhile.

Sources: volcengine/verl 0.9.1 `verl/trainer/ppo/utils.py`, `verl/trainer/ppo/ray_trainer.py`,
`verl/workers/engine/megatron/transformer_impl.py`, `verl/utils/megatron_utils.py`, `verl/trainer/config/rollout/rollout.yaml`,
`ref/megatron_ref.yaml`, `critic/critic.yaml`.

Tokens of a microbatch, samples of a step and GPUs of a run of verl.

Sources: volcengine/verl 0.9.1 `verl/workers/engine/utils.py` (prepare_micro_batches), `verl/utils/seqlen_balancing.py`,
`verl/trainer/config/ppo_trainer.yaml`, `sft_trainer_engine.yaml`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ...wording import counted, shown
from ..questions import Question
from .hydra import Tree
from .keys import model_ranks
from .models import catalogued
from .rollout import GAE, engine, moved
from .run import Run

REFERENCE = "actor_rollout_ref.ref"
SEPARATE = re.compile(r"one_step_off|fully_async|separate_async")
"""Trainers whose engines have GPUs of their own."""
BUCKET_MEGABYTES = 2048
NO_ESTIMATOR = (
    "algorithm.adv_estimator is not given, and nothing of a critic: none is counted; verl's default gae trains one "
    "(give critic.model.path)"
)


def phases(tree: Tree, run: Run, *, tokens: int, lora: bool) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of the phases, warnings, and what is refused; `tokens` are those of a training microbatch before cp."""
    found, warnings = _engine(tree, run)
    reference = tree.on(f"{ACTOR}.use_kl_loss") or tree.on("algorithm.use_kl_in_reward")
    if reference and not lora and not tree.number("actor_rollout_ref.model.lora_rank") > 0:
        away = tree.on(f"{REFERENCE}.megatron.param_offload", tree.on(f"{ACTOR}.megatron.param_offload"))
        found["reference_model"] = "offloaded" if away else "device"
    else:
        reference = False
    forwards = [_forward_tokens(tree, where) for where in ((ROLLOUT, REFERENCE) if reference else (ROLLOUT,))]
    most = max((each for each in forwards if each), default=tokens)
    if most != tokens:
        found["log_prob_micro_batch_tokens"] = most
    critic, said, refused = _critic(tree, tokens)
    for path in ("reward.reward_model.enable", "reward_model.enable"):
        if tree.on(path):
            said.append(f"{path}=true: the reward model's memory beside the trainer is not counted")
    return found | critic, [*warnings, *said], refused


def _engine(tree: Tree, run: Run) -> tuple[dict[str, Any], list[str]]:
    """The engine, and what is in host memory while it generates and while log-probabilities are computed."""
    weights = tree.on(f"{ACTOR}.megatron.param_offload")
    gradients = tree.on(f"{ACTOR}.megatron.grad_offload", weights)
    states = tree.on(f"{ACTOR}.megatron.optimizer_offload")
    found: dict[str, Any] = {
        "rollout_offload": moved(weights, gradients, states),
        "log_prob_offload": moved(False, gradients, states),
    }
    older = tree.number(f"{ROLLOUT}.update_weights_bucket_megabytes", BUCKET_MEGABYTES)
    bucket = tree.number(f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", older)
    apart = (
        SEPARATE.search(f"{run.program} {tree.at('defaults')} {tree.at('trainer.v1.trainer_mode')}")
        or not tree.on("actor_rollout_ref.hybrid_engine", True)
        or tree.number(f"{ROLLOUT}.nnodes") > 0
    )
    generates, said = engine(
        str(tree.at(f"{ROLLOUT}.name") or "vllm"),
        f"{ROLLOUT}.name",
        colocated=not apart,
        sleeps=tree.on(f"{ROLLOUT}.free_cache_engine", True),
        weight_sync_bytes=int(bucket * 2**20),
        rollout_tensor_parallel_size=tree.count(f"{ROLLOUT}.tensor_model_parallel_size", 2),
        rollout_memory_share=tree.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5),
    )
    return found | generates, said


def _forward_tokens(tree: Tree, where: str) -> int | None:
    """Tokens of a microbatch of a forward for log-probabilities, before context parallelism; None for those of training."""
    cp = tree.count(f"{ACTOR}.megatron.context_parallel_size", 1) or 1
    if tree.on(f"{where}.log_prob_use_dynamic_bsz", tree.on(f"{ACTOR}.use_dynamic_bsz")):
        limit = tree.count(f"{where}.log_prob_max_token_len_per_gpu", tree.count(f"{ACTOR}.ppo_max_token_len_per_gpu"))
        return limit and limit * cp
    samples = tree.count(f"{where}.log_prob_micro_batch_size_per_gpu")
    return samples and samples * longest_of(tree)


def _critic(tree: Tree, tokens: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """PPO's critic, which is there with generalized advantages unless it is switched off or on by name.

    A run that says nothing of either is taken without: the default critic is a model of its own that no run file means.
    """
    switched, estimator = tree.at("critic.enable"), tree.at("algorithm.adv_estimator")
    if switched is None and estimator is None and not tree.section("critic"):
        return {}, [NO_ESTIMATOR], []
    if not (tree.on("critic.enable") if switched is not None else estimator in (None, GAE)):
        return {}, [], []
    own, policy = tree.at("critic.model.path"), tree.at("actor_rollout_ref.model.path")
    sizes = [catalogued(str(name)) or str(name) for name in (own or policy, policy)]
    refused = []
    if sizes[0] != sizes[1]:
        refused.append(f"critic.model.path={shown(own)} is another model than the policy, which is not modelled")
    away = all(
        tree.on(f"{who}.megatron.{what}")
        for who in ("critic", ACTOR)
        for what in ("param_offload", "optimizer_offload")
    )
    where = "in host memory while the policy trains" if away else "resident beside the policy's"
    warnings = [f"a critic as large as the policy trains too, its weights, gradients and optimizer states {where}"]
    if (most := _critic_tokens(tree)) > tokens:
        warnings.append(
            f"the critic's microbatches have up to {most} tokens, more than the policy's {tokens}: its activations are not counted"
        )
    return {"critic_model": "in_turn" if away else "device"}, warnings, refused


def _critic_tokens(tree: Tree) -> int:
    if tree.on("critic.use_dynamic_bsz", tree.on(f"{ACTOR}.use_dynamic_bsz")):
        cp = tree.count(f"{ACTOR}.megatron.context_parallel_size", 1) or 1
        return (tree.count("critic.ppo_max_token_len_per_gpu", 32768) or 0) * cp
    return (tree.count("critic.ppo_micro_batch_size_per_gpu") or 0) * longest_of(tree)


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


class _Batch(NamedTuple):
    """What a run says of its batches: the longest sample and where that stands, samples of a step, and the limit of a microbatch."""

    longest: int
    whose: str
    samples: int
    dynamic: bool
    limit: int
    limit_key: str
    micro: int | None


def gpus_of(tree: Tree, run: Run, notes: list[str], questions: list[Question], *, sft: bool) -> int | None:
    """GPUs that train: those of the trainer; of the SFT trainer those of its launcher."""
    if sft and run.num_gpus is not None:
        return run.num_gpus
    for path in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        if tree.at(path) == "":
            questions.append(Question(f"{path} is empty", "--num-gpus N"))
            return None
    default = 1 if sft else 8
    nodes, each = tree.count("trainer.nnodes", 1), tree.count("trainer.n_gpus_per_node", default)
    if not (tree.has("trainer.nnodes") and tree.has("trainer.n_gpus_per_node")):
        notes.append(
            f"verl's defaults trainer.nnodes=1 and trainer.n_gpus_per_node={default} where the run does not give them"
        )
    return (nodes or 1) * (each or default)


def batch_of(
    tree: Tree, engine: str, gpus: int | None, said: tuple[list[str], list[str], list[Question]], *, sft: bool
) -> dict[str, Any]:
    """Tokens of a microbatch, which no packing exceeds, and samples of a step; `said` takes assumptions, warnings and questions."""
    notes, warnings, questions = said
    cp = tree.count(f"{engine}.context_parallel_size", 1) or 1
    batch = _supervised(tree) if sft else _reinforced(tree, gpus)
    found: dict[str, Any] = {"global_batch_size": batch.samples}
    if batch.dynamic:
        tokens = batch.limit * cp
        ranks = f" on each of {cp} context-parallel ranks" if cp > 1 else ""
        notes.append(f"at most {tokens} tokens in a microbatch: {batch.limit_key}={batch.limit}{ranks}")
        if batch.longest > tokens:
            warnings.append(
                f"a sample may have {batch.longest} tokens ({batch.whose}), above the limit of {tokens}, where verl stops: raise "
                f"{batch.limit_key}"
            )
        return found | {"seq_length": tokens, "micro_batch_size": 1}
    micro = batch.micro
    if micro is None:
        which = f"neither {ACTOR}.ppo_micro_batch_size_per_gpu nor use_dynamic_bsz is given"
        questions.append(Question(which, "--micro-batch-size N"))
        micro = 1
    samples = f"{counted(micro, 'sample')} of at most {batch.longest} ({batch.whose})"
    notes.append(f"at most {batch.longest * micro} tokens in a microbatch: {samples}")
    return found | {"seq_length": batch.longest, "micro_batch_size": micro}


def _supervised(tree: Tree) -> _Batch:
    """Batches of the SFT trainer."""
    return _Batch(
        tree.count("data.max_length", 1024) or 1024,
        "data.max_length",
        tree.count("data.train_batch_size", 256) or 256,
        tree.on("data.use_dynamic_bsz", True),
        tree.count("data.max_token_len_per_gpu", 8192) or 8192,
        "data.max_token_len_per_gpu",
        tree.count("data.micro_batch_size_per_gpu", 4),
    )


def _reinforced(tree: Tree, gpus: int | None) -> _Batch:
    """Batches of the actor."""
    return _Batch(
        longest_of(tree),
        "data.max_prompt_length + data.max_response_length",
        (tree.count(f"{ACTOR}.ppo_mini_batch_size", 256) or 256) * (tree.count(f"{ROLLOUT}.n", 1) or 1),
        tree.on(f"{ACTOR}.use_dynamic_bsz"),
        tree.count(f"{ACTOR}.ppo_max_token_len_per_gpu", 16384) or 16384,
        f"{ACTOR}.ppo_max_token_len_per_gpu",
        _micro(tree, gpus),
    )


def longest_of(tree: Tree) -> int:
    """Tokens of the longest prompt with the longest answer."""
    return (tree.count("data.max_prompt_length", 512) or 512) + (tree.count("data.max_response_length", 512) or 512)


def _micro(tree: Tree, gpus: int | None) -> int | None:
    """Samples of a microbatch; the older key counts those of all data-parallel ranks."""
    own = tree.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    older = tree.count(f"{ACTOR}.ppo_micro_batch_size")
    if own is not None or older is None or gpus is None:
        return own
    return max(older // max(gpus // model_ranks(tree, f"{ACTOR}.megatron"), 1), 1)


def tokens_of(batch: dict[str, Any]) -> int:
    """Tokens of a microbatch, before context parallelism."""
    return int(batch["seq_length"]) * int(batch["micro_batch_size"])
