"""Tokens of a microbatch, samples of a step and GPUs of a run of verl.

Sources: volcengine/verl 0.9.1 `verl/workers/engine/utils.py` (prepare_micro_batches), `verl/utils/seqlen_balancing.py`,
`verl/trainer/config/ppo_trainer.yaml`, `sft_trainer_engine.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...wording import counted
from ..questions import Question
from .hydra import Tree
from .run import Run


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
    tree: Tree,
    settings: Mapping[str, Any],
    gpus: int | None,
    said: tuple[list[str], list[str], list[Question]],
    *,
    sft: bool,
) -> dict[str, Any]:
    """Tokens of a microbatch, which no packing exceeds, and samples of a step."""
    notes, warnings, questions = said
    cp = int(settings.get("context_parallel_size", 1))
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    if sft:
        longest, samples = tree.count("data.max_length", 1024) or 1024, tree.count("data.train_batch_size", 256) or 256
        limit, micro = tree.count("data.max_token_len_per_gpu", 8192), tree.count("data.micro_batch_size_per_gpu", 4)
        dynamic, whose, limit_key = (
            tree.on("data.use_dynamic_bsz", True),
            "data.max_length",
            "data.max_token_len_per_gpu",
        )
    else:
        longest = (tree.count("data.max_prompt_length", 512) or 512) + (
            tree.count("data.max_response_length", 512) or 512
        )
        samples = (tree.count(f"{actor}.ppo_mini_batch_size", 256) or 256) * (tree.count(f"{rollout}.n", 1) or 1)
        limit, micro = tree.count(f"{actor}.ppo_max_token_len_per_gpu", 16384), _micro(tree, settings, gpus)
        dynamic, whose = tree.on(f"{actor}.use_dynamic_bsz"), "data.max_prompt_length + data.max_response_length"
        limit_key = f"{actor}.ppo_max_token_len_per_gpu"
    found: dict[str, Any] = {"global_batch_size": samples}
    if dynamic:
        tokens = (limit or 1) * cp
        notes.append(
            f"at most {tokens} tokens in a microbatch: {limit_key}={limit}"
            + (f" on each of {cp} ranks of cp" if cp > 1 else "")
        )
        if longest > tokens:
            warnings.append(
                f"a sample may have {longest} tokens ({whose}), above the limit of {tokens}, where verl stops: raise {limit_key}"
            )
        return found | {"seq_length": tokens, "micro_batch_size": 1}
    if micro is None:
        questions.append(
            Question("neither ppo_micro_batch_size_per_gpu nor use_dynamic_bsz is given", "--micro-batch-size N")
        )
        micro = 1
    notes.append(
        f"at most {longest * micro} tokens in a microbatch: {counted(micro, 'sample')} of at most {longest} ({whose})"
    )
    return found | {"seq_length": longest, "micro_batch_size": micro}


def _micro(tree: Tree, settings: Mapping[str, Any], gpus: int | None) -> int | None:
    """Samples of a microbatch; the older key counts those of all data-parallel ranks."""
    own = tree.count("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")
    older = tree.count("actor_rollout_ref.actor.ppo_micro_batch_size")
    if own is not None or older is None or gpus is None:
        return own
    degrees = [settings.get(f"{axis}_parallel_size") for axis in ("tensor_model", "pipeline_model", "context")]
    ranks = 1
    for degree in degrees:
        ranks *= degree if isinstance(degree, int) and degree > 0 else 1
    return max(older // max(gpus // ranks, 1), 1)


def tokens_of(settings: Mapping[str, Any]) -> int:
    return int(settings["seq_length"]) * int(settings["micro_batch_size"])
