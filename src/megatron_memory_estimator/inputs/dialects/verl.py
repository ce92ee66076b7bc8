"""verl: `python -m verl.trainer.main_ppo key=value ...` with Megatron's engine, its SFT trainer, or a YAML with the same tree.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/engine/megatron.yaml`, `actor/*.yaml`, `optim/megatron.yaml`, `ref/*.yaml`,
`rollout/rollout.yaml`, `model/hf_model.yaml`, `sft_trainer_engine.yaml`, `verl/trainer/ppo/utils.py`,
`verl/workers/engine/megatron/transformer_impl.py`, `verl/utils/megatron_utils.py`, `verl/utils/megatron/optimizer.py`.

Keys of verl in Megatron's names, section by section, and those that have no effect on memory.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/engine/megatron.yaml`, `actor/*.yaml`, `optim/megatron.yaml`, `model/hf_model.yaml`,
`verl/workers/engine/megatron/transformer_impl.py`.

What is beside the training steps of verl: the engine that generates, reference and critic, and what leaves the GPU meanwhile.

Sources: volcengine/verl 0.9.1 `verl/trainer/ppo/utils.py`, `verl/trainer/ppo/ray_trainer.py`,
`verl/workers/engine/megatron/transformer_impl.py`, `verl/utils/megatron_utils.py`, `verl/trainer/config/rollout/rollout.yaml`,
`ref/megatron_ref.yaml`, `critic/critic.yaml`.

Tokens of a microbatch, samples of a step and GPUs of a run of verl.

Sources: volcengine/verl 0.9.1 `verl/workers/engine/utils.py` (prepare_micro_batches), `verl/utils/seqlen_balancing.py`,
`verl/trainer/config/ppo_trainer.yaml`, `sft_trainer_engine.yaml`.

The tree of a run of verl: hydra's words over the file that they name, and the engine that trains.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/ppo_trainer.yaml`, `ppo_megatron_trainer.yaml`, `model_engine/*.yaml`,
`sft_trainer_engine.yaml`, `verl/trainer/main_ppo.py`, `verl/trainer/sft_trainer.py`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError, UnsupportedError
from ...wording import counted, shown
from ..door_defaults import own, without_loss
from ..field_names import fields_of
from ..model_names import family_of
from ..questions import GPUS_OPTION, Question
from ..spellings import short_dtype
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .keys import Section, balancing, by_habit, decisive, model_ranks, of_ddp, of_sections, of_transformer, passed_over
from .rollout import GAE, TOLD_APART, degrees_at, engine, moved, other_critic
from .run import Dialect, Reading, Run

OWN = re.compile(
    r"(ppo|sft|dapo|fully_async|one_step_off|spin|sppo|prime|entropy|gspo|grpo)\w*_trainer(_engine)?|evaluation"
)
"""Names of configs in verl and its recipes, whose defaults are verl's."""
NOT_TRAINING = re.compile(r"main_(eval|generation)|generation_server|model_merger|preprocess")
FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
GROUPS = re.compile(
    "actor|algorithm|critic|data|engine|hydra|legacy_data|model|model_engine|npu_profile|optim|profiler|ref|reward|reward_model|"
    "rollout|trainer"
)
"""Groups of verl's `trainer/config`, whose defaults are verl's."""
DEEPEST = 8
"""Files that build on one another."""


def tree_of(run: Run) -> tuple[Tree, list[str], list[Question]]:
    """The settings of a run, what was assumed about files that are not there, and which files are missing.

    A key without a dot (`engine=megatron`) chooses a file of a group.
    """
    notes: list[str] = []
    questions: list[Question] = []
    env = {**run.env, **run.variables}
    if run.document is not None:
        return Tree(_with_bases(run, run.document, "", questions), env), notes, questions
    options, words = parted(run.words)
    base: Mapping[str, Any] = {}
    name = options.get("config-name", "").removesuffix(".yaml")
    if name:
        folder = options.get("config-path", "") or options.get("config-dir", "")
        base = _file(run, folder, name, questions)
    groups = [(key, text) for key, text in words if "." not in key or "@" in key]
    root = overridden(base, [pair for pair in words if pair not in groups])
    chosen = {key.lstrip("+"): text for key, text in groups}
    root["defaults"] = [*_listed(root.get("defaults")), *({key: text} for key, text in chosen.items()), name]
    return Tree(root, env), notes, questions


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found] if isinstance(found, str) else []


def _file(run: Run, folder: str, name: str, questions: list[Question], depth: int = 0) -> dict[str, Any]:
    """A config by its name, with those it builds on; verl's own configs are not looked for."""
    for path in dict.fromkeys((posixpath.join(folder, f"{name}.yaml"), f"{name}.yaml")):
        document = document_of(run, path, "keys of verl", follows=FOLLOWS)
        if document is not None:
            return _with_bases(run, document, posixpath.dirname(path), questions, depth)
    if not OWN.fullmatch(name.rsplit("/", 1)[-1]):
        questions.append(Question(f"{name}.yaml, on which the run builds, is not beside {run.path}; put it there"))
    return {}


def _with_bases(
    run: Run, document: Mapping[str, Any], folder: str, questions: list[Question], depth: int = 0
) -> dict[str, Any]:
    """A file over the files that its `defaults` name; groups of verl's own (`actor@...: megatron_actor`) are left out."""
    if depth > DEEPEST:
        raise ConfigError(f"{run.path} builds on more than {DEEPEST} files, or on itself")
    out: dict[str, Any] = {}
    listed: list[Any] = []
    for one in _listed(document.get("defaults")):
        listed.append(one)
        if isinstance(one, str) and one != "_self_":
            below = _file(run, folder, one.removesuffix(".yaml"), questions, depth + 1)
            listed += _listed(below.pop("defaults", None))
            out = merged(out, below)
        elif isinstance(one, Mapping):
            _refuse_group(run, one)
    out = merged(out, {str(key): each for key, each in document.items() if key != "defaults"})
    return {**out, "defaults": listed}


def _refuse_group(run: Run, entry: Mapping[Any, Any]) -> None:
    """Raises ConfigError for a file of a group (`group: name`) that is none of verl's own, of which no key is read."""
    for key, name in entry.items():
        group = str(key).removeprefix("override ").partition("@")[0].strip("/").partition("/")[0]
        if name is not None and not GROUPS.fullmatch(group):
            raise ConfigError(
                f"{run.path}: defaults names {group}/{shown(str(name))[1:-1]}.yaml, a group that verl does not have and that is not read; "
                "put its keys into the file"
            )


def is_sft(run: Run, tree: Tree) -> bool:
    """Whether the run is of the SFT trainer. Raises UnsupportedError for a program that trains nothing, or with FSDP alone."""
    if NOT_TRAINING.search(run.program):
        raise UnsupportedError(f"{run.program} of verl trains nothing")
    if "fsdp_sft" in run.program:
        raise UnsupportedError(f"{run.program} of verl trains with fsdp; only Megatron is modelled")
    return "sft_trainer" in run.program or (not tree.has("actor_rollout_ref") and tree.has("engine"))


def engine_of(run: Run, tree: Tree, *, sft: bool) -> None:
    """Nothing for Megatron's engine. Raises UnsupportedError that names another."""
    key = "engine" if sft else "actor_rollout_ref.actor.strategy"
    named = [] if sft else [tree.at(key)]
    for one in reversed(_listed(tree.at("defaults"))):
        if isinstance(one, Mapping):
            words = {str(name).removeprefix("override ").strip(): each for name, each in one.items()}
            named.append(words.get("engine") if sft else words.get("model_engine"))
            named.append(words.get("engine@engine") if sft else words.get("actor@actor_rollout_ref.actor"))
        elif isinstance(one, str) and "megatron" in one:
            named.append("megatron")
    named.append(tree.at("engine.strategy") if sft else None)
    if run.document is not None or sft:
        section = "engine.override_transformer_config" if sft else "actor_rollout_ref.actor.megatron"
        named.append("megatron" if tree.section(section) else None)
    engine = next((str(one) for one in named if one), "fsdp")
    if not engine.startswith("megatron"):
        raise UnsupportedError(
            f"{key}={shown(engine)}: this run of verl does not train with Megatron; only megatron is modelled",
            "a run of verl does not train with Megatron",
        )


PROGRAM = "verl."
KEY = "actor_rollout_ref."


def knows(run: Run) -> bool:
    """A module of verl, words with its keys, or a file with them."""
    if run.document is not None:
        engine, model = run.document.get("engine"), run.document.get("model")
        sft = isinstance(engine, Mapping) and isinstance(model, Mapping) and "path" in model
        return sft or isinstance(run.document.get("actor_rollout_ref"), Mapping)
    return run.program.startswith(PROGRAM) or any(word.lstrip("+~").startswith(KEY) for word in run.words)


def read(run: Run) -> Reading:
    """The settings of a run.

    Raises UnsupportedError for another engine than Megatron and for what trains nothing, ConfigError for a value of the wrong kind.
    """
    tree, notes, questions = tree_of(run)
    sft = is_sft(run, tree)
    if not questions:
        engine_of(run, tree, sft=sft)
    at = SFT if sft else PPO
    settings, unknown, refused = sections_of(tree, at)
    settings |= _precision(tree, at, settings) | _loss(tree, at) | _workers(tree)
    settings["sequence_parallel"] = tree.on(f"{at.engine}.sequence_parallel", True)
    gpus = gpus_of(tree, run, notes, questions, sft=sft)
    warnings: list[str] = []
    settings |= batch_of(tree, at.engine, run.wanted_gpus or gpus, (notes, warnings, questions), sft=sft)
    tuned, more = _tuned(tree, at)
    refused += more + not_modelled(tree, at)
    # `workers/engine/`: FSDP's and VeOmni's read it
    if "peft" not in tuned and tree.number(f"{at.model}.lora_rank") > 0:
        warnings.append(
            f"{at.model}.lora_rank is no word of the Megatron engine, which trains all: {at.model}.lora.rank gives adapters"
        )
    if not sft:
        around, said, wrong = phases(tree, run, tokens=tokens_of(settings), lora=bool(tuned))
        settings |= around
        warnings += said
        refused += wrong
    if settings.get("rollout_engine") and settings.get("rollout_colocated"):
        # `workers/engine_workers.py` turns them off around each exchange of weights, and on behind it
        settings.setdefault("expandable_segments", own("verl", by_name=True)["expandable_segments"])
        notes.append("expandable segments: verl turns them on from the first exchange of weights on")
    model = str(tree.at(f"{at.model}.path") or "")
    chosen, experts = by_habit(settings)
    family = family_of(run.model or model)
    # verl's own converter (`models/mcore/config_converter.py`)
    converts = tree.at(f"{at.engine}.use_mbridge", True) is False
    converted = {"moe_router_dtype": "fp64"} if converts and family == "deepseek_v3" else {}
    return Reading(
        model=model,
        settings={**chosen, **tuned},
        bridged=not tree.on(f"{at.engine}.vanilla_mbridge"),
        defaults={**_defaults(tree, at, family), **converted, **experts},
        num_gpus=gpus,
        env=decisive(tree.section("ray_kwargs.ray_init.runtime_env.env_vars"), run.env),
        assumptions=tuple(notes),
        warnings=(*warnings, *passed_over([*tree.misspelled(fields_of("verl")), *unknown], "verl")),
        questions=tuple(questions),
        refused=tuple(refused),
    )


def _workers(tree: Tree) -> dict[str, Any]:
    """Processes of the data loader, as the SFT trainer or the others say it."""
    given = tree.at("data.num_workers", tree.at("data.dataloader_num_workers"))
    return {} if given is None else {"num_workers": given}


def _defaults(tree: Tree, at: Places, family: str) -> dict[str, Any]:
    """Defaults of the framework over those of what builds the model, which `vanilla_mbridge` chooses; with MTP enabled the model's config
    says how many layers there are."""
    mtp = tree.on(f"{at.model}.mtp.enable")
    found = without_loss("verl-0.8" if tree.on(f"{at.engine}.vanilla_mbridge") else "verl", family)
    return {name: value for name, value in found.items() if not (mtp and name == "mtp_num_layers")}


def _precision(tree: Tree, at: Places, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Weights, and gradients, which follow the precision-aware optimizer where the DDP config does not say."""
    half = short_dtype(tree.at(f"{at.engine}.dtype")) in ("fp16", "half")
    found: dict[str, Any] = {"params_dtype": "fp16" if half else "bf16"}
    if half:
        found |= {"use_precision_aware_optimizer": True, "store_param_remainders": False}
    grads = short_dtype(settings.get("main_grads_dtype"))
    if "accumulate_allreduce_grads_in_fp32" not in settings and grads == "bf16":
        found["accumulate_allreduce_grads_in_fp32"] = False
    return found


def _loss(tree: Tree, at: Places) -> dict[str, Any]:
    """What the loss makes of the logits. Fused kernels fall off without packed rows and with MTP layers."""
    actor = at.actor or at.engine
    mtp = tree.on(f"{at.model}.mtp.enable")
    packed = tree.on(f"{at.engine}.use_remove_padding", True)
    fused = any(tree.on(f"{where}.use_fused_kernels") for where in (at.model, actor)) and packed and not mtp
    entropy = tree.number(f"{actor}.entropy_coeff") != 0 or tree.on(f"{actor}.calculate_entropy")
    found: dict[str, Any] = {
        "loss_function": "fused" if fused else "verl",
        "loss_entropy": entropy,
        "loss_temperature": tree.number("actor_rollout_ref.rollout.temperature", 1.0) != 1,
    }
    if entropy and any(tree.on(f"{where}.entropy_from_logits_with_chunking") for where in (actor, at.engine)):
        chunks = [tree.count(f"{where}.entropy_from_logits_chunk_size") for where in (actor, at.engine)]
        found["loss_chunk_size"] = next((each for each in chunks if each), 2048)
    return found


def _tuned(tree: Tree, at: Places) -> tuple[dict[str, Any], list[str]]:
    """LoRA of Megatron-Bridge, and routers that are not trained."""
    found: dict[str, Any] = {}
    for path in (f"{at.engine}.override_mcore_model_config", f"{at.model}.override_config"):
        if tree.on(f"{path}.moe_config.freeze_moe_router"):
            found["freeze_moe_router"] = True
    lora = f"{at.model}.lora"
    if not tree.number(f"{lora}.rank") > 0:
        return found, []
    kind, targets = str(tree.at(f"{lora}.type", "lora")), tree.at(f"{lora}.target_modules")
    names = targets if isinstance(targets, list) else [targets] if targets else []
    wrong = [str(one) for one in names if not isinstance(one, str) or "*" in one or "." in one or one == "all-linear"]
    refused = [
        f"{lora}.target_modules has {shown(one)}; names of linears such as linear_qkv are modelled" for one in wrong
    ]
    if kind not in ("lora", "canonical_lora", "dora"):
        refused.append(f"{lora}.type={shown(kind)} is not modelled; lora, canonical_lora and dora are")
    if tree.at(f"{lora}.exclude_modules"):
        refused.append(f"{lora}.exclude_modules decides memory and is not modelled")
    found |= {"peft": kind, "peft_dim": tree.count(f"{lora}.rank"), "peft_target_modules": tuple(map(str, names))}
    return found, refused


def _degrees(run: Run) -> str:
    """The section of the engine."""
    return (SFT if is_sft(run, tree_of(run)[0]) else PPO).engine


DIALECT = Dialect("verl", "dialects/verl.md", knows, read, _degrees, follows=FOLLOWS, words=f"{TOLD_APART} half")


ENGINE = """
    _target_ param_offload grad_offload optimizer_offload use_dist_checkpointing dist_checkpointing_* dist_ckpt_*
    distrib_optim_* entropy_from_logits_* override_* use_mbridge vanilla_mbridge use_remove_padding pad_* forward_only
    dtype router_replay qat load_weight use_fused_kernels strategy sequence_parallel dynamic_context_parallel
    use_cpu_optimizer default_fsdp_args extra profiler engine_kwargs
"""
"""Keys of the engine that are read one by one, or have no effect."""
FIELDS = """
    mtp_* mtp_num_layers moe_router_load_balancing_type bias_dropout_fusion use_fused_* sequence_parallel
"""
"""Fields of TransformerConfig that are read one by one, or have no effect."""
OPTIMIZER = """
    _target_ betas total_training_steps override_* use_layer_wise_distributed_optimizer num_cycles warmup_style
    decoupled_weight_decay
"""
STATES = " params_dtype main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype"
"""What the optimizer's section has no effect with where the optimizer is not precision-aware."""
ACTOR_KEYS = """
    _target_ strategy megatron optim ppo_* clip_* tau_* loss_* kl_* use_kl_loss entropy_* calculate_*
    use_torch_compile checkpoint profiler data_loader_seed shuffle rollout_n use_dynamic_bsz use_fused_kernels
    fsdp_config ulysses_* grad_clip policy_loss freeze_vision_tower use_remove_padding load_weight qat router_replay
    nccl_timeout use_rollout_log_probs use_prefix_grouper tis_imp_ratio_cap checkpoint_engine self_distillation
    global_batch_info sum_pi_* optimizer_offload param_offload behav_* recompute_old_log_prob grad_offload veomni
    torchtitan use_unpadding
"""
"""Keys of the actor beside those that are read: most are of the loss, of other engines, or of files."""
MODEL = """
    _target_ path hf_config_path tokenizer_path tokenizer use_shm custom_chat_template external_lib override_config
    enable_gradient_checkpointing gradient_checkpointing_kwargs enable_activation_offload use_remove_padding lora_rank
    lora_alpha target_modules exclude_modules lora_adapter_path use_liger use_fused_kernels fused_kernel_options
    tiled_mlp mtp lora fsdp_config share_embeddings_and_output_weights load_tokenizer base_model* ckpt_path hf_config generation_config
    architectures local_* lora_dropout target_parameters
"""


class Places(NamedTuple):
    """Where the keys of a program stand."""

    actor: str
    engine: str
    optimizer: str
    model: str


PPO = Places(
    "actor_rollout_ref.actor",
    "actor_rollout_ref.actor.megatron",
    "actor_rollout_ref.actor.optim",
    "actor_rollout_ref.model",
)
SFT = Places("", "engine", "optim", "model")


def sections_of(tree: Tree, at: Places) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of the sections whose keys are Megatron's, or the framework's own names for them."""
    fields = f"{at.engine}.override_transformer_config"
    aware = tree.section(at.optimizer).get("use_precision_aware_optimizer")
    sections = [
        of_ddp(f"{at.engine}.override_ddp_config"),
        Section(at.engine, ENGINE),
        of_transformer(fields, FIELDS),
        Section(at.optimizer, OPTIMIZER + ("" if aware else STATES)),
        Section(f"{at.optimizer}.override_optimizer_config", OPTIMIZER),
        Section(at.model, MODEL),
        *([Section(at.actor, ACTOR_KEYS)] if at.actor else []),
    ]
    settings, unknown, refused = of_sections(tree, sections)
    if settings.get("optimizer") == "muon":
        settings["use_distributed_optimizer"] = tree.on(f"{at.optimizer}.use_layer_wise_distributed_optimizer")
    return settings | balancing(tree, fields) | _older_recompute(tree, at), unknown, refused


def _older_recompute(tree: Tree, at: Places) -> dict[str, Any]:
    """Recomputation as it was given until the middle of 2025, beside the model."""
    older = tree.section(f"{at.model}.gradient_checkpointing_kwargs")
    if not tree.on(f"{at.model}.enable_gradient_checkpointing", True):
        return {}
    found = {
        f"recompute_{name}": older.get(f"activations_checkpoint_{name}")
        for name in ("granularity", "method", "num_layers")
    }
    return {name: value for name, value in found.items() if value is not None}


HARMLESS_OVERRIDES = ("moe_config", "model_config", "attn_implementation", "max_position_embeddings", "rope_scaling", "rope_theta",
                      "attention_dropout", "torch_dtype", "use_cache", "sliding_window", "router_aux_loss_coef")  # fmt: skip


def not_modelled(tree: Tree, at: Places) -> list[str]:
    """Switches that change memory in ways that are not modelled."""
    switches = [f"{at.engine}.qat.enable", "distillation.enabled"]
    switches += [f"{at.actor}.qat.enable"] if at.actor else []
    refused = [f"{path}=true decides memory and is not modelled" for path in switches if tree.on(path)]
    for path in (f"{at.model}.override_config", f"{at.model}.override_config.model_config"):
        for key, given in tree.section(path).items():
            if key not in HARMLESS_OVERRIDES and not key.endswith("token_id"):
                refused.append(f"{path}.{key}={shown(given)} changes the model; give its config with --model")
    return refused


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
    kwargs = tree.section(f"{ROLLOUT}.engine_kwargs").values()
    generates, said = engine(
        str(tree.at(f"{ROLLOUT}.name") or "vllm"),
        f"{ROLLOUT}.name",
        colocated=not apart,
        keys=(key for one in kwargs if isinstance(one, dict) for key in one),
        sleeps=tree.on(f"{ROLLOUT}.free_cache_engine", True),
        weight_sync_bytes=int(bucket * 2**20),
        rollout_tensor_parallel_size=tree.count(f"{ROLLOUT}.tensor_model_parallel_size", 2),
        rollout_memory_share=tree.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5),
    )
    return found | generates, said


def _forward_tokens(tree: Tree, where: str) -> int | None:
    """Tokens of a microbatch of a forward for log-probabilities, before context parallelism; None for those of training."""
    cp = tree.count(f"{ACTOR}.megatron.context_parallel_size", 1) or 1
    if tree.on(f"{ACTOR}.megatron.dynamic_context_parallel"):
        return None
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
    names = (str(tree.at(path) or "") for path in ("critic.model.path", "actor_rollout_ref.model.path"))
    refused = other_critic(names, (degrees_at(tree, f"{who}.megatron") for who in ("critic", ACTOR)))
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
            questions.append(Question(f"{path} is empty", GPUS_OPTION))
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
    if tree.on(f"{engine}.dynamic_context_parallel"):
        return found | _by_length(tree, engine, batch, questions)
    if batch.dynamic:
        tokens = batch.limit * cp
        ranks = f" on each of {cp} context-parallel ranks" if cp > 1 else ""
        notes.append(
            f"at most {tokens} tokens in a microbatch: {batch.limit_key}={batch.limit}{ranks}; up to 0.9.0 verl does not keep this limit, "
            "and a microbatch can have nearly twice as many: --sample-lengths says what yours make"
        )
        if batch.longest > tokens:
            warnings.append(
                f"a sample may have {batch.longest} tokens ({batch.whose}), above the limit of {tokens}, where verl stops: raise "
                f"{batch.limit_key}"
            )
        return found | {"seq_length": tokens, "micro_batch_size": 1, "packing": "verl", "packing_tokens": tokens}
    micro = batch.micro
    if micro is None:
        which = f"neither {ACTOR}.ppo_micro_batch_size_per_gpu nor use_dynamic_bsz is given"
        questions.append(Question(which, "--micro-batch-size N"))
        micro = 1
    samples = f"{counted(micro, 'sample')} of at most {batch.longest} ({batch.whose})"
    notes.append(f"at most {batch.longest * micro} tokens in a microbatch: {samples}")
    return found | {"seq_length": batch.longest, "micro_batch_size": micro}


def _by_length(tree: Tree, engine: str, batch: _Batch, questions: list[Question]) -> dict[str, Any]:
    """Batches of dynamic context parallelism, which packs whatever the batch sizes say (`verl/utils/dynamic_cp_scheduler.py`); it needs the
    Megatron-Core that has pull request 5154."""
    limit = tree.count(f"{engine}.max_seqlen_per_dp_cp_rank")
    if limit is None:
        questions.append(Question(f"{engine}.max_seqlen_per_dp_cp_rank is not given", "--max-seqlen-per-dp-cp-rank N"))
    rows = {"dynamic_context_parallel": True, "max_seqlen_per_dp_cp_rank": limit, "megatron_core_version": "0.20"}
    return {**rows, "seq_length": batch.longest, "micro_batch_size": 1}


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
