"""SkyRL: `uv run --isolated --extra megatron -m skyrl.train.entrypoints.main_base key=value ...`, and `skyrl.train.main_sft`.

Sources: NovaSky-AI/SkyRL, skyrl 0.4.0 `skyrl/train/config/config.py`, `sft_config.py`, `skyrl/train/trainer.py`,
`skyrl/train/generators/skyrl_gym_generator.py`, `skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py`,
`megatron_model_wrapper.py`, `skyrl/backends/skyrl_train/workers/worker_dispatch.py`,
`skyrl/backends/skyrl_train/distributed/megatron/optimizer.py`, `model_utils.py`; skyrl_train 0.3.1
`skyrl_train/config/ppo_base_config.yaml`, `megatron_config/policy.yaml`, where the older program differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import UnsupportedError
from ...wording import counted, shown
from ..door_defaults import without_loss
from ..model_names import catalogued, family_of
from ..questions import Question
from ..spellings import kernel_of
from .hydra import Tree, overridden, parted
from .keys import Section, by_habit, decisive, of_ddp, of_sections, of_transformer, passed_over, translated
from .rollout import LINEARS, MIXERS, TOLD_APART, engine, moved, split_otherwise
from .run import Dialect, Reading, Run

OWN = re.compile(r"skyrl(?:_train|\.train)\.(?:\w+\.)*main\w*")
"""Programs of the framework; those of its examples and of what builds on it are known by their keys."""
ELSEWHERE = re.compile(r"(?:\w+\.)*main_\w+")
KEY = re.compile(r"\+{0,2}trainer\.(?:policy|placement|algorithm|strategy)\b.*")
OLDER = "skyrl_train."
"""The program up to 0.3, whose defaults differ."""
SFT = re.compile(r"(?:\w+\.)*main_sft\w*")
BACKEND = "megatron"


class Places(NamedTuple):
    """Where the keys of a program stand: `trainer` and `policy` end with a dot, or are empty."""

    trainer: str
    policy: str

    @property
    def engine(self) -> str:
        """The section of Megatron's settings."""
        return f"{self.policy}megatron_config"

    @property
    def fields(self) -> str:
        """Fields of TransformerConfig."""
        return f"{self.engine}.transformer_config_kwargs"

    @property
    def lora(self) -> str:
        """The section of adapters."""
        return f"{self.policy}model.lora"


RL = Places("trainer.", "trainer.policy.")
SUPERVISED = Places("", "")
REFERENCE = "trainer.ref.megatron_config"
ENGINE = "generator.inference_engine"
SAMPLES = "trainer.max_prompt_length + generator.sampling_params.max_generate_length"

OF_BRIDGE = ("gradient_accumulation_fusion", "moe_router_dtype")
"""Of what SkyRL decides, what the older program leaves to Megatron-Bridge."""
RECOMPUTATION = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
"""What is filled in where the fields of TransformerConfig do not say it."""
TEXT, TEXT_WHERE_CHOSEN = "kimi_k25", "qwen3_5"
"""Types of models that SkyRL builds without their tower, always and with language_model_only (`workers/megatron/model_bridges.py`)."""
CHUNK = 1024
"""Tokens of a chunk of log-probabilities."""
GIB = 2**30

MEGATRON = """
    ddp_config optimizer_config_kwargs transformer_config_kwargs lora_config torch_profiler_config hf_export_config
    model_config_kwargs empty_cuda_cache async_save_prestage_to_cpu mtp_* mtp_num_layers moe_router_load_balancing_type moe_aux_loss_coeff
    moe_enable_routing_replay moe_per_layer_logging
"""
"""Keys of megatron_config that are read one by one, or have no effect."""
FIELDS = "rope_* recompute_granularity recompute_method recompute_num_layers"
OPTIMIZER = "lr min_lr"
SCHEDULE = "adam_betas max_grad_norm num_warmup_steps offload_after_step scheduler"
POLICY = """
    model optimizer_config fsdp_config deepspeed_config megatron_config sequence_parallel_size use_torch_compile
    record_memory torch_profiler_config model_config_kwargs language_model_only
"""
MODEL = "path lora fake_int4_qat"
LORA = """
    rank alpha dropout lora_sync_path sync_mode target_modules exclude_modules init_method share_expert_adapters
    max_loras max_cpu_loras
"""
LORA_CONFIG = "lora_type merge_lora experts_shared_outer_loras normalize_moe_lora"
TRAINER = """
    placement use_expandable_segments sequence_parallel_backend strategy policy ref critic algorithm mtp fully_async
    gradient_checkpointing* seed resume_* log_path ckpt_* max_ckpts_to_keep hf_save_interval export_path bf16 epochs
    max_training_steps update_* train_batch_size policy_mini_batch_size critic_mini_batch_size
    micro_* max_tokens_per_microbatch recompute_old_logprobs_per_minibatch remove_microbatch_padding use_sample_packing
    eval_* max_prompt_length flash_attn disable_fast_tokenizer project_name run_name logger enable_ray_gpu_monitor tags
    dump_* print_example_interval num_logger_* log_example_interval logprobs_chunk_size vocab_entropy_chunk_*
    fused_lm_head_logprob* target_modules exclude_modules rope_*
"""
FLAT = f"""
    {POLICY} placement strategy dataset_* train_* pretokenized_dataset_paths messages_key tools_key system_key eval_*
    max_length num_* num_workers batch_size micro_train_batch_size_per_gpu logger project_name run_name tags ckpt_* max_ckpts_to_keep
    enable_ray_gpu_monitor resume_from hf_save_interval export_path seed async_batch_collation sampler* cache_dir
    force_recache disable_cache remove_microbatch_padding use_sample_packing use_sequence_packing
    max_tokens_per_microbatch dummy_run_* max_training_steps
"""
"""Keys of the SFT trainer, which stand at the top."""


def knows(run: Run) -> bool:
    """A program of SkyRL, or one of any name that gets its keys."""
    if run.document is not None:
        return False
    return bool(OWN.fullmatch(run.program)) or (
        ELSEWHERE.fullmatch(run.program) is not None and any(map(KEY.fullmatch, run.words))
    )


def read(run: Run) -> Reading:
    """The settings of a run. Raises UnsupportedError for another backend than Megatron, ConfigError for a value of the wrong kind."""
    tree, at = tree_of(run), places_of(run)
    older, sft = run.program.startswith(OLDER), at is SUPERVISED
    _check_backend(tree, at)
    notes: list[str] = []
    warnings: list[str] = []
    questions: list[Question] = []
    settings, unknown, refused = _settings(tree, at)
    settings |= _engine(tree, at, notes, questions)
    settings |= (_supervised if sft else _reinforced)(tree, notes, warnings, questions)
    tuned, more = _tuned(tree, at)
    settings |= _loss(tree, at, settings, older=older) | tuned
    refused += more + _not_modelled(tree, at)
    if not sft:
        around, said, wrong = phases(tree, settings, notes)
        settings |= around
        warnings += said
        refused += wrong
    if tree.on("trainer.mtp.enabled"):
        warnings.append("trainer.mtp.enabled: the draft loss of the MTP layers is counted as a loss of the model's own")
    model = str(tree.at(f"{at.policy}model.path") or "")
    chosen, experts = by_habit(settings)
    return Reading(
        model=model,
        settings=chosen,
        defaults={**_defaults(tree, family_of(run.model or model), older=older), **experts},
        num_gpus=_gpus(tree, at, notes, older=older),
        env=decisive(run.env),
        assumptions=tuple(notes),
        warnings=(*warnings, *passed_over([*tree.misspelled(), *unknown], "SkyRL")),
        questions=tuple(questions),
        refused=tuple(refused),
        bridged=True,
        text_only=(TEXT, TEXT_WHERE_CHOSEN) if tree.on(f"{at.policy}language_model_only") else (TEXT,),
    )


def places_of(run: Run) -> Places:
    """Where the keys of the run's program stand."""
    return SUPERVISED if SFT.fullmatch(run.program) else RL


def tree_of(run: Run) -> Tree:
    """The settings of a run; the SFT trainer alone has degrees where none of Megatron's settings is given."""
    root = overridden({}, parted(run.words)[1])
    if places_of(run) is SUPERVISED and "megatron_config" not in root:
        degrees = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
        root = {**root, "megatron_config": degrees}
    return Tree(root, {**run.env, **run.variables})


def _check_backend(tree: Tree, at: Places) -> None:
    """Nothing where Megatron trains. Raises UnsupportedError that names the backend, or says that nothing trains."""
    key = f"{at.trainer}strategy"
    backend = str(tree.at(key, BACKEND if at is SUPERVISED else "fsdp"))
    if backend != BACKEND:
        raise UnsupportedError(
            f"{key}={shown(backend)}: this run of SkyRL does not train with Megatron; only megatron is modelled",
            "a run of SkyRL does not train with Megatron",
        )
    for path in ("trainer.fully_async.simulate_training", "trainer.policy.inference_only_init"):
        if tree.on(path):
            raise UnsupportedError(f"{path}=true of SkyRL trains nothing")


def _settings(tree: Tree, at: Places) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of the sections, keys that are unknown, and those that are refused."""
    settings, unknown, refused = of_sections(tree, _sections(at))
    if at is SUPERVISED:
        top, strange, wrong = translated(tree.root, FLAT)
        return {**top, **settings}, [*strange, *unknown], [*wrong, *refused]
    return settings, unknown, refused


def _sections(at: Places) -> list[Section]:
    """The sections whose keys are Megatron's, and those whose keys are known."""
    around = [Section("placement", "num_*")]
    if at is RL:
        placement = "colocate_* policy_num_* critic_num_* ref_num_*"
        around = [
            Section("trainer", TRAINER),
            Section("trainer.placement", placement),
            Section("trainer.policy", POLICY),
        ]
    return [
        *around,
        Section(f"{at.policy}model", MODEL),
        Section(at.lora, LORA),
        Section(f"{at.policy}optimizer_config", SCHEDULE),
        of_ddp(f"{at.engine}.ddp_config"),
        Section(at.engine, MEGATRON, {"async_dist_ckpt_save": "async_save"}),
        Section(f"{at.engine}.lora_config", LORA_CONFIG),
        of_transformer(at.fields, FIELDS),
        Section(f"{at.engine}.optimizer_config_kwargs", OPTIMIZER),
    ]


def _engine(tree: Tree, at: Places, notes: list[str], questions: list[Question]) -> dict[str, Any]:
    """Precision, attention, sequence parallelism, recomputation, fp8 and what balances experts."""
    tp = tree.count(f"{at.engine}.tensor_model_parallel_size", 1) or 1
    found: dict[str, Any] = {"params_dtype": "bf16", "sequence_parallel": tp > 1}
    found |= kernel_of("flash" if tree.on(f"{at.trainer}flash_attn", True) else "fused")
    found |= {
        name: tree.at(f"{at.fields}.{name}") if tree.has(f"{at.fields}.{name}") else default
        for name, default in RECOMPUTATION.items()
    }
    if not tree.on(f"{at.trainer}gradient_checkpointing", True):
        found |= dict.fromkeys(RECOMPUTATION)
    elif found["recompute_granularity"] == "full" and not tree.has(f"{at.fields}.recompute_granularity"):
        notes.append("SkyRL recomputes every layer where the run says nothing (full, uniform, 1)")
    formats, recipes = (
        [tree.at(f"{where}.{key}") for where in (at.fields, at.engine)] for key in ("fp8", "fp8_recipe")
    )
    if any(formats) and (recipes[0] or recipes[1]) == "auto":
        asked = f"{at.engine}.fp8_recipe=auto follows the GPU: blockwise on Hopper, mxfp8 from Blackwell on"
        questions.append(Question(asked, "--fp8-recipe blockwise"))
    balances = tree.at(f"{at.engine}.moe_router_load_balancing_type", "none") != "none"
    found["moe_aux_loss_coeff"] = tree.number(f"{at.engine}.moe_aux_loss_coeff") if balances else 0.0
    return found


def _defaults(tree: Tree, family: str, *, older: bool) -> dict[str, Any]:
    """Defaults of the framework; with MTP enabled the model's config, or the run, says how many layers there are."""
    mtp = tree.on("trainer.mtp.enabled")
    found = without_loss("skyrl", family)
    if older:
        found = {name: value for name, value in found.items() if name not in OF_BRIDGE}
        found = {**without_loss("bridge", family), **found}
    layers = tree.count("trainer.policy.megatron_config.mtp_num_layers")
    if mtp:
        found.pop("mtp_num_layers")
    return found | ({"mtp_num_layers": layers} if mtp and layers else {})


def _gpus(tree: Tree, at: Places, notes: list[str], *, older: bool) -> int:
    """GPUs of the policy."""
    prefix = "placement." if at is SUPERVISED else "trainer.placement.policy_"
    default = 4 if at is SUPERVISED or older else 1
    keys = (f"{prefix}num_nodes", f"{prefix}num_gpus_per_node")
    nodes, each = tree.count(keys[0], 1) or 1, tree.count(keys[1], default) or default
    if not all(map(tree.has, keys)):
        notes.append(f"SkyRL's defaults {keys[0]}=1 and {keys[1]}={default} where the run does not give them")
    return nodes * each


def _supervised(tree: Tree, notes: list[str], warnings: list[str], questions: list[Question]) -> dict[str, Any]:
    """Tokens of a microbatch and samples of a step of the SFT trainer."""
    samples, longest = tree.count("batch_size", 4) or 4, tree.count("max_length")
    if longest is None:
        questions.append(Question("max_length is not given: samples are not cut", "--seq-length N"))
        return {"global_batch_size": samples}
    if tree.on("use_sequence_packing"):
        key = "max_tokens_per_microbatch" if tree.count("max_tokens_per_microbatch") else "max_length"
        rows = _packed(tree.count(key) or longest, longest, (key, "max_length"), notes, warnings)
        return {"global_batch_size": samples} | rows | {"packing": "skyrl_sft"}
    micro = tree.count("micro_train_batch_size_per_gpu", 2) or 2
    return {"global_batch_size": samples} | _rows(micro, longest, "max_length", notes)


def _reinforced(tree: Tree, notes: list[str], warnings: list[str], questions: list[Question]) -> dict[str, Any]:
    """The same of reinforcement learning, whose mini batch counts prompts."""
    prompts = tree.count("trainer.policy_mini_batch_size", 256) or 256
    found: dict[str, Any] = {"global_batch_size": prompts * (tree.count("generator.n_samples_per_prompt", 5) or 5)}
    longest = longest_of(tree)
    limit = "trainer.max_tokens_per_microbatch"
    if tree.number(limit, -1) > 0:
        if not _pads_nothing(tree):
            warnings.append(f"{limit} counts tokens without padding: rows that are padded to the longest may have more")
        return found | _packed(tree.count(limit) or longest, longest, (limit, SAMPLES), notes, warnings)
    micro = tree.count("trainer.micro_train_batch_size_per_gpu", 1) or 1
    return found | _rows(micro, longest, SAMPLES, notes)


def _pads_nothing(tree: Tree) -> bool:
    return tree.on("trainer.remove_microbatch_padding", tree.on("trainer.use_sample_packing", True))


def _rows(micro: int, longest: int, whose: str, notes: list[str]) -> dict[str, Any]:
    """Microbatches of so many samples."""
    notes.append(
        f"at most {longest * micro} tokens in a microbatch: {counted(micro, 'sample')} of at most {longest} ({whose})"
    )
    return {"seq_length": longest, "micro_batch_size": micro}


def _packed(limit: int, longest: int, keys: tuple[str, str], notes: list[str], warnings: list[str]) -> dict[str, Any]:
    """Microbatches filled up to a limit, which a longer sample exceeds alone; `keys` are those of the limit and of the sample."""
    if limit < longest:
        warnings.append(f"a sample may have {longest} tokens ({keys[1]}), above {keys[0]}={limit}: it runs alone")
    tokens = max(limit, longest)
    notes.append(f"at most {tokens} tokens in a microbatch, before context parallelism: samples packed to {keys[0]}")
    return {"seq_length": tokens, "micro_batch_size": 1, "packing": "skyrl", "packing_tokens": limit}


def longest_of(tree: Tree) -> int:
    """Tokens of the longest prompt, or conversation of several turns, with the longest answer."""
    prompt = tree.count("trainer.max_prompt_length", 512) or 512
    turns = tree.count("generator.max_input_length", prompt) or prompt
    return max(prompt, turns) + (tree.count("generator.sampling_params.max_generate_length", 1024) or 1024)


def _loss(tree: Tree, at: Places, settings: Mapping[str, Any], *, older: bool) -> dict[str, Any]:
    """What the loss makes of the logits; the SFT trainer has no keys for it. A chunk that holds all tokens is none."""
    fused = tree.on("trainer.fused_lm_head_logprob")
    found: dict[str, Any] = {"loss_function": "skyrl_fused" if fused else "skyrl"}
    chunk = tree.count("trainer.logprobs_chunk_size")
    if chunk is None and not older and not tree.has("trainer.logprobs_chunk_size"):
        chunk = CHUNK
    cp = tree.count(f"{at.engine}.context_parallel_size", 1) or 1
    tokens = settings.get("seq_length", 0) * settings.get("micro_batch_size", 1) // cp
    if chunk is not None and (fused or not tokens or chunk < tokens):
        found["loss_chunk_size"] = chunk
    if tree.on("trainer.algorithm.use_entropy_loss"):
        found["loss_entropy"] = True
    return found


def _tuned(tree: Tree, at: Places) -> tuple[dict[str, Any], list[str]]:
    """LoRA of Megatron-Bridge, and what of it is not modelled."""
    if not tree.number(f"{at.lora}.rank") > 0:
        return {}, []
    config = f"{at.engine}.lora_config"
    kind, targets = str(tree.at(f"{config}.lora_type", "lora")), tree.at(f"{at.lora}.target_modules", "all-linear")
    names = [str(one) for one in (targets if isinstance(targets, list) else [targets])]
    refused = [
        f"{at.lora}.target_modules has {shown(one)}; all-linear and names of linears such as linear_qkv are modelled"
        for one in names
        if "*" in one or "." in one
    ]
    if kind not in EVERY:
        refused.append(f"{config}.lora_type={shown(kind)} is not modelled; lora and canonical_lora are")
    switches = [f"{config}.experts_shared_outer_loras", f"{config}.normalize_moe_lora"]
    refused += [f"{path}=true decides memory and is not modelled" for path in switches if tree.on(path)]
    if not tree.on(f"{at.lora}.share_expert_adapters", True):
        refused.append(f"{at.lora}.share_expert_adapters=false decides memory and is not modelled")
    if tree.at(f"{at.lora}.exclude_modules"):
        refused.append(f"{at.lora}.exclude_modules decides memory and is not modelled")
    if "all-linear" in names:
        without = "in_proj" if family_of(str(tree.at(f"{at.policy}model.path") or "")) == FUSED_PROJECTION else ""
        names = [one for one in EVERY.get(kind, ()) if one != without]
    return {"peft": kind, "peft_dim": tree.count(f"{at.lora}.rank"), "peft_target_modules": tuple(names)}, refused


EVERY = {
    "lora": (*LINEARS[:4], *MIXERS),
    "canonical_lora": (
        "linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_up", "linear_fc1_gate", "linear_fc2", *MIXERS,
    ),
}  # fmt: skip
"""Linears of all-linear, by the type of the adapter."""
FUSED_PROJECTION = "qwen3_next"
"""The family whose `in_proj` gets no adapter: its checkpoints have it in another layout (gdn_in_proj_lora_is_safe)."""


def _not_modelled(tree: Tree, at: Places) -> list[str]:
    """Switches that change memory in ways that are not modelled."""
    refused = []
    if tree.on(f"{at.policy}model.fake_int4_qat.enabled"):
        refused.append(f"{at.policy}model.fake_int4_qat.enabled=true decides memory and is not modelled")
    if not tree.on(f"{at.trainer}bf16", True):
        refused.append("trainer.bf16=false: the optimizer still takes bf16 weights, which is not modelled")
    if tree.at("trainer.critic.model.path"):
        refused.append("trainer.critic.model.path: SkyRL trains no critic with Megatron")
    return refused


def phases(tree: Tree, settings: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Settings of the phases, warnings, and what is refused; `notes` takes assumptions."""
    colocated = tree.on("trainer.placement.colocate_all", True)
    beside = colocated or tree.on("trainer.placement.colocate_policy_ref", True)
    found, warnings = _generates(tree, colocated=colocated)
    refused: list[str] = []
    kl = tree.on("trainer.algorithm.use_kl_loss", True) or tree.on("trainer.algorithm.use_kl_in_reward")
    if kl and beside:
        found["reference_model"] = "offloaded"
        warnings += split_otherwise(tree, REFERENCE, RL.engine)
    if kl and not tree.has("trainer.algorithm.use_kl_loss"):
        notes.append("SkyRL's default trainer.algorithm.use_kl_loss=true: a reference with its own copy of the weights")
    own, policy = tree.at("trainer.ref.model.path"), tree.at("trainer.policy.model.path")
    if kl and own and (catalogued(str(own)) or own) != (catalogued(str(policy)) or policy):
        refused.append(f"trainer.ref.model.path={shown(own)} is another model than the policy, which is not modelled")
    if colocated or (kl and beside):
        found["rollout_offload"] = moved()
    found["log_prob_offload"] = moved(False, colocated, colocated)
    forward = (tree.count("trainer.micro_forward_batch_size_per_gpu", 1) or 1) * longest_of(tree)
    packed = tree.number("trainer.max_tokens_per_microbatch", -1) > 0
    if not packed and forward != settings["seq_length"] * settings["micro_batch_size"]:
        found["log_prob_micro_batch_tokens"] = forward
    return found, warnings, refused


def _generates(tree: Tree, *, colocated: bool) -> tuple[dict[str, Any], list[str]]:
    """The engine; up to 0.3 its keys stood beside those of the generator."""
    bucket = tree.number(
        f"{ENGINE}.weight_transfer_threshold_cuda_ipc_GB",
        tree.number("generator.weight_transfer_threshold_cuda_ipc_GB", 1.0),
    )
    return engine(
        str(tree.at(f"{ENGINE}.backend") or tree.at("generator.backend") or "vllm"),
        f"{ENGINE}.backend",
        colocated=colocated,
        sleeps=True,
        keys=(*tree.section(f"{ENGINE}.engine_init_kwargs"), *tree.section("generator.engine_init_kwargs")),
        weight_sync_bytes=int(bucket * GIB),
        rollout_tensor_parallel_size=tree.count(
            f"{ENGINE}.tensor_parallel_size", tree.count("generator.inference_engine_tensor_parallel_size", 1)
        ),
        rollout_memory_share=tree.number(
            f"{ENGINE}.gpu_memory_utilization", tree.number("generator.gpu_memory_utilization", 0.8)
        ),
    )


DIALECT = Dialect("SkyRL", "dialects/skyrl.md", knows, read, lambda run: places_of(run).engine, words=TOLD_APART)
