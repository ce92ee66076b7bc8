"""Settings that a run may have had instead of those that it is thought to have: what a figure or a snapshot that differs is tried with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..job.training_job import TrainingJob, with_settings
from ..wording import dashed

SWITCHES = (
    "bias_activation_fusion", "apply_rope_fusion", "gradient_accumulation_fusion", "masked_softmax_fusion", "bias_dropout_fusion",
    "moe_permute_fusion", "moe_router_fusion", "use_distributed_optimizer", "accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16",
    "use_precision_aware_optimizer", "create_attention_mask_in_dataloader", "use_te_activation_func",
)  # fmt: skip
"""Settings that are on or off, and change what a run allocates."""
OTHERS: tuple[dict[str, Any], ...] = (
    {"cross_entropy_loss_fusion": False},
    {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"},
    {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
    {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None, "recompute_modules": None},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1, "recompute_modules": None},
    *(
        {"recompute_granularity": "selective", "recompute_modules": modules, "recompute_method": None, "recompute_num_layers": None}
        for modules in (("core_attn",), ("layernorm",), ("mlp",), ("moe_act",), ("moe",), ("mla_up_proj",), ("moe_act", "layernorm"))
    ),
    *(
        {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers, "recompute_modules": None}
        for layers in (1, 2, 3, 4, 6, 8, 12, 16)
    ),
    *({"moe_token_dispatcher_type": kind} for kind in ("alltoall", "allgather", "flex")),
    *({"make_vocab_size_divisible_by": multiple} for multiple in (1, 64, 128, 256, 1024)),
    {"attention_kernel": "flash"}, {"attention_kernel": "fused"}, {"attention_kernel": "unfused"},
    {"transformer_impl": "local"}, {"transformer_impl": "transformer_engine"},
)  # fmt: skip
"""Losses, recomputation, padding and kernels that a run may have had."""


def told(job: TrainingJob, settings: dict[str, Any]) -> TrainingJob:
    """The run with a setting that is tried, of its model too."""
    model = {field.name: settings[field.name] for field in dataclasses.fields(job.model) if field.name in settings}
    return with_settings(
        dataclasses.replace(job, model=dataclasses.replace(job.model, **model)) if model else job, settings
    )


def tried(job: TrainingJob) -> Iterator[dict[str, Any]]:
    """Other settings, one at a time: those that are open, fusions, losses, recomputation, padding of the vocabulary, kernels."""
    for one in job.open_settings:
        yield dict(one.values)
    for name in SWITCHES:
        yield {name: not getattr(job.training, name)}
    known = {field.name for part in (job.model, job.training) for field in dataclasses.fields(part)}
    yield from (settings for settings in OTHERS if settings.keys() <= known)


def options(settings: dict[str, Any]) -> str:
    """Settings as options of the command line."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(dashed(name) if value else f"--no-{dashed(name)[2:]}")
        elif value is not None:
            words.append(f"{dashed(name)} {','.join(value) if isinstance(value, tuple) else value}")
    return " ".join(words) or "no recomputation"
