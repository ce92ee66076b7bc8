"""ROLL: `start_rlvr_pipeline.py --config_path D --config_name F`, or the YAML that it reads.

Sources: alibaba/ROLL `roll/distributed/strategy/megatron_strategy.py`, `roll/configs/worker_config.py`, `base_config.py`,
`model_args.py`, `training_args.py`, `mcore_adapter/src/mcore_adapter/training_args.py`, `models/model_config.py`.

Devices of a worker of ROLL: `list(range(0,8))`, `range(8,16)`, `[0, 1, 2]` and sums of such, read and never evaluated.

Source: alibaba/ROLL `roll/configs/worker_config.py` (device_mapping).

What is beside the training steps of ROLL: the engine, reference and critic, and what leaves the GPU meanwhile.

Sources: alibaba/ROLL `roll/distributed/strategy/megatron_strategy.py` (offload_states, log-probabilities and entropy from logits),
`roll/configs/base_config.py` (model_update_buffer_size_mb, is_offload_states), `roll/pipeline/rlvr/rlvr_pipeline.py`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..door_defaults import decided
from ..questions import GPUS_OPTION, Question
from ..spellings import short_dtype
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .keys import model_ranks, passed_over, translated
from .mcore_adapter import recompute
from .rollout import GAE, LINEARS, TOLD_APART, degrees_at, engine, linears, moved, other_critic
from .run import Dialect, Reading, Run

PROGRAM = re.compile(r"start_\w+_pipeline")
WORKERS = ("actor_train", "sft_train", "student", "dpo_train", "critic")
"""Workers that train, the policy first."""
MEGATRON = "megatron_train"
READ = "recompute_granularity moe_layer_recompute optimizer_cpu_offload optimizer_offload_fraction bf16 fp16 optimizer attention_backend"
"""Keys of strategy_config that are read one by one."""
NOTHING = """
    accumulate_allreduce_grads_in_fp32 additional_configs ckpt_* delay_grad_reduce finetune lora_* moe_router_* nccl_*
    save_* timeout tokenizer_type transformer_impl use_cpu_initialization overlap_p2p_comm use_sequence_packing
    logits_in_fp32 check_for_nan_* optimizer_type
"""
"""Keys of strategy_config without effect, and beginnings of such."""
FROZEN = ("freeze_module_prefix", "trainable_module_prefix")
PARTS = {
    "freeze_vision_model": re.compile(r"(?:\w+\.)*(?:vision|visual)\w*"),
    "freeze_audio_model": re.compile(r"(?:\w+\.)*audio\w*"),
    "freeze_vision_projection": re.compile(r"(?:\w+\.)*(?:multi_modal_projector|merger|aligner)(?:\.\w+)*"),
}
"""What of a tower is frozen by which prefixes, by our names."""
WITH_MERGER = "vision_model"
"""The tower that has what leads out of it inside."""
MICRO_BATCH = 8
FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
OWN_FILES = re.compile(r"deepspeed_\w+|envs?|fsdp\w*")
"""Files of ROLL's `examples/config`: engines that are not Megatron, and environments of agents."""


def knows(run: Run) -> bool:
    """A pipeline's start script, or a file with a worker that trains by a strategy."""
    if run.document is not None:
        return any(
            isinstance(run.document.get(worker), Mapping) and "strategy_args" in run.document[worker]
            for worker in WORKERS
        )
    return bool(PROGRAM.fullmatch(run.script))


def read(run: Run) -> Reading:
    """The settings of a run. Raises UnsupportedError for another engine than Megatron, ConfigError for a file that is missing."""
    tree = tree_of(run)
    worker = worker_of(tree)
    strategy = f"{worker}.strategy_args.strategy_config"
    notes: list[str] = []
    warnings: list[str] = []
    questions: list[Question] = []
    trains = devices(tree.at(f"{worker}.device_mapping"), f"{worker}.device_mapping")
    if trains is None:
        questions.append(
            Question(f"{worker}.device_mapping, whose length is the number of GPUs, is not given", GPUS_OPTION)
        )
    config = tree.section(strategy)
    settings, unknown, refused = translated(config, READ + NOTHING, f"{strategy}.")
    settings |= recompute(tree, f"{strategy}.") | _precision(tree, worker)
    if settings.get("expert_model_parallel_size", 1) != 1:
        settings["sequence_parallel"] = True
    if config.get("optimizer_cpu_offload"):
        warnings.append(
            f"{worker}.strategy_config.optimizer_cpu_offload is not handed on to the optimizer by ROLL: its states stay on the GPU"
        )
    settings |= _batch(tree, worker, settings, run.wanted_gpus or len(trains or ()), notes, questions)
    tuned, more = _tuned(tree, worker)
    around, said = phases(tree, worker, trains, lora=bool(tuned))
    gpus = len(trains) if trains is not None else run.num_gpus
    return Reading(
        model=_model(tree, worker),
        settings={**settings, **_frozen(tree, f"{worker}.model_args.{FROZEN[0]}"), **tuned, **around},
        defaults=decided("roll"),
        num_gpus=gpus,
        env={str(key): str(value) for key, value in tree.section("system_envs").items()} | dict(run.env),
        assumptions=(f"the worker {worker} trains", *notes),
        warnings=(*warnings, *said, *passed_over([*tree.misspelled(), *unknown], "ROLL")),
        questions=tuple(questions),
        refused=(*refused, *more),
    )


def tree_of(run: Run) -> Tree:
    """The settings of a run: the document, or the file that the program's words name. Raises ConfigError where it is missing."""
    env = {**run.env, **run.variables}
    if run.document is not None:
        return Tree(_with_bases(run, run.document, ""), env)
    options, words = parted(run.words)
    name = options.get("config-name", "") or "config"
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    tried = dict.fromkeys((posixpath.join(options.get("config-path", ""), file), file))
    for path in tried:
        document = document_of(run, path, "keys of ROLL", follows=FOLLOWS)
        if document is not None:
            return Tree(overridden(_with_bases(run, document, posixpath.dirname(path)), words), env)
    raise ConfigError(f"{shown(next(iter(tried)))}, which {run.script} reads, is not beside {run.path}; put it there")


def _with_bases(run: Run, document: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """A file over the files of its `defaults` (`- ../config/x@_here_`). Those of ROLL's own are of other engines and of the environment.

    Raises ConfigError for another file that is not there, and for one that builds on others itself.
    """
    found: dict[str, Any] = {}
    rest = {str(key): value for key, value in document.items() if key != "defaults"}
    listed = document.get("defaults")
    for entry in listed if isinstance(listed, list) else [listed] if listed else []:
        if entry == "_self_":
            found, rest = merged(found, rest), {}
            continue
        name = str(entry).partition("@")[0].removesuffix(".yaml")
        if isinstance(entry, str) and OWN_FILES.fullmatch(posixpath.basename(name)):
            continue
        path = posixpath.normpath(posixpath.join(folder, f"{name}.yaml"))
        below = document_of(run, path, "keys of ROLL") if isinstance(entry, str) else None
        if below is None:
            raise ConfigError(
                f"{shown(path)[1:-1]}, on which {run.path} builds (defaults), is not there; put it at that path"
            )
        found = merged(found, below)
    return merged(found, rest)


def worker_of(tree: Tree) -> str:
    """The worker that trains the policy. Raises UnsupportedError where it trains with another engine than Megatron."""
    found = [worker for worker in WORKERS if tree.section(f"{worker}.strategy_args")]
    if not found:
        raise UnsupportedError(f"no worker of ROLL trains here: none of {', '.join(WORKERS)} has strategy_args")
    name = tree.at(f"{found[0]}.strategy_args.strategy_name")
    if name != MEGATRON:
        raise UnsupportedError(
            f"{found[0]} of ROLL trains with strategy_name={shown(name)}; only {MEGATRON} is modelled",
            "a worker of ROLL does not train with Megatron",
        )
    return found[0]


def _model(tree: Tree, worker: str) -> str:
    own = tree.at(f"{worker}.model_args.model_name_or_path")
    top = "reward_pretrain" if worker == "critic" else "pretrain"
    return str(own or tree.at(top) or tree.at("model_name_or_path") or "")


def _precision(tree: Tree, worker: str) -> dict[str, Any]:
    """The precision; without one the class's is fp32, which Megatron-Core then computes in."""
    word = short_dtype(tree.at(f"{worker}.model_args.dtype") or "fp32")
    if word not in ("bf16", "fp16", "fp32"):
        raise ConfigError(f"{worker}.model_args.dtype={shown(word)} is not one of bf16, fp16, fp32")
    return {"params_dtype": word}


def _batch(
    tree: Tree, worker: str, settings: Mapping[str, Any], gpus: int, notes: list[str], questions: list[Question]
) -> dict[str, Any]:
    """Tokens of a row, rows of a microbatch and samples of a step."""
    length = tree.count("sequence_length")
    if length is None:
        parts = tree.count("prompt_length"), tree.count("response_length")
        length = sum(parts) if None not in parts else None  # type: ignore[arg-type]
    if length is None:
        questions.append(
            Question("neither sequence_length nor prompt_length with response_length is given", "--seq-length N")
        )
        return {}
    args = f"{worker}.training_args"
    micro = tree.count(f"{args}.per_device_train_batch_size", MICRO_BATCH) or MICRO_BATCH
    steps = tree.count(f"{args}.gradient_accumulation_steps", 1) or 1
    ranks = model_ranks(tree, f"{worker}.strategy_args.strategy_config")
    found: dict[str, Any] = {"seq_length": length, "micro_batch_size": micro}
    if gpus and gpus % ranks == 0:
        found["global_batch_size"] = micro * steps * (gpus // ranks)
    limit = _limit(tree, worker)
    if limit is None:
        notes.append(f"samples are padded to {length} tokens, {micro} in a microbatch")
        return found
    key, tokens = limit
    longest = f", below the longest sample of {length}" if tokens < length else ""
    packing = {"packing": "roll", "packing_tokens": tokens} if PACKS not in key else {}
    tokens = max(tokens, length)
    notes.append(f"at most {tokens} tokens in a microbatch: {key}{longest}")
    return found | {"seq_length": tokens, "micro_batch_size": 1, **packing}


PACKS = "sequence_packing_args.max_packed_sequence_length_train"
LIMITS = (("use_sequence_packing", PACKS), ("use_dynamic_batching_in_train", "max_tokens_per_microbatch_in_train"))
"""Switches, and the keys of their bounds."""


def _limit(tree: Tree, worker: str) -> tuple[str, int] | None:
    """The key that bounds the tokens of a microbatch, and the bound; None where rows are padded samples."""
    for switch, key in LIMITS:
        if tree.on(f"{worker}.{switch}") and (tokens := tree.count(f"{worker}.{key}")):
            return f"{worker}.{key}={tokens}", tokens
    return None


def _tuned(tree: Tree, worker: str) -> tuple[dict[str, Any], list[str]]:
    """LoRA, and what is refused because it chooses what trains."""
    args = f"{worker}.model_args"
    refused = [
        f"{args}.{key} chooses what trains, which is not modelled" for key in FROZEN if _chooses(tree, f"{args}.{key}")
    ]
    target = tree.at(f"{args}.lora_target") or tree.at("lora_target")
    if not target:
        return {}, refused
    words = target.replace(" ", "").split(",") if isinstance(target, str) else target
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{args}.lora_target={shown(target)} must be names of linears")
    modules = LINEARS if "all-linear" in words else linears(words)
    rank = tree.count(f"{args}.lora_rank", tree.count("lora_rank", 8)) or 8
    return {"peft": "lora", "peft_dim": rank, "peft_target_modules": modules}, refused


def _prefixes(tree: Tree, path: str) -> list[str]:
    """Prefixes of names of weights."""
    found = tree.at(path) or []
    words = found.replace(" ", "").split(",") if isinstance(found, str) else found
    return [str(word) for word in (words if isinstance(words, list) else [words])]


def _frozen(tree: Tree, path: str) -> dict[str, bool]:
    """What of a tower is frozen by its prefix."""
    words = _prefixes(tree, path)
    found = {name: True for name, part in PARTS.items() if any(map(part.fullmatch, words))}
    return found | ({"freeze_vision_projection": True} if WITH_MERGER in words else {})


def _chooses(tree: Tree, path: str) -> bool:
    """Whether prefixes choose among the weights of the language model, not of a tower."""
    words = _prefixes(tree, path)
    return bool(words) and not (
        path.endswith(FROZEN[0]) and all(any(part.fullmatch(word) for part in PARTS.values()) for word in words)
    )


DIALECT = Dialect(
    "ROLL",
    "dialects/roll.md",
    knows,
    read,
    lambda run: f"{worker_of(tree_of(run))}.strategy_args.strategy_config",
    follows=FOLLOWS,
    words=TOLD_APART,
)


PART = re.compile(
    r"(?:list\(\s*)?range\(\s*(?P<numbers>[0-9]{1,9}(?:\s*,\s*[0-9]{1,9}){0,2})\s*,?\s*\)(?:\s*\))?"
    r"|(?:list\(\s*)?\[\s*(?P<listed>[0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)?\s*,?\s*\](?:\s*\))?|(?P<one>[0-9]{1,9})"
)
MOST = 100_000
"""Devices of a run."""


def devices(given: Any, where: str) -> frozenset[int] | None:
    """The devices that a mapping says, or None where it says none. Raises ConfigError for one that is not read."""
    if given is None or given == "":
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        return frozenset((given,))
    if isinstance(given, list):
        if len(given) > MOST or not all(isinstance(one, int) and not isinstance(one, bool) for one in given):
            raise ConfigError(f"{where}={shown(given)} must be numbers of devices")
        return frozenset(given)
    if not isinstance(given, str) or len(given) > 10_000:
        raise ConfigError(f"{where}={shown(given)} must be devices such as list(range(0,8))")
    found: set[int] = set()
    for part in given.split("+"):
        match = PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{where}={shown(given)} is not read; give it as list(range(0,8)) or as numbers")
        found.update(_numbers(match, where))
        if len(found) > MOST:
            raise ConfigError(f"{where}={shown(given)} has more than {MOST} devices")
    return frozenset(found)


def _numbers(match: re.Match[str], where: str) -> range | list[int]:
    if match["one"] is not None:
        return [int(match["one"])]
    if match["numbers"] is None:
        return [int(each) for each in (match["listed"] or "").split(",") if each.strip()]
    ends = [int(each) for each in match["numbers"].split(",")]
    if len(ends) == 3 and ends[2] == 0:
        raise ConfigError(f"{where} has a range with a step of 0")
    numbers = range(*ends)
    if len(numbers) > MOST:
        raise ConfigError(f"{where} has a range of more than {MOST} devices")
    return numbers


SHARE = 0.9
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
    found["rollout_offload"] = moved(states, states, states)
    steps_only = tree.on("is_offload_optimizer_states_in_train_step")
    found["log_prob_offload"] = moved(False, states, states or steps_only)
    kl = any(tree.on(key) for key in ("use_kl_loss", "add_token_level_kl", "enable_reference"))
    if tree.section("reference") and not lora and (kl or not _silent(tree)) and _beside(tree, "reference", trains):
        found["reference_model"] = "offloaded" if states else "device"
    critic = tree.at("adv_estimator") == GAE or tree.section("critic.strategy_args")
    if critic and _beside(tree, "critic", trains):
        names = (_model(tree, who) for who in ("critic", POLICY))
        degrees = (degrees_at(tree, f"{who}.strategy_args.strategy_config") for who in ("critic", POLICY))
        if refused := other_critic(names, degrees):
            raise UnsupportedError("; ".join(refused))
        found["critic_model"] = "in_turn" if states else "device"
        warnings.append("a critic trains on the same GPUs; it is counted as large as the policy")
    return found, warnings


def _silent(tree: Tree) -> bool:
    """Whether the run says of every use of a reference that there is none."""
    return all(tree.has(key) for key in ("use_kl_loss", "add_token_level_kl"))


def _engine(tree: Tree, trains: frozenset[int] | None) -> tuple[dict[str, Any], list[str]]:
    name = str(tree.at("actor_infer.strategy_args.strategy_name") or "vllm")
    config = "actor_infer.strategy_args.strategy_config"
    share = "gpu_memory_utilization" if name == "vllm" else "mem_fraction_static"
    return engine(
        name,
        "actor_infer with strategy_name",
        colocated=_beside(tree, "actor_infer", trains),
        sleeps=tree.number(f"{config}.sleep_level", 2) > 0,
        keys=tree.section(config),
        weight_sync_bytes=int(tree.number("model_update_buffer_size_mb", BUCKET_MEGABYTES) * 2**20),
        rollout_memory_share=tree.number(f"{config}.{share}", SHARE),
    )


def _beside(tree: Tree, worker: str, trains: frozenset[int] | None) -> bool:
    """Whether a worker has a GPU of those that train; one whose devices are not said has."""
    where = devices(tree.at(f"{worker}.device_mapping"), f"{worker}.device_mapping")
    return where is None or trains is None or bool(where & trains)
