"""ms-swift: `megatron sft|pt|rlhf --key value ...`, or the same keys in a YAML or JSON file.

Sources: modelscope/ms-swift 4.6.0 `swift/cli/_megatron/main.py`, `swift/megatron/arguments/megatron_args.py`,
`megatron_base_args.py`, `swift/megatron/model/utils.py`, `swift/megatron/trainers/`; mcore-bridge 1.6.5.

What a run of ms-swift is given: the words of its command, a YAML or JSON file, and the environment of its launcher.

Source: modelscope/ms-swift 4.6.0 `swift/cli/_megatron/main.py`, `swift/cli/main.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..door_defaults import decided
from ..questions import Question
from ..spellings import kernel_of, short_dtype
from ..strict_yaml import parse_yaml
from .documents import needed
from .keys import frozen, given, passed_over, switched, translated
from .launched import gpus_of_command
from .rollout import LINEARS, MIXERS, TOLD_APART, engine, moved
from .run import Dialect, Reading, Run
from .words import flags, value_of

PROGRAM = re.compile(r"megatron .*|(?:.*/)?swift/cli/_megatron/(?:sft|pt|rlhf)\.py")
BATCH = {"micro_batch_size": 1, "global_batch_size": 16}
"""Samples where a run says nothing."""
TOWERS = {
    "freeze_vit": ("freeze_vision_model", "freeze_audio_model"),
    "freeze_aligner": ("freeze_vision_projection",),
}
"""What says whether a tower and what leads out of it are frozen, which they are where a run says nothing, by our names
(`swift/model/model_arch.py`: vision_tower has towers of both kinds)."""
OWN = frozenset(
    ("tuner_type", "train_type", "max_length", "padding_free", "packing", "rlhf_type", "split_dataset_ratio")
)
"""Keys that tell a file of ms-swift from a flat file of Megatron-LM arguments."""
MODEL = ("model", "model_id_or_path", "mcore_model", "load", "ckpt_dir", "model_type")
"""Keys that name the model, the surest first."""

NAMES_NONE = ("moe_router_load_balancing_type",)
"""Keys of which none is a value."""
READ = f"""
    {" ".join(MODEL)}
    max_length packing_length packing padding_free tuner_type train_type lora_rank target_modules target_regex
    modules_to_save rlhf_type max_completion_length torch_dtype bf16 fp16 attention_backend optimizer offload_model
    offload_optimizer sleep_level megatron_extra_kwargs freeze_parameters freeze_parameters_regex
    freeze_parameters_ratio trainable_parameters trainable_parameters_regex freeze_llm freeze_vit
    freeze_aligner use_vllm async_save use_persistent_ckpt_worker language_model_only
    vllm_mode vllm_gpu_memory_utilization log_entropy top_entropy_quantile teacher_model offload_teacher_model
    moe_layer_recompute task_type ENV recompute_granularity ref_model mcore_ref_model
"""
"""Keys that are read one by one."""
NOTHING = """
    accumulate_allreduce_grads_in_fp32 adapters add_* advantage_estimator agent_template async_generate attn_impl beta
    cached_* callbacks check_model ckpt_* completion_length_limit_scope columns cosine_* create_* custom_* data_*
    dataset* ddp_* delta desirable_weight device_map dist_ckpt_save_pre_mcore_014 dynamic_sample epsilon* eval_* external_plugins
    f_divergence_type finetune fipo_* fp4_recipe fp8_amax_* generation_batch_size gym_env
    hub_* ignore_args_error importance_sampling_level interval_* kl_in_reward label_smoothing lmbda load_* log_*
    lora_alpha lora_bias lora_dropout lora_dtype loss_* max_epochs max_model_len max_resample_times max_shard_size
    max_turns merge_lora model_author model_kwargs model_name moe_router_* multi_turn* nccl_comm_warmup
    new_special_tokens no_load* num_generations* num_iterations num_train_epochs off_policy_* offload_bridge
    output_dir overlong_filter problem_type push_to_hub ref_adapters remove_unused_columns repetition_* report_to
    reward_* rollout_* rope_scaling router_replay_mode rpo_alpha safe_serialization save* scale_rewards
    sequence_parallel_size sft_alpha shuffle* soft_* split_dataset_ratio steps_per_generation stream streaming* strict
    swanlab_* system tau_* teacher_* temperature template* top_k top_p train_dataloader_shuffle train_epochs
    truncation_strategy undesirable_weight use_chat_template use_cpu_initialization use_hf use_logits_to_keep
    use_rslora val_dataset* vit_* vit_gradient_checkpointing vllm_* group_by_length aligner_*
"""
"""Keys without effect, and beginnings of such."""


def knows(run: Run) -> bool:
    """A command of `megatron`, or a flat file with keys of ms-swift."""
    if run.document is not None:
        flat = "model" in run.document and not isinstance(run.document["model"], Mapping)
        return flat and not OWN.isdisjoint(map(str, run.document))
    return PROGRAM.fullmatch(run.program) is not None


def read(run: Run) -> Reading:
    """The settings of a run. Raises UnsupportedError for training that is not modelled, ConfigError for a file that is missing."""
    values, env = values_of(run)
    questions: list[Question] = []
    names = [str(values[key]) for key in MODEL if values.get(key)]
    settings, unknown, refused = translated(values, READ + NOTHING)
    settings |= _precision(values) | _optimizer(values, settings) | _recompute(values)
    settings |= _saved(values) | frozen(values, TOWERS)
    length, notes = _length(values, questions)
    warnings: list[str] = []
    settings |= length | _attention(values, warnings)
    tuned, more_refused = _tuned(values)
    around, said = _around(values, lora=bool(tuned))
    return Reading(
        model=names[0] if names else "",
        settings={**settings, **tuned, **around},
        defaults={**decided("ms-swift"), **BATCH, **_kernel(values)},
        text_only=("",) if switched(values, "language_model_only") else (),
        num_gpus=gpus_of_command(run, {**env, **run.env, **run.variables}, questions, alone=1),
        env={**env, **run.env},
        assumptions=tuple(notes),
        warnings=(*warnings, *said, *passed_over(unknown, "ms-swift")),
        questions=tuple(questions),
        refused=(*refused, *more_refused),
    )


def _precision(values: Mapping[str, Any]) -> dict[str, Any]:
    half = values.get("fp16") or short_dtype(values.get("torch_dtype")) == "fp16"
    return {"params_dtype": "fp16" if half else "bf16"}


def _optimizer(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer, and whether its state is loaded; Muon runs without the distributed one, and Adam on the host is precision-aware."""
    name = str(values.get("optimizer") or "adam")
    loads = not (values.get("finetune") or values.get("no_load_optim"))
    if name in ("muon", "dist_muon"):
        return {"optimizer": name, "use_distributed_optimizer": False, "load_optim": loads}
    aware = bool(settings.get("optimizer_cpu_offload") or settings.get("use_precision_aware_optimizer"))
    return {"optimizer": name, "use_precision_aware_optimizer": aware, "load_optim": loads}


def _saved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a process beside each rank writes checkpoints; without it an asynchronous save forks one, which has no CUDA context
    (`swift/megatron/trainers/base.py`, init_persistent_async_worker)."""
    return {"async_save": switched(values, "async_save") and switched(values, "use_persistent_ckpt_worker")}


def _recompute(values: Mapping[str, Any]) -> dict[str, Any]:
    granularity = values.get("recompute_granularity", "selective")
    if granularity in ("none", None):
        return {"recompute_granularity": None}
    empty = {} if values.get("recompute_modules") else {"recompute_modules": None}
    return {"recompute_granularity": granularity, **empty}


def _attention(values: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """The kernels of attention; `local` is what NPUs need, which have a flash attention of their own."""
    if values.get("attention_backend") == "local":
        warnings.append(
            "attention_backend=local runs on NPUs alone: their fused attention is counted as flash attention"
        )
        return {"attention_kernel": "flash"}
    named = values.get("attention_backend")
    return kernel_of(str(named).partition("_")[0]) if named else {}


def _kernel(values: Mapping[str, Any]) -> dict[str, Any]:
    """The kernel where a run names none."""
    return {} if values.get("attention_backend") else {"attention_kernel": "flash"}


def _length(values: Mapping[str, Any], questions: list[Question]) -> tuple[dict[str, Any], list[str]]:
    """Tokens of a sequence, and how sure they are."""
    length = values.get("packing_length") or values.get("max_length")
    if not isinstance(length, int) or isinstance(length, bool):
        said = (
            "is not given: the model's own maximum would hold"
            if length is None
            else f"is {shown(length)}, no whole number"
        )
        questions.append(Question(f"max_length {said}", "--seq-length N"))
        return {}, []
    kind = values.get("rlhf_type")
    if kind in ("grpo", "gkd"):
        longest = given(values, "max_completion_length", 512)
        if not isinstance(longest, int) or isinstance(longest, bool):
            questions.append(Question(f"max_completion_length={shown(str(longest))} is no number", "--seq-length N"))
            return {}, []
        length += longest
        return {"seq_length": length}, [f"at most {length} tokens a sample: max_length and max_completion_length"]
    if values.get("packing"):
        packing = {"packing": "ms_swift", "packing_tokens": length}
        return {"seq_length": length, **packing}, [f"samples are packed to rows of {length} tokens"]
    pairs = 2 if kind == "dpo" else 1
    found = {"seq_length": pairs * length}
    whose = "a chosen and a rejected answer" if pairs == 2 else "a sample"
    free = values.get("padding_free", True)
    return found, [f"at most {pairs * length} tokens for {whose}: max_length" + (", laid end to end" if free else "")]


def _tuned(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """LoRA, and what is frozen otherwise."""
    refused = []
    kind = str(values.get("tuner_type") or values.get("train_type") or "full")
    frozen = ("freeze_llm", "freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters_regex",
              "trainable_parameters", "modules_to_save", "target_regex")  # fmt: skip
    for key in frozen:
        if values.get(key):
            refused.append(f"{key}={shown(str(values[key]))} chooses what trains, which is not modelled")
    if kind == "full":
        return {}, refused
    if kind != "lora":
        return {}, [*refused, f"tuner_type={kind} is not modelled"]
    targets = values.get("target_modules") or "all-linear"
    wanted = list(targets) if isinstance(targets, list) else [targets]
    if "all-router" in wanted:
        refused.append("target_modules=all-router adapts routers, which is not modelled")
    modules = (*LINEARS, *MIXERS) if "all-linear" in wanted else tuple(str(one) for one in wanted)
    return {"peft": "lora", "peft_dim": given(values, "lora_rank", 8), "peft_target_modules": modules}, refused


def _around(values: Mapping[str, Any], *, lora: bool) -> tuple[dict[str, Any], list[str]]:
    """The phases of preference and reinforcement learning. Raises UnsupportedError for rewards and teachers."""
    kind = values.get("rlhf_type")
    if values.get("task_type") not in (None, "causal_lm"):
        raise UnsupportedError(
            f"task_type={values['task_type']} of ms-swift trains another head, which is not modelled"
        )
    if kind is None:
        return {}, []
    if kind in ("rm", "gkd") or values.get("teacher_model"):
        what = "a reward model" if kind == "rm" else "a student of a teacher model"
        raise UnsupportedError(f"rlhf_type={kind} of ms-swift trains {what}, which is not modelled")
    found: dict[str, Any] = {"reference_model": "none" if lora else "device"}
    warnings = (
        [] if lora else [f"rlhf_type={kind}: the reference policy's weights stay on the device beside the policy's"]
    )
    if kind != "grpo":
        return found, warnings
    offloaded = values.get("offload_model")
    generates, said = engine(
        "vllm",
        "rlhf_type",
        colocated=values.get("vllm_mode") != "server",
        sleeps=bool(values.get("sleep_level")),
        rollout_memory_share=given(values, "vllm_gpu_memory_utilization", 0.9),
        rollout_tensor_parallel_size=given(values, "vllm_tensor_parallel_size", 1),
    )
    found |= {"loss_function": "swift", "rollout_offload": moved(offloaded, offloaded, values.get("offload_optimizer"))}
    found |= generates
    warnings += [f"rlhf_type=grpo: {one}" for one in said]
    if not lora and offloaded:
        found["reference_model"] = "offloaded"
    return found, warnings


WORDS = f"{TOLD_APART} dist_muon local grpo gkd dpo rm causal_lm server all-router"
DIALECT = Dialect("ms-swift", "dialects/ms_swift.md", knows, read, lambda run: "", takes_flags=True, words=WORDS)


def values_of(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys and values, and the environment that a file sets where the run does not."""
    if run.document is not None:
        document: Mapping[str, Any] = run.document
        words: dict[str, list[str]] = {}
    else:
        words, first = flags(run.words)
        document = _file(run, first[0]) if first else {}
    env = document.get("ENV") or {}
    if not isinstance(env, Mapping):
        raise ConfigError(f"{run.path}: ENV must hold variables, not {shown(repr(env))}")
    values = {str(key).replace("-", "_"): value for key, value in document.items()}
    values |= {key: value_of(each) if key not in NAMES_NONE else each for key, each in words.items()}
    extra = values.get("megatron_extra_kwargs")
    if isinstance(extra, str):
        extra = parse_yaml(extra, "megatron_extra_kwargs")
    if isinstance(extra, Mapping):
        values |= {str(key): value for key, value in extra.items()}
    return values, {str(key): str(value) for key, value in env.items()}


def _file(run: Run, path: str) -> Mapping[str, Any]:
    """The YAML or JSON file that is given as the first word."""
    missing = f"{shown(path)}, which holds the options of {run.program}, is not beside {run.path}; put it there"
    return needed(run, path, "keys of ms-swift", missing)
