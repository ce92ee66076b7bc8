"""The settings of a job by name, and those that another job has not."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..inputs.effects import OWNERS
from ..job.model import Model
from ..job.training_job import TrainingJob
from ..modules.kinds import owners_of

PARTS = ("model", "layout", "training")


def settings_of(job: TrainingJob) -> dict[str, Any]:
    """Every setting of the model, the layout and the training by name."""
    return {
        f.name: getattr(getattr(job, part), f.name)
        for part in PARTS
        for f in dataclasses.fields(getattr(job, part))
        if not f.metadata.get("internal")
    }


def differing(job: TrainingJob, other: TrainingJob) -> dict[str, Any]:
    """Settings of a job that another one has not."""
    mine, theirs = settings_of(job), settings_of(other)
    return {name: value for name, value in mine.items() if theirs[name] != value and not _same(job, other, name)}


def _same(job: TrainingJob, other: TrainingJob, name: str) -> bool:
    """Whether a setting says the same with another spelling: a default written out, or what nothing depends on."""
    model, theirs = job.model, other.model
    if name == "expert_tensor_parallel_size":
        return job.layout.etp == other.layout.etp or not model.num_moe_experts
    if name in ("vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by"):
        return model.padded_vocab(job.layout.tp) == theirs.padded_vocab(other.layout.tp)
    if name == "num_query_groups":
        return model.groups == theirs.groups
    if name in ("kv_channels", "ffn_hidden_size", "moe_ffn_hidden_size"):
        return (model.head_dim, model.ffn, model.moe_ffn) == (
            theirs.head_dim,
            theirs.ffn,
            theirs.moe_ffn,
        ) or model.multi_latent_attention
    if name in ("moe_layer_freq", "hybrid_layer_pattern", "linear_attention_freq", "csa_compress_ratios"):
        alike = model.mtp_kinds == theirs.mtp_kinds and model.mtp_kinds_behind == theirs.mtp_kinds_behind
        return model.kinds == theirs.kinds and alike
    if name in ("transformer_engine_version", "megatron_core_version"):
        return False
    if name in OWNERS:
        return not concerns(model, name)
    if name == "max_position_embeddings":
        return model.position_embedding_type != "learned_absolute"
    if name == "apply_rope_fusion":
        return model.position_embedding_type in ("learned_absolute", "none")
    if name == "mtp_num_layers":
        return model.mtp == theirs.mtp
    if name == "accumulate_allreduce_grads_in_fp32":
        return job.training.grad_dtype == other.training.grad_dtype
    return False


def concerns(model: Model, name: str) -> bool:
    """Whether a model has what a setting is about."""
    return name not in OWNERS or OWNERS[name] in owners_of(model)
