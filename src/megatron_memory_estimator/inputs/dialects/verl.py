"""verl: `python -m verl.trainer.main_ppo key=value ...` with Megatron's engine, its SFT trainer, or a YAML with the same tree.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/engine/megatron.yaml`, `actor/*.yaml`, `optim/megatron.yaml`, `ref/*.yaml`,
`rollout/rollout.yaml`, `model/hf_model.yaml`, `sft_trainer_engine.yaml`, `verl/trainer/ppo/utils.py`,
`verl/workers/engine/megatron/transformer_impl.py`, `verl/utils/megatron_utils.py`, `verl/utils/megatron/optimizer.py`.

Keys of verl in Megatron's names, section by section, and those that have no effect on memory.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/engine/megatron.yaml`, `actor/*.yaml`, `optim/megatron.yaml`, `model/hf_model.yaml`,
`verl/workers/engine/megatron/transformer_impl.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...wording import shown
from ..field_names import fields_of
from ..spellings import short_dtype
from .hydra import Tree
from .keys import Section, balancing, by_habit, decisive, of_ddp, of_sections, of_transformer, passed_over
from .models import family_of, provider_defaults
from .run import Dialect, Reading, Run
from .verl_phases import batch_of, gpus_of, phases, tokens_of
from .verl_tree import FOLLOWS, engine_of, is_sft, tree_of

PROGRAM = "verl."
KEY = "actor_rollout_ref."

DEFAULTS: dict[str, Any] = {
    "use_distributed_optimizer": True,
    "accumulate_allreduce_grads_in_fp32": True,
    "moe_aux_loss_coeff": 0.0,
    "mtp_num_layers": 0,
    "attention_kernel": "flash",
    "optimizer_offload_fraction": 0.0,
}
"""What holds where a run says nothing, beside what Megatron-Bridge sets for the model."""


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
    settings |= _precision(tree, at, settings) | _loss(tree, at)
    settings["sequence_parallel"] = tree.on(f"{at.engine}.sequence_parallel", True)
    gpus = gpus_of(tree, run, notes, questions, sft=sft)
    warnings: list[str] = []
    settings |= batch_of(tree, at.engine, run.wanted_gpus or gpus, (notes, warnings, questions), sft=sft)
    tuned, more = _tuned(tree, at)
    refused += more + not_modelled(tree, at)
    if not sft:
        around, said, wrong = phases(tree, run, tokens=tokens_of(settings), lora=bool(tuned))
        settings |= around
        warnings += said
        refused += wrong
    model = str(tree.at(f"{at.model}.path") or "")
    chosen, experts = by_habit(settings)
    own = (
        tree.at(f"{at.engine}.use_mbridge", True) is False
    )  # verl's own converter (`models/mcore/config_converter.py`)
    converted = {"moe_router_dtype": "fp64"} if own and family_of(run.model or model) == "deepseek_v3" else {}
    return Reading(
        model=model,
        settings={**chosen, **tuned},
        defaults={**provider_defaults(run.model or model), **_defaults(tree, at), **converted, **experts},
        num_gpus=gpus,
        env=decisive(tree.section("ray_kwargs.ray_init.runtime_env.env_vars"), run.env),
        assumptions=tuple(notes),
        warnings=(*warnings, *passed_over([*tree.misspelled(fields_of("verl")), *unknown], "verl")),
        questions=tuple(questions),
        refused=tuple(refused),
    )


def _defaults(tree: Tree, at: Places) -> dict[str, Any]:
    """Defaults of the framework; with MTP enabled the model's config says how many layers there are."""
    mtp = tree.on(f"{at.model}.mtp.enable")
    return {name: value for name, value in DEFAULTS.items() if not (mtp and name == "mtp_num_layers")}


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


DIALECT = Dialect("verl", "dialects/verl.md", knows, read, _degrees, follows=FOLLOWS)


ENGINE = """
    _target_ param_offload grad_offload optimizer_offload use_dist_checkpointing dist_checkpointing_* dist_ckpt_*
    distrib_optim_* entropy_from_logits_* override_* use_mbridge vanilla_mbridge use_remove_padding pad_* forward_only
    dtype router_replay qat load_weight use_fused_kernels strategy sequence_parallel dynamic_context_parallel
    use_cpu_optimizer default_fsdp_args extra profiler engine_kwargs
"""
"""Keys of the engine that are read one by one, or have no effect."""
FIELDS = """
    mtp_* moe_router_load_balancing_type bias_dropout_fusion use_fused_* sequence_parallel
"""
"""Fields of TransformerConfig that are read one by one, or have no effect."""
OPTIMIZER = """
    _target_ betas total_training_steps muon_* override_* use_layer_wise_distributed_optimizer num_cycles warmup_style
    decoupled_weight_decay sgd_*
"""
STATES = " params_dtype main_grads_dtype main_params_dtype exp_avg_dtype exp_avg_sq_dtype"
"""What the optimizer's section has no effect with where the optimizer is not precision-aware."""
ACTOR = """
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
    tiled_mlp mtp lora fsdp_config share_embeddings_* load_tokenizer base_model* ckpt_path hf_config generation_config
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
        *([Section(at.actor, ACTOR)] if at.actor else []),
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
    switches = [f"{at.engine}.qat.enable", f"{at.engine}.dynamic_context_parallel", "distillation.enabled"]
    switches += [f"{at.actor}.qat.enable"] if at.actor else []
    refused = [f"{path}=true decides memory and is not modelled" for path in switches if tree.on(path)]
    for path in (f"{at.model}.override_config", f"{at.model}.override_config.model_config"):
        for key, given in tree.section(path).items():
            if key not in HARMLESS_OVERRIDES and not key.endswith("token_id"):
                refused.append(f"{path}.{key}={shown(given)} changes the model; give its config with --model")
    return refused
