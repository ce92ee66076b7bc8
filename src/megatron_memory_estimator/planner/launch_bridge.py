"""How to launch a planned run with Megatron-Bridge: sections of its configuration, and overrides of a recipe."""

from __future__ import annotations

import shlex
from typing import Any

from ..inputs.bridge_config import CHECKPOINT, DDP, OPTIMIZER
from ..job.model import Model
from ..job.training_job import TrainingJob
from .launch_settings import settings_of

RUN = (
    "world_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "cp_comm_type",
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "fp8",
    "fp8_recipe",
    "fp4",
    "use_distributed_optimizer",
    "use_precision_aware_optimizer",
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
)
"""Settings that a plan decides, or takes from published recipes."""
RESET = (
    "virtual_pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pipeline_model_parallel_layout",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
)
"""Settings that a recipe may have and a plan may leave off."""


ELSEWHERE = (
    "world_size",
    "params_dtype",
    "grad_reduce_in_bf16",
    "accumulate_allreduce_grads_in_fp32",
    "checkpoint_loader",
)
"""Settings that are said in another way."""
NEMO = ("parallel_attention", "num_ln_in_parallel_attn")
"""Settings of a layer of NeMo's, which Megatron-Bridge's models do not have."""
OWN = frozenset(
    {
        "variants", "layer_variants", "mtp_layer_variant", "mtp_layer_variant_behind", "norm_placement", "attention_block", "mlp_block",
        "core_attention", "qk_layernorm_scope", "value_channels", "local_rotary_table", "sliding_window", "attn_logit_softcapping",
        "final_logit_softcapping", "activation_func_clamp_value_shared_expert",
    }
)  # fmt: skip
"""What the class of a provider says by itself; it stands there only where a model has it."""


def bridge_sections(job: TrainingJob) -> dict[str, dict[str, Any]]:
    """The run as sections of a Megatron-Bridge ConfigContainer (Megatron-Bridge `training/config.py`)."""
    t = job.training
    settings = settings_of(job)
    inverse, checkpoint = ({ours: theirs for theirs, ours in names.items()} for names in (DDP, CHECKPOINT))
    sections: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "optimizer": {}, "ddp": {}, "mixed_precision": {}}
    sections["mixed_precision"][t.params_dtype] = True
    sections["mixed_precision"]["grad_reduce_in_fp32"] = t.grad_dtype == "fp32"
    for name, value in settings.items():
        if value is None or name in ELSEWHERE or (name in NEMO and not job.model.parallel_attention):
            continue
        if name in OWN and value == getattr(Model, name):
            continue
        if name in ("micro_batch_size", "global_batch_size"):
            sections["train"][name] = value
        elif name in OPTIMIZER:
            sections["optimizer"][name] = value
        elif name in checkpoint:
            sections.setdefault("checkpoint", {})[checkpoint[name]] = value
        elif name in inverse:
            sections["ddp"][inverse[name]] = value
        elif name == "use_distributed_optimizer":
            sections["ddp"][name] = sections["optimizer"][name] = value
        elif name.startswith(("fp8", "fp4", "first_last", "num_layers_at")):
            sections["mixed_precision"][name] = value
        else:
            sections["model"][name] = value
    if job.model.padded_vocab_size is None:
        sections["model"]["should_pad_vocab"] = True
    if job.model.q_lora_rank is None:
        sections["model"]["q_lora_rank"] = None
    return sections


def bridge_overrides(job: TrainingJob) -> list[str]:
    """What a plan decides, as overrides of a recipe: section.name=value. All else (fusions, dtypes, vocabulary) stays the recipe's own, so
    that its bytes may be others than the plan's: `estimate` of the recipe with these words says them."""
    sections = bridge_sections(job)
    settings = settings_of(job)
    found = [f"model.{name}=null" for name in RESET if settings[name] is None]  # whatever the recipe has
    if not job.training.low_precision:
        found += ["mixed_precision.fp8=null", "mixed_precision.fp4=null"]
    found.append(
        f"dataset.seq_length={job.training.seq_length}"
    )  # Bridge asserts that model and data set have the same
    for section, values in sections.items():
        for name, value in values.items():
            ours = DDP.get(name, name) if section == "ddp" else name
            if ours in RUN and not _idle(job, name):
                found.append(f"{section}.{name}={_hydra(value)}")
    return found


def _idle(job: TrainingJob, name: str) -> bool:
    """Whether an override would say what holds anyway."""
    t = job.training
    return (
        (name in ("fp8", "fp4", "fp8_recipe") and not t.low_precision)
        or (name == "recompute_modules" and t.recompute_modules is None)
        or (name == "optimizer_offload_fraction" and not t.optimizer_cpu_offload)
        or (name.startswith(("expert_", "moe_")) and not job.model.num_moe_experts)
        or (name == "moe_flex_dispatcher_backend" and t.moe_token_dispatcher_type != "flex")
        or (name == "cp_comm_type" and job.layout.cp == 1)
    )


def _hydra(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return shlex.quote("[" + ",".join(map(str, value)) + "]")
    return shlex.quote(str(value))
