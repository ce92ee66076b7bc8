"""The tree of a run of NeMo-RL: a file over the files that its `defaults` name, and words over both.

Source: NVIDIA-NeMo/RL `nemo_rl/utils/config.py` (load_config, parse_hydra_overrides), `examples/run_*.py`.

The base files of NeMo-RL's own repository, for run files that build on them from elsewhere.

Source: NVIDIA-NeMo/RL `examples/configs/grpo_math_1B.yaml`, `grpo_math_1B_megatron.yaml`, `sft.yaml`: the keys that decide memory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..questions import Question
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .launched import UNKNOWN
from .run import Run

FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
DEEPEST = 16
"""Files that build on one another."""
OWN_CONFIG = {"grpo": "grpo_math_1B.yaml", "sft": "sft.yaml"}
"""Configs that scripts take where none is given."""


class _Files:
    """Files below a run: what was assumed of those that are not there, and which are asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.notes: list[str] = []
        self.questions: list[Question] = []

    def whole(self, document: Mapping[str, Any], folder: str, depth: int = 0) -> dict[str, Any]:
        """A document over its bases, the last of a list above the others."""
        if depth > DEEPEST:
            raise ConfigError(f"{self.run.path} builds on more than {DEEPEST} files, or on itself")
        bases = document.get("defaults")
        out: dict[str, Any] = {}
        for name in [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else []:
            if not isinstance(name, str):
                raise ConfigError(f"defaults of {self.run.path} must be names of files, not {shown(name)}")
            out = merged(out, self.base(posixpath.normpath(posixpath.join(folder, name)), depth))
        return merged(out, {str(key): each for key, each in document.items() if key != "defaults"})

    def base(self, path: str, depth: int) -> dict[str, Any]:
        """A base by its path: beside the run, or the framework's own."""
        document = document_of(self.run, path, "keys of NeMo-RL", follows=FOLLOWS)
        if document is not None:
            return self.whole(document, posixpath.dirname(path), depth + 1)
        own = base_of(path)
        if own is None and (waits := UNKNOWN.search(path)):
            self.questions.append(
                Question(f"the config is {shown(path)}, and nothing sets {waits[1]}", f"--set {waits[1]}=PATH")
            )
            return {}
        name = path.rsplit("/", 1)[-1]
        if own is None:
            self.questions.append(
                Question(f"{shown(path)}, on which {self.run.path} builds, is not there; put it beside the file")
            )
            return {}
        self.notes.append(f"defaults of {name} of NeMo-RL's own repository: the file is not beside {self.run.path}")
        return own


def tree_of(run: Run) -> tuple[Tree, list[str], list[Question]]:
    """The settings of a run, what was assumed about bases that are not there, and which are missing."""
    files = _Files(run)
    if run.document is not None:
        own, root = dict(run.document), files.whole(run.document, "")
    else:
        options, words = parted(run.words)
        path = options.get("config") or OWN_CONFIG.get(_script(run), f"the config of {run.script}")
        own, root = overridden({}, words), overridden(files.base(path, 0), words)
    whole = merged(defaults_of("sft" if "sft" in root else "grpo"), root)
    return Tree(whole, {**run.env, **run.variables}, own), files.notes, files.questions


def _script(run: Run) -> str:
    """The kind of run that a script starts."""
    name = run.script.removeprefix("run_").removeprefix("vlm_")
    return next((kind for kind in ("grpo", "sft", "dpo", "rm", "distillation") if name.startswith(kind)), "")


def kind_of(run: Run, tree: Tree) -> str:
    """The kind of training. Raises UnsupportedError for what is not modelled."""
    kinds = [kind for kind in ("distillation", "rm", "dpo", "sft") if tree.has(kind)]
    kind = (_script(run) if run.document is None else "") or (kinds[0] if kinds else "grpo")
    if kind in ("distillation", "rm"):
        what = "a student of a teacher model" if kind == "distillation" else "a reward model"
        raise UnsupportedError(f"this run of NeMo-RL trains {what} ({kind}), which is not modelled")
    return kind


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
