"""Tokens of a microbatch, samples of a step and GPUs of a run of verl.

Sources: volcengine/verl 0.9.1 `verl/workers/engine/utils.py` (prepare_micro_batches), `verl/utils/seqlen_balancing.py`,
`verl/trainer/config/ppo_trainer.yaml`, `sft_trainer_engine.yaml`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...wording import counted
from ..questions import Question
from .hydra import Tree
from .run import Run

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
    ranks = 1
    for axis in ("tensor_model", "pipeline_model", "context"):
        ranks *= tree.count(f"{ACTOR}.megatron.{axis}_parallel_size", 1) or 1
    return max(older // max(gpus // ranks, 1), 1)


def tokens_of(batch: dict[str, Any]) -> int:
    """Tokens of a microbatch, before context parallelism."""
    return int(batch["seq_length"]) * int(batch["micro_batch_size"])
