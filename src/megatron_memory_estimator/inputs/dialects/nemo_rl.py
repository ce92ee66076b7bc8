"""NeMo-RL: `run_grpo.py --config FILE key=value ...` and its like, or such a file itself, with Megatron as the policy's engine.

Sources: NVIDIA-NeMo/RL `examples/run_grpo.py`, `examples/configs/*.yaml`, `nemo_rl/utils/config.py`, `nemo_rl/models/megatron/setup.py`,
`nemo_rl/models/policy/workers/megatron_policy_worker.py`, `nemo_rl/distributed/model_utils.py`, `nemo_rl/algorithms/{grpo,dpo,sft}.py`.

What is beside the training steps of NeMo-RL: GPUs of the engine that generates, the reference policy, what is in host memory.

Sources: NVIDIA-NeMo/RL `nemo_rl/algorithms/grpo.py` (setup), `nemo_rl/models/policy/workers/megatron_policy_worker.py`.

The tree of a run of NeMo-RL: a file over the files that its `defaults` name, and words over both.

Source: NVIDIA-NeMo/RL `nemo_rl/utils/config.py` (load_config, parse_hydra_overrides), `examples/run_*.py`.

The base files of NeMo-RL's own repository, for run files that build on them from elsewhere.

Source: NVIDIA-NeMo/RL `examples/configs/grpo_math_1B.yaml`, `grpo_math_1B_megatron.yaml`, `sft.yaml`: the keys that decide memory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import counted, shown
from ..door_defaults import without_loss
from ..model_names import family_of
from ..questions import Question
from ..spellings import short_dtype
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .keys import Section, balancing, by_habit, decisive, model_ranks, of_ddp, of_sections, of_transformer, passed_over
from .launched import UNKNOWN
from .rollout import LINEARS, MIXERS, TOLD_APART, engine, moved
from .run import Dialect, Reading, Run

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


SCRIPT = re.compile(r"run_(vlm_)?(grpo|sft|dpo|rm|distillation)\w*")
WORD = re.compile(r"--config(=.*)?|[+~]{0,2}(policy|cluster|grpo|sft|dpo|loss_fn)\..+")
POLICY, MEGATRON = "policy", "policy.megatron_cfg"

SECTIONS = frozenset(("cluster", "grpo", "sft", "dpo", "loss_fn"))
OWN = frozenset(("megatron_cfg", "dtensor_cfg", "max_total_sequence_length", "train_global_batch_size"))
"""Keys of a file, and of its policy, that tell it from others."""
ENGINE = """
    enabled activation_checkpointing moe_router_load_balancing_type defer_fp32_logits env_vars converter_type
    use_fused_linear_logprobs fused_linear_logprobs_chunk_size model_overrides use_linear_ce_fusion_loss
    linear_ce_fusion_chunk_size peft optimizer scheduler
    distributed_data_parallel_config fp8_cfg track_moe_metrics force_* sequence_parallel mtp_loss_*
    mtp_detach_* moe_hybridep_* hf_config_overrides checkpoint* save* load* optimizer_offload_between* layer_init*
"""
"""Keys of the engine that are read one by one, or have no effect."""
OPTIMIZER = """
    bf16 fp16 params_dtype eps betas decoupled_weight_decay loss_scale*
"""
POLICY_KEYS = """
    model_name tokenizer train_* generation* logprob_* max_total_sequence_length precision
    offload_optimizer_for_logprob dtensor_cfg megatron_cfg dynamic_batching sequence_packing
    make_sequence_length_divisible_by max_grad_norm optimizer scheduler hf_config_overrides refit_buffer_size_gb
    reward_model_cfg env_vars worker_extension* router_replay draft quant_* is_vlm automodel* loss_* fp32_* vocab_*
    freeze_vision* profile* use_*
"""
CHUNK = 256
"""Tokens whose log-probabilities are made from the hidden states at a time, where a run says none."""
RECOMPUTATION = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")


def knows(run: Run) -> bool:
    """A script of NeMo-RL with words for it, or a file with a policy of its kind."""
    if run.document is None:
        return SCRIPT.fullmatch(run.script) is not None and any(WORD.fullmatch(word) for word in run.words)
    keys = set(map(str, run.document))
    bases = run.document.get("defaults")
    based = all(isinstance(name, str) and name.endswith((".yaml", ".yml")) for name in _listed(bases)) and bool(bases)
    policy = run.document.get(POLICY)
    if not isinstance(policy, Mapping):
        return based and not SECTIONS.isdisjoint(keys)
    return based or not OWN.isdisjoint(map(str, policy)) or not SECTIONS.isdisjoint(keys)


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def read(run: Run) -> Reading:
    """The settings of a run.

    Raises UnsupportedError for another engine than Megatron and for training that is not modelled, ConfigError for a value of the wrong
    kind.
    """
    tree, notes, questions = tree_of(run)
    kind = kind_of(run, tree)
    if not questions:
        _check_engine(tree)
    warnings: list[str] = []
    settings, unknown, refused = _sections(tree)
    settings |= _engine(tree, warnings)
    settings = _recomputed(tree, settings)
    gpus = gpus_of(tree)
    settings |= _batch(tree, run.wanted_gpus or gpus, kind, notes, warnings)
    tuned, more = _tuned(tree, warnings)
    around, said = phases(tree, kind, tokens=settings["seq_length"] * settings["micro_batch_size"])
    refused += _stops(tree)
    for path in (f"{POLICY}.draft.enabled", f"{POLICY}.quant_cfg", f"{MEGATRON}.quant_cfg"):
        if tree.at(path):
            refused.append(f"{path}={shown(tree.at(path))} decides memory and is not modelled")
    model = str(tree.at(f"{POLICY}.model_name") or "")
    chosen, experts = by_habit(settings)
    return Reading(
        model=model,
        bridged=True,
        settings={**chosen, **tuned, **around},
        defaults={**without_loss("nemo-rl", family_of(run.model or model)), **experts},
        num_gpus=gpus,
        env=decisive(run.env, tree.section(f"{MEGATRON}.env_vars")),
        assumptions=tuple(notes),
        warnings=(*warnings, *said, *passed_over([*tree.misspelled(), *unknown], "NeMo-RL")),
        questions=tuple(questions),
        refused=(*refused, *more),
    )


def _check_engine(tree: Tree) -> None:
    """Nothing where Megatron trains. Raises UnsupportedError that names the switches."""
    if not tree.on(f"{MEGATRON}.enabled"):
        other = shown(tree.at(f"{POLICY}.dtensor_cfg.enabled"))
        raise UnsupportedError(
            f"policy.megatron_cfg.enabled is not true (policy.dtensor_cfg.enabled is {other}): this run of NeMo-RL does not train with "
            "Megatron, and only Megatron is modelled",
            "a run of NeMo-RL does not train with Megatron",
        )


def _sections(tree: Tree) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of the sections whose keys are Megatron's."""
    sections = [
        Section(POLICY, POLICY_KEYS),
        of_transformer(MEGATRON, ENGINE),
        of_transformer(f"{MEGATRON}.model_overrides", ""),
        Section(f"{MEGATRON}.optimizer", OPTIMIZER),
        of_ddp(f"{MEGATRON}.distributed_data_parallel_config"),
    ]
    settings, unknown, refused = of_sections(tree, sections)
    if not settings.get("use_megatron_fsdp"):
        settings.pop("data_parallel_sharding_strategy", None)
    return settings, unknown, refused


def _engine(tree: Tree, warnings: list[str]) -> dict[str, Any]:
    """Precision, fp8, balancing and the loss."""
    word = short_dtype(tree.at(f"{POLICY}.precision"))
    found: dict[str, Any] = {"params_dtype": word if word in ("fp16", "fp32") else "bf16"}
    found["sequence_parallel"] = tree.on(f"{MEGATRON}.sequence_parallel")
    if tree.on(f"{MEGATRON}.fp8_cfg.enabled"):
        fp8 = tree.section(f"{MEGATRON}.fp8_cfg")
        found |= {"fp8": fp8.get("fp8", "hybrid"), "fp8_recipe": fp8.get("fp8_recipe", "delayed")}
        found["fp8_param_gather"] = bool(fp8.get("fp8_param"))
    return found | balancing(tree, MEGATRON) | _loss(tree, warnings)


def _recomputed(tree: Tree, settings: dict[str, Any]) -> dict[str, Any]:
    """Recomputation where activation_checkpointing is on: modules if they are chosen, else all of every layer."""
    if not tree.on(f"{MEGATRON}.activation_checkpointing"):
        return settings | dict.fromkeys(RECOMPUTATION)
    if settings.get("recompute_granularity") == "selective":
        chosen = {"recompute_granularity": "selective", "recompute_modules": settings.get("recompute_modules") or None}
        return settings | dict.fromkeys(RECOMPUTATION) | chosen
    return settings | {
        "recompute_granularity": "full",
        "recompute_method": tree.at(f"{MEGATRON}.recompute_method", "uniform"),
        "recompute_num_layers": tree.count(f"{MEGATRON}.recompute_num_layers", 1),
        "recompute_modules": None,
    }


def _loss(tree: Tree, warnings: list[str]) -> dict[str, Any]:
    """What the loss makes of the logits; parts of so many tokens need logits that stay in bf16."""
    if tree.on(f"{MEGATRON}.use_fused_linear_logprobs"):
        return {
            "loss_function": "nemo_rl_fused",
            "loss_chunk_size": tree.count(f"{MEGATRON}.fused_linear_logprobs_chunk_size", CHUNK),
        }
    fused = tree.on(f"{MEGATRON}.use_linear_ce_fusion_loss")
    found: dict[str, Any] = {
        "loss_function": "fused" if fused else "nemo_rl",
        "loss_temperature": tree.number(f"{POLICY}.generation.temperature", 1.0) != 1,
    }
    chunk = tree.count(f"{POLICY}.logprob_chunk_size")
    if chunk is not None and tree.on(f"{MEGATRON}.defer_fp32_logits"):
        found["loss_chunk_size"] = chunk
    elif chunk is not None:
        warnings.append(
            f"policy.logprob_chunk_size={chunk} needs policy.megatron_cfg.defer_fp32_logits: the logits are whole in fp32"
        )
    return found


def _stops(tree: Tree) -> list[str]:
    """What NeMo-RL stops at beside log-probabilities from hidden states."""
    if not tree.on(f"{MEGATRON}.use_fused_linear_logprobs"):
        return []
    beside = {
        f"{MEGATRON}.context_parallel_size": (tree.count(f"{MEGATRON}.context_parallel_size", 1) or 1) > 1,
        f"{POLICY}.sequence_packing.enabled": tree.on(f"{POLICY}.sequence_packing.enabled"),
        f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather": tree.on(
            f"{MEGATRON}.distributed_data_parallel_config.overlap_param_gather"
        ),
    }
    return [f"use_fused_linear_logprobs of NeMo-RL does not work with {key}" for key, on in beside.items() if on]


def _batch(tree: Tree, gpus: int | None, kind: str, notes: list[str], warnings: list[str]) -> dict[str, Any]:
    """Tokens of a microbatch, which no packing exceeds, and samples of a step; a pair of DPO is two samples."""
    pairs = 2 if kind == "dpo" else 1
    longest = tree.count(f"{POLICY}.max_total_sequence_length") or 1
    micro = (tree.count(f"{POLICY}.train_micro_batch_size") or 1) * pairs
    samples = (tree.count(f"{POLICY}.train_global_batch_size") or 1) * pairs
    dynamic = [name for name in ("sequence_packing", "dynamic_batching") if tree.on(f"{POLICY}.{name}.enabled")]
    if tree.count(f"{MEGATRON}.context_parallel_size", 1) != 1 and "sequence_packing" not in dynamic:
        warnings.append("context parallelism of NeMo-RL needs policy.sequence_packing.enabled")
    key = f"{POLICY}.{dynamic[0]}.train_mb_tokens" if dynamic else ""
    tokens = (tree.count(key) if key else None) or longest * micro
    found: dict[str, Any] = {"global_batch_size": samples, "seq_length": longest, "micro_batch_size": micro}
    if tokens < longest:
        warnings.append(
            f"a sample may have {longest} tokens (policy.max_total_sequence_length), above {key}={tokens}: it runs alone"
        )
    if dynamic:
        packing = "nemo_rl" if "sequence_packing" in dynamic[0] else "nemo_rl_dynamic"
        found |= {"packing": packing, "packing_tokens": tokens}
    tokens = max(tokens, longest)
    if tokens != longest * micro or (
        dynamic and gpus is not None and samples % (micro * max(gpus // model_ranks(tree, MEGATRON), 1))
    ):
        found |= {"seq_length": tokens, "micro_batch_size": 1}
    rows = f"samples packed to {key}" if dynamic else f"{counted(micro, 'sample')} of at most {longest}"
    notes.append(f"at most {tokens} tokens in a microbatch: {rows}")
    return found


def _tuned(tree: Tree, warnings: list[str]) -> tuple[dict[str, Any], list[str]]:
    """LoRA of Megatron-Bridge."""
    peft = f"{MEGATRON}.peft"
    if not tree.on(f"{peft}.enabled"):
        return {}, []
    names, excluded = (_texts(tree.at(f"{peft}.{key}_modules")) for key in ("target", "exclude"))
    refused = [f"{peft}.exclude_modules decides memory and is not modelled"] if excluded and names else []
    everything = tuple(one for one in (*LINEARS, *MIXERS) if not any(_excludes(pattern, one) for pattern in excluded))
    refused += [
        f"{peft}.target_modules has {shown(one)}; names of linears are modelled"
        for one in names
        if "*" in one or "." in one
    ]
    if not names:
        warnings.append(
            f"{peft}.target_modules is empty, which adapts every linear: the adapter of the output layer is not counted"
        )
    return {
        "peft": "lora",
        "peft_dim": tree.count(f"{peft}.dim", 8),
        "peft_target_modules": tuple(names) or everything,
    }, refused


def _texts(found: Any) -> list[str]:
    return [str(one) for one in (found if isinstance(found, list) else [found] if found else [])]


def _excludes(pattern: str, linear: str) -> bool:
    """Whether a pattern means a linear: by its own name, or by a path of modules with * for any part of it."""
    return linear == pattern or fnmatchcase(f"decoder.layers.0.part.{linear}", pattern)


DIALECT = Dialect(
    "NeMo-RL", "dialects/nemo_rl.md", knows, read, lambda run: MEGATRON, follows=FOLLOWS, words=TOLD_APART
)


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
    found["log_prob_offload"] = moved(False, True, tree.on("policy.offload_optimizer_for_logprob"))
    forward = _forward_tokens(tree)
    if forward and forward != tokens:
        found["log_prob_micro_batch_tokens"] = forward
    backend = str(tree.at(f"{GENERATION}.backend", "vllm"))
    share = "sglang_cfg.mem_fraction_static" if backend == "sglang" else "vllm_cfg.gpu_memory_utilization"
    colocated = tree.on(f"{COLOCATED}.enabled", True)
    generates, said = engine(
        backend,
        f"{GENERATION}.backend",
        colocated=colocated,
        sleeps=True,
        keys=tree.section(f"{GENERATION}.{backend}_kwargs"),
        rollout_tensor_parallel_size=tree.count(f"{GENERATION}.{backend}_cfg.tensor_parallel_size", 1),
        rollout_memory_share=tree.number(f"{GENERATION}.{share}", 0.6),
    )
    return {**found, **generates, "rollout_offload": moved() if generates and colocated else ()}, said


def _forward_tokens(tree: Tree) -> int | None:
    """Tokens of a microbatch of the forward for log-probabilities, before context parallelism."""
    for name in ("sequence_packing", "dynamic_batching"):
        if tree.on(f"policy.{name}.enabled"):
            return tree.count(f"policy.{name}.logprob_mb_tokens")
    samples = tree.count("policy.logprob_batch_size")
    return samples and samples * (tree.count("policy.max_total_sequence_length") or 1)
