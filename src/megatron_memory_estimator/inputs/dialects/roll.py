"""ROLL: `start_rlvr_pipeline.py --config_path D --config_name F`, or the YAML that it reads.

Sources: alibaba/ROLL `roll/distributed/strategy/megatron_strategy.py`, `roll/configs/worker_config.py`, `base_config.py`,
`model_args.py`, `training_args.py`, `mcore_adapter/src/mcore_adapter/training_args.py`, `models/model_config.py`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..questions import Question
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .keys import SAME, passed_over, translated
from .roll_devices import devices
from .roll_phases import phases
from .run import Dialect, Reading, Run

PROGRAM = re.compile(r"start_\w+_pipeline")
WORKERS = ("actor_train", "sft_train", "student", "dpo_train", "critic")
"""Workers that train, the policy first."""
MEGATRON = "megatron_train"
DEFAULTS: dict[str, Any] = {
    "use_distributed_optimizer": False,
    "sequence_parallel": False,
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "cross_entropy_loss_fusion": False,
    "moe_token_dispatcher_type": "allgather",
    "moe_grouped_gemm": True,
    "moe_aux_loss_coeff": 0.0,
    "mtp_num_layers": 0,
    "overlap_grad_reduce": False,
    "make_vocab_size_divisible_by": 1,
}
"""What holds where a run says nothing, in Megatron's names."""
TABLE = {
    "bias_activation_fusion": SAME,
    "use_distributed_optimizer": SAME,
    "fp8": SAME,
}
READ = "recompute_granularity moe_layer_recompute optimizer_cpu_offload optimizer_offload_fraction bf16 fp16 optimizer attention_backend"
"""Keys of strategy_config that are read one by one."""
NOTHING = """
    accumulate_allreduce_grads_in_fp32 adam_* additional_configs async_save ckpt_* dataloader_* ddp_average_in_collective
    delay_grad_reduce distributed_* finetune lora_* moe_router_* nccl_* save_* seed timeout tokenizer_type
    transformer_impl use_cpu_initialization variable_seq_lengths overlap_p2p_comm batch_p2p_comm calculate_per_token_loss
    use_sequence_packing logits_in_fp32 check_for_nan_* optimizer_type lr* weight_decay* clip_grad
"""
"""Keys of strategy_config without effect, and beginnings of such."""
LORA_ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj",
            "linear_kv_down_proj", "linear_kv_up_proj")  # fmt: skip
"""`all-linear`: every linear but the output layer and the router."""
LORA = {
    "q_proj": "linear_qkv", "k_proj": "linear_qkv", "v_proj": "linear_qkv", "o_proj": "linear_proj", "gate_proj": "linear_fc1",
    "up_proj": "linear_fc1", "down_proj": "linear_fc2",
}  # fmt: skip
"""Linears by the names of Hugging Face's layers."""
FROZEN = ("freeze_module_prefix", "trainable_module_prefix")
TOWER = re.compile(r"(?:\w+\.)*(?:vision|visual|audio)\w*(?:\.\w+)*|multi_modal_projector|merger|aligner")
"""Prefixes of what is beside the language model, and not counted."""
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
            Question(f"{worker}.device_mapping, whose length is the number of GPUs, is not given", "--num-gpus N")
        )
    config = tree.section(strategy)
    settings, unknown, refused = translated(config, TABLE, READ + NOTHING, f"{strategy}.")
    settings |= _recompute(tree, strategy) | _precision(tree, worker)
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
        settings={**settings, **tuned, **around},
        defaults=DEFAULTS,
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
    word = str(tree.at(f"{worker}.model_args.dtype") or "fp32")
    names = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp32": "fp32", "float32": "fp32"}
    if word not in names:
        raise ConfigError(f"{worker}.model_args.dtype={shown(word)} is not one of bf16, fp16, fp32")
    return {"params_dtype": names[word]}


def _recompute(tree: Tree, strategy: str) -> dict[str, Any]:
    """Full recomputation is uniform with one layer where nothing else is said; moe_layer_recompute is selective."""
    granularity = tree.at(f"{strategy}.recompute_granularity")
    if granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": tree.at(f"{strategy}.recompute_method", "uniform"),
            "recompute_num_layers": tree.count(f"{strategy}.recompute_num_layers", 1),
        }
    if tree.on(f"{strategy}.moe_layer_recompute"):
        return {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "moe")}
    return {"recompute_granularity": granularity} if granularity else {}


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
    ranks = 1
    for axis in ("tensor_model", "pipeline_model", "context"):
        ranks *= tree.count(f"{worker}.strategy_args.strategy_config.{axis}_parallel_size", 1) or 1
    found: dict[str, Any] = {"seq_length": length, "micro_batch_size": micro}
    if gpus and gpus % ranks == 0:
        found["global_batch_size"] = micro * steps * (gpus // ranks)
    limit = _limit(tree, worker)
    if limit is None:
        notes.append(f"samples are padded to {length} tokens, {micro} in a microbatch")
        return found
    key, tokens = limit
    longest = f", below the longest sample of {length}" if tokens < length else ""
    tokens = max(tokens, length)
    notes.append(f"at most {tokens} tokens in a microbatch: {key}{longest}")
    return found | {"seq_length": tokens, "micro_batch_size": 1}


def _limit(tree: Tree, worker: str) -> tuple[str, int] | None:
    """The key that bounds the tokens of a microbatch, and the bound; None where rows are padded samples."""
    for switch, key in (
        ("use_sequence_packing", "sequence_packing_args.max_packed_sequence_length_train"),
        ("use_dynamic_batching_in_train", "max_tokens_per_microbatch_in_train"),
    ):
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
    modules = (
        LORA_ALL if "all-linear" in words else tuple(dict.fromkeys(LORA.get(word, word) for word in words if word))
    )
    rank = tree.count(f"{args}.lora_rank", tree.count("lora_rank", 8)) or 8
    return {"peft": "lora", "peft_dim": rank, "peft_target_modules": modules}, refused


def _chooses(tree: Tree, path: str) -> bool:
    """Whether prefixes choose among the weights of the language model; freezing a tower changes nothing that is counted."""
    found = tree.at(path)
    words = found.replace(" ", "").split(",") if isinstance(found, str) else found or []
    frozen = path.endswith(FROZEN[0])
    return bool(words) and not (
        frozen and isinstance(words, list) and all(TOWER.fullmatch(str(word)) for word in words)
    )


DIALECT = Dialect(
    "ROLL",
    "dialects/roll.md",
    knows,
    read,
    lambda run: f"{worker_of(tree_of(run))}.strategy_args.strategy_config",
    follows=FOLLOWS,
)
