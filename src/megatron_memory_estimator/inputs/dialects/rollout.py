"""What is beside the training steps of reinforcement learning, in the settings of every framework: the engine that generates samples,
and what leaves the GPU while it does.

Adapters: the linears of Megatron that frameworks adapt, and their names in Hugging Face's models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from ...wording import shown
from ..model_names import catalogued
from .hydra import Tree

ENGINES = ("vllm", "sglang")
GAE, PPO = "gae", "ppo"
"""Estimators of advantages that train a critic, by the names of verl and ROLL, and of slime."""
TOLD_APART = " ".join((*ENGINES, GAE, PPO, "megatron", "critic", "all-linear", "muon"))
"""Values of keys that the readers of reinforcement learning tell apart, besides their own."""
MOVED = ("weights", "gradients", "optimizer")
"""What can be in host memory while samples are generated."""
LINEARS = (
    "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj",
    "linear_kv_down_proj", "linear_kv_up_proj",
)  # fmt: skip
"""Every linear of attention and MLP, without the output layer and the router."""
MIXERS = ("in_proj", "out_proj")
"""Linears of Mamba and of gated delta nets."""
OF_HF = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "o_proj": "linear_proj", "gate_proj": "linear_fc1",
    "up_proj": "linear_fc1", "down_proj": "linear_fc2",
}  # fmt: skip
"""Megatron's linear of a name in Hugging Face's models."""


def moved(weights: object = True, gradients: object = True, optimizer: object = True) -> tuple[str, ...]:
    """The parts of a policy that leave the GPU."""
    return tuple(name for name, away in zip(MOVED, (weights, gradients, optimizer), strict=True) if away)


def engine(
    name: str, where: str, *, colocated: bool, sleeps: bool, keys: Iterable[str] = (), **more: Any
) -> tuple[dict[str, Any], list[str]]:
    """The settings of an engine, and what is said of it; `where` is the key that names it, `keys` are those of the engine itself.

    more    weight_sync_bytes, and of an engine that shares the GPUs rollout_tensor_parallel_size and rollout_memory_share
    """
    if name not in ENGINES:
        return {}, [f"{where}={shown(name)} is not modelled: the phase that generates is not counted"]
    found = {"rollout_engine": name, "rollout_colocated": colocated, "rollout_sleeps": sleeps, **more}
    if colocated:
        said = f"the engine {name} shares the GPUs; what it leaves behind asleep is not known"
        return found, [said, *draft_of(keys)]
    return {key: value for key, value in found.items() if key not in ON_THE_SAME_GPUS}, []


DRAFTED = re.compile("speculative")
"""Keys of an engine that are about its draft model."""


def draft_of(keys: Iterable[str]) -> list[str]:
    """What is said of a draft model of an engine that shares the GPUs, by the keys that are about one."""
    about = sorted(filter(DRAFTED.search, keys))
    if not about:
        return []
    return [
        f"{about[0]}: the weights and caches of the engine's draft model are not counted; they stand within its share of a GPU while "
        "samples are generated, and beside its weights in weight_sync"
    ]


ON_THE_SAME_GPUS = ("rollout_tensor_parallel_size", "rollout_memory_share")


DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
"""Degrees that split the weights of a model."""
DEGREES_OF_STATE = (*DEGREES, "expert_tensor_parallel_size")
"""The same with that of experts' tensors."""


def degrees_at(tree: Tree, where: str, names: Iterable[str] = DEGREES_OF_STATE) -> dict[str, int]:
    """The degrees of a section, 1 where it has none."""
    return {name: tree.count(f"{where}.{name}", 1) or 1 for name in names}


def split_otherwise(tree: Tree, reference: str, policy: str) -> list[str]:
    """The warning about a reference whose section splits its weights otherwise than the policy's."""
    own, wanted = ([*degrees_at(tree, where, DEGREES).values()] for where in (reference, policy))
    if own == wanted:
        return []
    others = [f"{name}={a} instead of {b}" for name, a, b in zip(DEGREES, own, wanted, strict=True) if a != b]
    which = ", which is too little" if prod(own) < prod(wanted) else ""
    said = f"the reference's weights are counted split as the policy's{which}"
    return [f"{reference} has {', '.join(others)}: {said}"]


def linears(words: Iterable[str], names: Mapping[str, str] = OF_HF) -> tuple[str, ...]:
    """Megatron's linears of names that may be Hugging Face's, each once."""
    return tuple(dict.fromkeys(names.get(word, word) for word in words if word))


def other_critic(models: Iterable[str], degrees: Iterable[Mapping[str, int]]) -> list[str]:
    """Why a critic is refused that is another model than the policy, or split otherwise: the critic's model and the policy's, and the
    degrees of both by Megatron's names. What is counted of it is the policy's own state."""
    (model, other), (own, policy), refused = models, degrees, []
    if model and (catalogued(model) or model) != (catalogued(other) or other):
        refused.append(f"critic: {shown(model)} is another model than the policy, which is not modelled")
    refused += [
        f"critic: {name}={own[name]} beside the policy's {policy[name]} is not modelled"
        for name in DEGREES_OF_STATE
        if own[name] != policy[name]
    ]
    return refused
