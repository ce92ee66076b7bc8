"""From a Megatron-Bridge ConfigContainer, or its saved YAML, to a job; Bridge itself is not imported.

Sources: Megatron-Bridge `src/megatron/bridge/training/config.py`, `models/gpt_provider.py`,
`training/mixed_precision.py`. The model section is a TransformerConfig, so its names are the engine's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any

from ..errors import ConfigError, UnsupportedError
from ..job.settings import LARGEST_INTEGER, nearest
from ..job.training_job import TrainingJob
from ..wording import shown
from .everyday import in_megatrons_words
from .field_names import fields_of
from .resolve import job_from_config
from .setting_names import current_name, known_settings
from .spellings import SPELLED, router_dtype
from .text_files import read_yaml
from .transformer_config import IRRELEVANT, RENAMED, UNCOUNTED, UNSUPPORTED

PROVIDER_DEFAULTS = {
    "share_embeddings_and_output_weights": True,
    "seq_length": 1024,
    "cross_entropy_loss_fusion": True,
    "gradient_accumulation_fusion": True,
    "masked_softmax_fusion": True,
    "create_attention_mask_in_dataloader": False,
}
"""GPTModelProvider's defaults where they are not TransformerConfig's; recipes' datasets make no attention mask."""

FP8_RECIPE = "tensorwise"
"""MixedPrecisionConfig's default, which Bridge copies to the optimizer's config with or without fp8: the precision-aware
optimizer then leaves the masters to Megatron (`training/mixed_precision.py`)."""

LOW_PRECISION = (
    "fp4_param_gather", "fp8", "fp8_param", "fp8_param_gather", "fp4", "fp4_param", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16", "fp8_dot_product_attention", "reuse_grad_buf_for_mxfp8_param_ag",
)  # fmt: skip
CURRENT = {"fp8": "hybrid", "fp8_recipe": "tensorwise", "first_last_layers_bf16": True, "fp8_param_gather": True}
FP8: dict[str, dict[str, Any]] = {
    "with_fp8_delayed_scaling": {"fp8": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True},
    "with_fp8_current_scaling": {**CURRENT, "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1},
    "with_fp8_subchannel_scaling": {"fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param_gather": False},
    "with_mxfp8": {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
}  # fmt: skip
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16_mixed": {},
    "fp16_mixed": {},
    **{f"{half}_{name}_mixed": values for half in ("bf16", "fp16") for name, values in FP8.items()},
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": {
        **CURRENT, "num_layers_at_start_in_bf16": 2, "num_layers_at_end_in_bf16": 2,
    },
    "nanov2_bf16_with_fp8_current_scaling_mixed": {
        **CURRENT, "fp8_recipe": "blockwise", "num_layers_at_start_in_bf16": 2, "num_layers_at_end_in_bf16": 2,
    },
    "bf16_with_nvfp4_mixed": {"fp4": "e2m1"},
}  # fmt: skip
"""Named precisions (Megatron-Bridge `src/megatron/bridge/training/mixed_precision.py`); gradients are fp32 with bf16."""

DDP = {
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "bucket_size": "ddp_bucket_size",
    "num_distributed_optimizer_instances": "num_distributed_optimizer_instances",
    "use_megatron_fsdp": "use_megatron_fsdp",
    "data_parallel_sharding_strategy": "data_parallel_sharding_strategy",
    "outer_dp_sharding_strategy": "outer_dp_sharding_strategy",
    "fsdp_double_buffer": "fsdp_double_buffer",
    "nccl_ub": "nccl_ub",
    "suggested_communication_unit_size": "suggested_communication_unit_size",
    "keep_fp8_transpose_cache": "keep_fp8_transpose_cache",
    "pad_buckets_for_high_nccl_busbw": "ddp_pad_buckets_for_high_nccl_busbw",
}
CHECKPOINT = {
    "ckpt_format": "ckpt_format",
    "load_optim": "load_optim",
    "dist_ckpt_optim_fully_reshardable": "dist_ckpt_optim_fully_reshardable",
    "fully_parallel_load": "ckpt_fully_parallel_load",
    "fully_parallel_save": "ckpt_fully_parallel_save",
    "async_save": "async_save",
}
OPTIMIZER = (
    "optimizer", "use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype",
    "exp_avg_sq_dtype", "store_param_remainders", "optimizer_cpu_offload", "optimizer_offload_fraction",
    "overlap_param_gather_with_optimizer_step",
)  # fmt: skip
FIELDS: dict[str, dict[str, str]] = {
    "train": {name: name for name in ("micro_batch_size", "global_batch_size")},
    "optimizer": {name: name for name in OPTIMIZER},
    "checkpoint": CHECKPOINT,
    "dataset": {"num_workers": "num_workers"},
    "ddp": DDP,
}
"""Our settings by the fields of each section; the section model has settings by their own names."""
OVERLAP = (
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
    "defer_embedding_wgrad_compute",
    "wgrad_deferral_limit",
)
"""Settings that the section comm_overlap has by their own names."""
OF_TOWERS = (
    "vision_config", "thinker_config", "freeze_vision_model", "freeze_vision_projection", "freeze_audio_model", "image_token_id",
    "image_token_index", "media_placeholder_token_id", "audio_token_id", "vision_model_type", "sound_config", "freeze_sound_encoder",
    "freeze_sound_projection", "vit_gradient_checkpointing",
)  # fmt: skip
"""Fields of providers that have a tower (`models/*/*_provider.py`)."""
NOTHING: tuple[Any, ...] = (None, False, "", 0, [], {}, ())


def job_from_bridge(config: Any, num_gpus: int | None, settings: Mapping[str, Any]) -> TrainingJob:
    """See `TrainingJob.from_bridge`."""
    name, settings = "Megatron-Bridge config", in_megatrons_words(settings)
    if isinstance(config, str | os.PathLike):
        name = os.fspath(config)
        config = read_yaml(name)
    if isinstance(config, Mapping):
        config = namespace(config)
    if getattr(config, "model", None) is None:
        raise ConfigError("a Megatron-Bridge config needs the section model")
    if any(getattr(config.model, name, None) not in NOTHING for name in OF_TOWERS):
        raise UnsupportedError(
            "the vision or audio tower of a provider is not modelled: its recipe by name is, or its model by name with these settings"
        )
    values = container_values(config)
    parallel = [values.get(f"{kind}_parallel_size") or 1 for kind in ("tensor_model", "pipeline_model", "context")]
    dp = getattr(config, "data_parallel_size", None)
    degrees = [n for n in (dp, *parallel) if isinstance(n, int) and 0 < n < LARGEST_INTEGER]
    if num_gpus is None and len(degrees) == 1 + len(parallel):
        num_gpus = prod(degrees)
    job = job_from_config({"name": name, **values}, num_gpus, settings)
    return replace(job, warnings=(*not_read(config.model), *job.warnings))


def container_values(config: Any) -> dict[str, Any]:
    """Every setting that the sections of a ConfigContainer say, by our names. Raises UnsupportedError for what is not modelled."""
    refuse(config)
    trained = training_values(config) | peft_values(getattr(config, "peft", None))
    return {**PROVIDER_DEFAULTS, **model_values(config.model), **trained}


def namespace(value: Any) -> Any:
    """Nested mappings as objects; a `_target_` that names a function is its name."""
    if isinstance(value, Mapping):
        target = value.get("_target_")
        if isinstance(target, str) and value.get("_call_") is False:
            return target.rsplit(".", 1)[-1]
        return SimpleNamespace(**{str(key): namespace(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [namespace(item) for item in value]
    return value


def refuse(config: Any) -> None:
    """Raise UnsupportedError for sections and providers that are not modelled."""
    if getattr(getattr(config, "dataset", None), "skip_getting_attention_mask_from_dataset", True) is False:
        raise UnsupportedError(
            "dataset.skip_getting_attention_mask_from_dataset=false is not modelled: every pipeline stage gets a batch with masks then "
            "(Megatron-Bridge training/gpt_step.py)"
        )


def not_read(model: Any) -> tuple[str, ...]:
    """The warnings about attributes that are no fields of a provider and no settings: nothing reads them."""
    known = {*known_settings(), *RENAMED, *UNSUPPORTED, *UNCOUNTED, *IRRELEVANT, *SPELLED}
    fields = fields_of("megatron_bridge")["model"]
    given = [name for name, value in getattr(model, "__dict__", {}).items() if value not in NOTHING]
    return tuple(
        f"model.{name} is no field of a Megatron-Bridge provider and is not read.{nearest(name, [*known, *fields])}"
        for name in given
        if name not in known and name not in fields and not name.startswith("_")
    )


def model_values(model: Any) -> dict[str, Any]:
    """Every setting of the engine that the provider has, by its name or an older one; `not_read` names what is neither."""
    settings: dict[str, Any] = {}
    for name in (*known_settings(), *RENAMED, *UNSUPPORTED, *UNCOUNTED, *SPELLED):
        value = getattr(model, name, None)
        if value is None or name == "world_size":
            continue
        if name == "activation_func":
            value = _function(value)
        elif name == "moe_router_dtype" and not router_dtype(value):
            continue
        elif name.endswith("dtype") or name in ("fp8", "fp4"):
            value = str(value)
        settings[name] = value
    if (
        not getattr(model, "should_pad_vocab", False)
        and "padded_vocab_size" not in settings
        and "vocab_size" in settings
    ):
        settings["padded_vocab_size"] = settings["vocab_size"]
    if getattr(model, "multi_latent_attention", False) and "q_lora_rank" not in settings:
        settings["q_lora_rank"] = None
    if not getattr(model, "cpu_offloading", False):
        settings.pop("cpu_offloading_num_layers", None)  # the number alone does nothing in TransformerConfig
    return settings


def _function(value: Any) -> str:
    word = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    return {"fast_gelu": "gelu", "gelu_tanh": "gelu", "swish": "silu"}.get(word, word)


def training_values(config: Any) -> dict[str, Any]:
    """Batch, optimizer, DDP and precision; mixed precision overwrites the others, as Bridge does."""
    settings: dict[str, Any] = {}
    for section, fields in FIELDS.items():
        for name, ours in fields.items():
            _take(settings, getattr(config, section, None), name, ours)
    settings["checkpoint_loader"] = "megatron_bridge"
    parts = [getattr(config, part, None) for part in ("ddp", "optimizer")]
    either = any(getattr(part, "use_distributed_optimizer", False) for part in parts)
    settings["use_distributed_optimizer"] = either
    for name in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if getattr(getattr(config, "dist", None), name, False):
            settings[name] = True
    if settings.get("use_megatron_fsdp"):
        settings["use_distributed_optimizer"] = True
    ddp = getattr(config, "ddp", None)
    if settings.get("optimizer") == "dist_muon" and not getattr(ddp, "use_distributed_optimizer", False):
        settings["use_layer_wise_param_layout"] = False  # parameters are dealt to ranks, the buffers stay as they are
    settings.update(precision_values(getattr(config, "mixed_precision", None)))
    if settings.get("accumulate_allreduce_grads_in_fp32") is False and settings.get("params_dtype") == "bf16":
        settings["grad_reduce_in_bf16"] = True
    for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        if name in settings:
            settings[name] = str(settings[name])
    overlap = getattr(config, "comm_overlap", None)
    if getattr(overlap, "tp_comm_overlap", False):  # Bridge turns it off without sequence parallelism
        settings["tp_comm_overlap"] = bool(getattr(config.model, "sequence_parallel", False))
    for name in OVERLAP:
        _take(settings, overlap, name, name)
    return settings


PEFT = {"lora": "lora", "canonicallora": "canonical_lora", "canonical_lora": "canonical_lora", "dora": "dora"}
PEFT_DIM = 32


def peft_values(peft: Any) -> dict[str, Any]:
    """The adapters of a PEFT section. Raises UnsupportedError for kinds and options that are not modelled."""
    if peft is None:
        return {}
    if isinstance(peft, SimpleNamespace) and not (getattr(peft, "type", None) or getattr(peft, "_target_", None)):
        raise UnsupportedError(
            f"the peft section ({', '.join(sorted(vars(peft)))}) does not say which adapters: peft.type is lora, canonical_lora or dora"
        )
    kind = str(getattr(peft, "type", None) or getattr(peft, "_target_", None) or type(peft).__name__).rsplit(".", 1)[-1]
    if kind.lower() not in PEFT:
        raise UnsupportedError(f"peft {kind} is not modelled; lora, canonical_lora and dora are")
    for name in ("dropout", "a2a_experimental", "exclude_modules"):
        if getattr(peft, name, None):
            raise UnsupportedError(f"peft.{name}={getattr(peft, name)!r} is not modelled")
    targets = getattr(peft, "target_modules", None) or ()
    if not isinstance(targets, list | tuple) or any(
        not isinstance(word, str) or "*" in word or "." in word for word in targets
    ):
        raise UnsupportedError(
            f"peft.target_modules={shown(targets)} is not modelled; give names of linears such as linear_qkv"
        )
    return {
        "peft": PEFT[kind.lower()], "peft_dim": getattr(peft, "dim", None) or PEFT_DIM,
        "peft_target_modules": tuple(targets),
    }  # fmt: skip


def _take(settings: dict[str, Any], section: Any, name: str, ours: str) -> None:
    value = getattr(section, name, None)
    if value is not None:
        settings[ours] = value


def named_precision(name: str) -> dict[str, Any]:
    """The section mixed_precision that a name means. Raises ConfigError for a name that is none."""
    word = name.replace("-", "_")
    if word not in PRECISIONS:
        raise ConfigError(f"mixed_precision {shown(name)} is not one of {', '.join(PRECISIONS)}")
    half = "fp16" if word.startswith("fp16") else "bf16"
    return {half: True, "grad_reduce_in_fp32": half == "bf16", "fp8_recipe": FP8_RECIPE, **PRECISIONS[word]}


def precision_values(precision: Any) -> dict[str, Any]:
    """What a named precision or a MixedPrecisionConfig sets."""
    if precision is None:
        return {}
    if isinstance(precision, str):
        precision = SimpleNamespace(**named_precision(precision))
    settings: dict[str, Any] = {"fp8_recipe": getattr(precision, "fp8_recipe", None) or FP8_RECIPE}
    for name in LOW_PRECISION:
        _take(settings, precision, name, current_name(name))
    for name in ("bf16", "fp16"):
        if getattr(precision, name, False):
            settings["params_dtype"] = name
    _take(settings, precision, "grad_reduce_in_fp32", "accumulate_allreduce_grads_in_fp32")
    return settings
