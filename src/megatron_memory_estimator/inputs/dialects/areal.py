"""AReaL with Megatron-Core: `python3 examples/.../gsm8k_rl.py --config FILE key=value ...`, `python3 -m areal.launcher.local FILE.py
--config FILE ...`, or the YAML alone.

Sources: inclusionAI/AReaL 1.0.4 (also `4aef98d8d`, 21 May 2026) `areal/api/alloc_mode.py`, `api/cli_args.py`, `engine/megatron_engine.py`,
`engine/megatron_utils/pipeline_parallel.py`, `models/mcore/registry.py`, `trainer/rl_trainer.py`, `utils/functional/vocab_parallel.py`,
`utils/seqpack.py`; ISEEKYAN/mbridge 0.15.1 `mbridge/core/llm_bridge.py`, `models/*.py`.

Who trains and who generates: one text such as `megatron:(attn:d1p6t4|ffn:d1p6e4)` for each engine, or one for all of them
(`sglang:d4t2+megatron:d2p2t2c2`), read with the grammar of `alloc_mode.py`.

Stages of a pipeline: mbridge's models are cut so that the fullest stage has the fewest parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from math import ceil, inf, prod
from typing import Any, NamedTuple

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..catalog import entries
from ..door_defaults import decided, own, without_loss
from ..hf.load import load
from ..model_names import catalogued, family_of
from ..questions import Question
from ..spellings import short_dtype
from .documents import document_of, needed
from .hydra import Tree, overridden, parted
from .keys import Section, decisive, of_ddp, of_sections, passed_over
from .rollout import DEGREES_OF_STATE, TOLD_APART, engine, moved, other_critic
from .run import Dialect, Reading, Run

LAUNCHER = re.compile(r"areal\.(?:infra\.)?launcher\.\w+")
PROGRAM = re.compile(r"\w+_(?:rl|grpo|ppo|dapo|gspo|rloo|sapo|sft|dpo|rw)(?:_\w+)?")
"""Names of AReaL's examples, beside those that any framework's programs have."""
TRAINERS = ("megatron", "fsdp", "archon")
DIMS = r"(?:[{}][1-9][0-9]{{0,6}})+"
LABEL = r"(?:\[(?P<label>[A-Za-z_]\w*)\])?"
TRAINS = re.compile(
    rf"(?P<engine>{'|'.join(TRAINERS)}){LABEL}:"
    rf"(?:(?P<all>{DIMS.format('dptce')})|\(?attn:(?P<attn>{DIMS.format('dptc')})\|ffn:(?P<ffn>{DIMS.format('dpte')})\)?)"
)
GENERATES = re.compile(rf"(?P<engine>sglang|vllm){LABEL}:(?P<all>{DIMS.format('dpt')})")
EVALUATES = ("eval", "cpu")
"""What stood in the place of a trainer where nothing trained."""
MBRIDGE, MEGATRON_BRIDGE = "mbridge", "megatron-bridge"
WITH_MTP = ("deepseek_v3", "mimo")
"""Families whose MTP layers mbridge makes."""
CHUNK = 1024
"""Tokens whose log-probabilities are computed at a time (`utils/functional/vocab_parallel.py`)."""
TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
"""What all-linear, and nothing, mean to LoRA."""
SHARE = 0.9
"""Share of a GPU where the engine's config gives none."""
ACTOR = """
    experiment_name trial_name path attn_impl use_kernels init_from_scratch is_critic temperature mb_spec pad_to_maximum disable_dropout
    gradient_checkpointing dtype grad_reduce_dtype optimizer_dtype optimizer weight_update_mode fsdp archon megatron offload use_lora
    lora_* target_modules peft_type enable_tree_training scheduling_spec scheduling_strategy backend _version admin_api_key log_level
    request_timeout setup_timeout ppo_n_minibatches eps_clip* c_clip m2_threshold reward_* group_reward_norm overlong_*
    mask_no_eos_with_zero mask_too_long discount gae_lambda adv_norm kl_* use_sapo_loss sapo_* recompute_logprob use_decoupled_loss
    rejection_sampling importance_sampling_level prox_logp_method log_agent_* max_new_tokens behav_imp_* behave_imp_* beta loss_type
    dynamic_sampling group_size group_adv_norm
"""
MEGATRON = """
    wrap_with_ddp use_custom_fsdp use_torch_fsdp2 ddp virtual_pipeline_parallel_size overlap_param_gather_with_optimizer_step async_save
    use_checkpoint_opt_param_scheduler use_deterministic_algorithms recompute_granularity recompute_method recompute_num_layers
    recompute_modules distribute_saved_activations moe_router_dtype moe_shared_expert_overlap moe_enable_deepep
    moe_token_dispatcher_type moe_permute_fusion bridge_type
    use_mbridge_save use_bridge_for_update_weights
"""
"""Keys of the actor and of its section megatron that are read one by one, or have no effect: no bridge reads moe_*, and async_save
forks a process that has no CUDA context."""
STATES = "main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype"
"""What has no effect where the optimizer is not precision-aware."""


class Component(NamedTuple):
    """An engine with its label and degrees, and the number of those that share GPUs with it; `pair` are both layouts of a model of
    experts."""

    engine: str
    label: str
    degrees: Mapping[str, int]
    place: int

    @property
    def gpus(self) -> int:
        """GPUs that it runs on; experts take theirs from the same."""
        return prod(self.degrees.get(axis, 1) for axis in "dtpc")


def components(text: str, where: str) -> tuple[Component, ...]:
    """The engines that a text names. Raises ConfigError for one that is not read, UnsupportedError for a layout that cannot be."""
    found = []
    for place, part in enumerate(re.sub(r"\s", "", text).split("+")):
        for one in re.split(r"\|(?!ffn:)", part):
            if one in EVALUATES:
                continue
            match = TRAINS.fullmatch(one) or GENERATES.fullmatch(one)
            if match is None:
                raise ConfigError(
                    f"{where}={shown(text)} is not read: {shown(one)} is no engine with its degrees, such as megatron:d2p1t4 or "
                    "megatron:(attn:d2t4|ffn:e8); only releases before 1.0 had degrees without an engine and dots"
                )
            found.append(Component(match["engine"], match["label"] or "", _degrees(match, where), place))
    return tuple(found)


def _degrees(match: re.Match[str], where: str) -> dict[str, int]:
    """Degrees by their letters, etp for those of experts' tensors. Raises ConfigError where two layouts do not fit together."""
    groups = match.groupdict()
    if groups["all"]:
        return _counted(groups["all"])
    attention, experts = _counted(groups["attn"]), _counted(groups["ffn"])
    stages = attention.get("p", 1)
    own = {"p": stages, "t": 1, "e": 1, **experts}
    gpus, apart = prod(attention.values()), own["p"] * own["t"] * own["e"]
    if own["p"] != stages or gpus % apart or experts.get("d", gpus // apart) * apart != gpus:
        raise ConfigError(
            f"{where}={shown(match.string)}: attention has {gpus} GPUs in {stages} stages and experts "
            f"{apart * experts.get('d', 1)} in {own['p']}; both must be equal"
        )
    return {**attention, "e": own["e"], "etp": own["t"]}


def _counted(dims: str) -> dict[str, int]:
    return {axis: int(number) for axis, number in re.findall(r"([a-z])([0-9]+)", dims)}


class Placed(NamedTuple):
    """Who trains, who generates, and whether both share GPUs; the trainers of one text by their labels."""

    where: str
    trainer: Component
    generator: Component | None
    shared: bool
    all: tuple[Component, ...] = ()


def placed(tree: Tree) -> Placed:
    """Who trains and who generates. Raises UnsupportedError where nothing trains, or another engine than Megatron does."""
    own, generates = tree.at("actor.backend"), tree.at("rollout.backend")
    if isinstance(own, str):
        where = "actor.backend"
        found = _only(own, where)
        generator = _only(generates, "rollout.backend") if isinstance(generates, str) else None
        shared = tree.at("rollout.scheduling_strategy.type") == "colocation"
        return Placed(where, _of_megatron(found, where), generator, shared)
    where, text = "allocation_mode", tree.at("allocation_mode")
    parts = components(text, where) if isinstance(text, str) else ()
    if not text and not isinstance(generates, str):
        raise ConfigError("the file names no engine that trains; give actor.backend, such as megatron:d2p1t4")
    trainers = [one for one in parts if one.engine in TRAINERS]
    if not trainers:
        named = f"{where}={shown(text)}" if text else f"rollout.backend={shown(generates)}"
        raise UnsupportedError(f"{named} of AReaL trains nothing")
    trainer = next((one for one in trainers if one.label == "actor"), trainers[0])
    generator = next((one for one in parts if one.engine not in TRAINERS), None)
    together = generator is not None and generator.place == trainer.place
    return Placed(where, _of_megatron(trainer, where), generator, together, parts)


def _only(text: str, where: str) -> Component:
    """The engine of a text that names one. Raises ConfigError where it names several."""
    found = components(text, where)
    if len(found) != 1:
        raise ConfigError(f"{where}={shown(text)} must be one engine with its degrees, such as megatron:d2p1t4")
    return found[0]


def _of_megatron(found: Component, where: str) -> Component:
    if found.engine not in TRAINERS:
        raise UnsupportedError(f"{where}: {found.engine} of AReaL generates and trains nothing")
    if found.engine != TRAINERS[0]:
        raise UnsupportedError(
            f"{where}: this run of AReaL trains with {found.engine}; only megatron is modelled",
            "a run of AReaL does not train with Megatron",
        )
    return found


def knows(run: Run) -> bool:
    """A launcher of AReaL, a program named as its examples with --config, or a file that says which engine trains."""
    if run.document is not None:
        return _is_own(run.document)
    if LAUNCHER.fullmatch(run.program):
        return True
    path = parted(run.words)[0].get("config", "")
    if not path or PROGRAM.fullmatch(run.script):
        return bool(path)
    with suppress(ConfigError):
        return _is_own(document_of(run, path, "keys of AReaL") or {})
    return False


def _is_own(document: Mapping[str, Any]) -> bool:
    """Whether a file has the keys that say which engine trains, or which generates."""
    engines = (document.get("actor"), document.get("rollout"))
    return isinstance(document.get("allocation_mode"), str) or any(
        isinstance(one, Mapping) and isinstance(one.get("backend"), str) for one in engines
    )


def read(run: Run) -> Reading:
    """The settings of a run. Raises UnsupportedError for another engine than Megatron and for what trains nothing, ConfigError for a file
    that is missing or broken."""
    tree = tree_of(run)
    at = placed(tree)
    bridge = str(tree.at("actor.megatron.bridge_type", MBRIDGE))
    _refuse(tree, bridge)
    model = str(tree.at("actor.path") or "")
    notes = [_where(at)]
    warnings: list[str] = []
    questions: list[Question] = []
    optimizer, aware = _optimizer(tree)
    settings, unknown, refused = of_sections(tree, _sections(aware=aware))
    layout = _layout(tree, at.trainer)
    settings = {**layout, **settings, **_precision(tree), **optimizer, **_recompute(tree, bridge)}
    settings |= _batch(tree, notes, warnings, questions)
    lora = tree.on("actor.use_lora")
    if lora:
        settings |= _lora(tree)
    settings |= _around(tree, at, warnings, refused)
    degrees = {name: settings.get(name, value) for name, value in layout.items()}
    if bridge == MBRIDGE:
        settings |= _stages(run.model or model, degrees, warnings)
        if family_of(run.model or model) in WITH_MTP:
            warnings.append("mbridge builds the MTP layers of this model; they are not counted")
    return Reading(
        model=model,
        settings=settings,
        bridged=bridge == MEGATRON_BRIDGE,
        defaults=_defaults(run.model or model, bridge),
        num_gpus=at.trainer.gpus,
        env=decisive(*_environments(tree), run.env),
        assumptions=tuple(notes),
        warnings=(*warnings, *passed_over([*tree.misspelled(), *unknown], "AReaL")),
        questions=tuple(questions),
        refused=tuple(refused),
    )


def tree_of(run: Run) -> Tree:
    """The keys of a run: those of the file behind --config, under the words. Raises ConfigError where it is missing."""
    env = {**run.env, **run.variables}
    if run.document is not None:
        return Tree(run.document, env)
    options, words = parted(run.words)
    path = options.get("config", "")
    if not path:
        raise ConfigError(f"{run.program} of AReaL needs --config FILE, which {run.path} does not give")
    missing = f"{shown(path)[1:-1]}, which {run.program} reads, is not beside {run.path}; put it there"
    return Tree(overridden(needed(run, path, "keys of AReaL", missing), words), env)


def _where(at: Placed) -> str:
    """Which GPUs are counted."""
    apart = "" if at.generator is None or at.shared else f"; {at.generator.gpus} others generate"
    return f"{at.trainer.gpus} GPUs train ({at.where}){apart}"


def _refuse(tree: Tree, bridge: str) -> None:
    """Raises UnsupportedError for training that is not modelled, or that AReaL does not have."""
    if bridge not in (MBRIDGE, MEGATRON_BRIDGE):
        raise UnsupportedError(
            f"actor.megatron.bridge_type={shown(bridge)} is not modelled; {MBRIDGE} and {MEGATRON_BRIDGE} are"
        )
    if tree.at("actor.optimizer") is None:
        raise UnsupportedError("actor.optimizer of AReaL is null: the run trains nothing")
    if tree.on("actor.use_lora") and bridge == MBRIDGE:
        raise UnsupportedError(f"actor.use_lora of AReaL needs actor.megatron.bridge_type={MEGATRON_BRIDGE}")
    kinds = {"is_critic": "a reward model", "enable_tree_training": "trees of samples"}
    for key, what in kinds.items():
        if tree.on(f"actor.{key}"):
            raise UnsupportedError(f"actor.{key}=true of AReaL trains {what}, which is not modelled")
    if tree.has("actor.loss_type") or tree.has("actor.beta"):
        raise UnsupportedError("actor.beta and actor.loss_type of AReaL are of DPO, which is not modelled")
    for key, usual in (("wrap_with_ddp", True), ("use_custom_fsdp", False), ("use_torch_fsdp2", False)):
        if tree.on(f"actor.megatron.{key}", usual) != usual:
            raise UnsupportedError(f"actor.megatron.{key}={str(not usual).lower()} of AReaL is not modelled")


def _sections(*, aware: bool) -> tuple[Section, ...]:
    """The sections whose keys are Megatron's."""
    states = "" if aware else STATES
    return Section("actor", ACTOR), Section("actor.megatron", f"{MEGATRON} {states}"), of_ddp("actor.megatron.ddp")


def _layout(tree: Tree, trainer: Component) -> dict[str, Any]:
    """Degrees of parallelism; those that stand beside the engine's text are the caller's and win."""
    names = {
        "tensor_model_parallel_size": "t",
        "pipeline_model_parallel_size": "p",
        "context_parallel_size": "c",
        "expert_model_parallel_size": "e",
        "expert_tensor_parallel_size": "etp",
    }
    found: dict[str, Any] = {
        name: tree.count(f"actor.{name}", trainer.degrees.get(axis, 1)) for name, axis in names.items()
    }
    chunks = tree.count("actor.megatron.virtual_pipeline_parallel_size", 1) or 1
    found["virtual_pipeline_model_parallel_size"] = chunks if chunks > 1 else None
    return found | {"sequence_parallel": found["tensor_model_parallel_size"] > 1}


def _precision(tree: Tree) -> dict[str, Any]:
    word = short_dtype(tree.at("actor.dtype") or "bf16")
    if word not in ("bf16", "fp16", "fp32"):
        raise ConfigError(f"actor.dtype={shown(word)} is not one of bfloat16, float16, float32")
    return {"params_dtype": word}


def _optimizer(tree: Tree) -> tuple[dict[str, Any], bool]:
    """The optimizer, and whether it is precision-aware; adam_bf16 keeps both moments in bf16."""
    kind = str(tree.at("actor.optimizer.type", "adam"))
    if kind not in ("adam", "adam_bf16", "sgd"):
        raise UnsupportedError(f"actor.optimizer.type={shown(kind)} is not modelled; adam, adam_bf16 and sgd are")
    if kind == "adam_bf16":
        both = {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
        return {"optimizer": "adam", "use_precision_aware_optimizer": True, "params_dtype": "bf16", **both}, True
    return {"optimizer": kind}, tree.on("actor.megatron.use_precision_aware_optimizer")


def _recompute(tree: Tree, bridge: str) -> dict[str, Any]:
    """Recomputation, which gradient_checkpointing decides with mbridge alone; full and uniform with one layer where nothing is said."""
    at = "actor.megatron.recompute"
    granularity = tree.at(f"{at}_granularity", None if tree.has(f"{at}_granularity") else "full")
    if granularity is None or (bridge == MBRIDGE and not tree.on("actor.gradient_checkpointing")):
        return {"recompute_granularity": None}
    if granularity == "full":
        return {
            "recompute_granularity": granularity,
            "recompute_method": tree.at(f"{at}_method", "uniform"),
            "recompute_num_layers": tree.count(f"{at}_num_layers", 1),
        }
    modules = tree.at(f"{at}_modules")
    return {"recompute_granularity": granularity, **({"recompute_modules": modules} if modules else {})}


def _batch(tree: Tree, notes: list[str], warnings: list[str], questions: list[Question]) -> dict[str, Any]:
    """Tokens of a microbatch of all context-parallel ranks, and samples of a step. The loss is computed from the logits by chunks."""
    found: dict[str, Any] = {"micro_batch_size": 1, "loss_function": "slime", "loss_chunk_size": CHUNK}
    samples = tree.count("train_dataset.batch_size", 1) or 1
    if _is_rl(tree):
        steps = tree.count("actor.ppo_n_minibatches", 4) or 4
        samples = max(samples * (tree.count("gconfig.n_samples", 1) or 1) // steps, 1)
    found["global_batch_size"] = samples
    key = "actor.mb_spec.max_tokens_per_mb"
    tokens = tree.count(key)
    if tokens is None:
        questions.append(Question(f"{key}, which bounds the tokens of a microbatch, is not given", "--seq-length N"))
        return found
    notes.append(f"at most {tokens} tokens in a microbatch: {key}")
    longest = (tree.count("train_dataset.max_length") or 0) + (tree.count("gconfig.max_new_tokens") or 0) * _is_rl(tree)
    if longest > tokens:
        warnings.append(f"a sample may have {longest} tokens, above {key}={tokens}, where AReaL stops: raise {key}")
    packing = "areal_kk" if tree.at("actor.mb_spec.packing_algorithm") == "kk" else "areal"
    return found | {"seq_length": tokens, "packing": packing, "packing_tokens": tokens}


def _is_rl(tree: Tree) -> bool:
    """Whether the run generates its samples."""
    return bool(tree.section("gconfig") or tree.section("rollout"))


def _lora(tree: Tree) -> dict[str, Any]:
    """LoRA of Megatron-Bridge, with which AReaL turns the distributed optimizer and the fusion of gradients off."""
    names = tree.at("actor.target_modules") or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"actor.target_modules={shown(str(names))} must be names of linears")
    chosen = TARGETS if not names or "all-linear" in names else tuple(names)
    off = {"use_distributed_optimizer": False, "gradient_accumulation_fusion": False}
    off |= {"overlap_grad_reduce": False, "overlap_param_gather": False}
    return {"peft": "lora", "peft_dim": tree.count("actor.lora_rank", 32), "peft_target_modules": chosen, **off}


def _around(tree: Tree, at: Placed, warnings: list[str], refused: list[str]) -> dict[str, Any]:
    """The engine that generates, the reference and the critic, where they share the trainer's GPUs."""
    if not _is_rl(tree):
        return {}
    away = at.shared or tree.on("actor.offload")
    found: dict[str, Any] = {"rollout_offload": moved(away, away, away)}
    if at.generator is not None:
        name = at.generator.engine
        share = "sglang.mem_fraction_static" if name == "sglang" else "vllm.gpu_memory_utilization"
        generates, said = engine(
            name, at.where, colocated=at.shared, sleeps=True, keys=tree.section(name),
            rollout_tensor_parallel_size=at.generator.degrees.get("t", 1), rollout_memory_share=tree.number(share, SHARE),
        )  # fmt: skip
        found |= generates
        warnings += said
    if tree.number("actor.kl_ctl", 0.1) > 0 and _beside(tree, at, "ref"):
        found["reference_model"] = "offloaded" if tree.on("ref.offload") else "device"
        warnings.append("the reference shares the trainer's GPUs; the context of its own process is not counted")
    if _beside(tree, at, "critic"):
        models = (str(tree.at(f"{who}.path") or "") for who in ("critic", "actor"))
        refused += other_critic(models, _critic_degrees(tree, at))
        found["critic_model"] = "in_turn" if tree.on("critic.offload") else "device"
        warnings.append("a critic trains on the same GPUs; it is counted as large as the policy")
    if tree.section("teacher") and tree.at("teacher.engine_type", "rollout") == "train":
        refused.append("teacher.engine_type=train keeps a teacher beside the policy, which is not modelled")
    return found


def _critic_degrees(tree: Tree, at: Placed) -> Iterator[dict[str, int]]:
    """The degrees of the critic's engine, where it has one of its own, and of the policy's."""
    text = tree.at("critic.backend")
    own = _only(text, "critic.backend") if isinstance(text, str) else None
    own = own or next((one for one in at.all if one.label == "critic"), at.trainer)
    for one in (own, at.trainer):
        yield {
            name: one.degrees.get(axis, 1) for name, axis in zip(DEGREES_OF_STATE, ("t", "p", "e", "etp"), strict=True)
        }


def _beside(tree: Tree, at: Placed, role: str) -> bool:
    """Whether the engine of a role is there and has a GPU of the trainer's; one that the text of all engines does not name has."""
    if not tree.section(role):
        return False
    if at.all:
        own = next((one for one in at.all if one.label == role), None)
        return own is None or own.place == at.trainer.place
    return bool(tree.at(f"{role}.scheduling_strategy.type") == "colocation")


def _defaults(model: str, bridge: str) -> dict[str, Any]:
    """What the bridge makes of a model, and what AReaL sets itself."""
    family = family_of(model)
    return {**without_loss("bridge", family), **own("areal")} if bridge == MEGATRON_BRIDGE else decided("areal", family)


def _environments(tree: Tree) -> list[Mapping[str, Any]]:
    """Variables of the trainer's processes."""
    specs = tree.at("actor.scheduling_spec")
    found = [one.get("env_vars") for one in specs if isinstance(one, Mapping)] if isinstance(specs, list) else []
    return [one for one in found if isinstance(one, Mapping)]


# -- stages of a pipeline -------------------------------------------------------------------------------------------------
def _stages(model: str, degrees: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """The layers of every stage, as a layout, where there are several."""
    stages = degrees["pipeline_model_parallel_size"]
    if not isinstance(stages, int) or stages < 2:
        return {}
    entry = catalogued(model) if model else None
    if entry is None:
        warnings.append(
            "AReaL cuts stages by the parameters of layers, which are not known here: equal stages are taken"
        )
        return {}
    chunks = stages * (degrees["virtual_pipeline_model_parallel_size"] or 1)
    layers, ends = weights(entry, degrees["expert_model_parallel_size"])
    lengths = cut(layers, ends, chunks)
    if not lengths:
        return {}
    parts = [f"t*{length}" if length else "" for length in lengths]
    layout = "|".join([f"E{parts[0]}", *parts[1:-1], f"{parts[-1]}L"])
    return {"pipeline_model_parallel_layout": layout, "virtual_pipeline_model_parallel_size": None}


def weights(entry: str, expert_parallel: int) -> tuple[list[int], int]:
    """Parameters that AReaL counts of every layer, a rank's share of experts, and of the embedding, as many as of the output layer."""
    hf, ours = entries()[entry]["config"], load(entry).config
    hidden, heads = hf["hidden_size"], hf["num_attention_heads"]
    groups = hf.get("num_key_value_heads") or heads
    width = hf.get("head_dim") or ours.get("kv_channels") or hidden // heads
    attention = hidden * width * (heads + 2 * groups) + hidden * hidden + 2 * hidden
    if hf.get("attention_bias"):
        attention += width * (heads + 2 * groups) + hidden
    dense = attention + 3 * hidden * hf["intermediate_size"]
    count, experts = ours["num_layers"], ours.get("num_moe_experts")
    embedding = hf["vocab_size"] * hidden
    if not experts:
        return [dense] * count, embedding
    local = ceil(experts / max(expert_parallel, 1))
    shared = ours.get("moe_shared_expert_intermediate_size") or 0
    sparse = attention + hidden * experts + 3 * hidden * (ours["moe_ffn_hidden_size"] * local + shared)
    return [sparse if is_sparse else dense for is_sparse in _sparse(ours.get("moe_layer_freq", 1), count)], embedding


def _sparse(frequency: Any, count: int) -> list[bool]:
    """Which layers have experts."""
    if isinstance(frequency, int):
        return [at % frequency == frequency - 1 for at in range(count)]
    return [bool(one) for one in frequency]


def cut(layers: Sequence[int], ends: int, stages: int) -> list[int]:
    """Layers of each stage, so that the fullest has the fewest parameters; `ends` are those of the embedding and of the output layer.

    Stages between the first and the last have a layer. Of cuts that are as good the first stages have the fewest layers. None where there
    are too few layers.
    """
    if stages > len(layers) + 2:
        return []
    total = [0, *accumulate(layers)]
    least = [[inf] * len(total) for _ in range(stages + 1)]
    begins = [[-1] * len(total) for _ in range(stages + 1)]
    least[0][0] = 0
    for stage in range(1, stages + 1):
        at_end = stage in (1, stages)
        for end in range(len(total)):
            for begin in range(end + 1 if at_end else end):
                fullest = max(least[stage - 1][begin], total[end] - total[begin] + (ends if at_end else 0))
                if fullest < least[stage][end]:
                    least[stage][end], begins[stage][end] = fullest, begin
    lengths: list[int] = []
    end = len(layers)
    for stage in range(stages, 0, -1):
        begin = begins[stage][end]
        if begin < 0:
            return []
        lengths.append(end - begin)
        end = begin
    return lengths[::-1]


DIALECT = Dialect(
    "AReaL",
    "dialects/areal.md",
    knows,
    read,
    lambda run: "actor",
    words=f"{TOLD_APART} {MBRIDGE} {MEGATRON_BRIDGE} adam adam_bf16 sgd colocation kk",
)
