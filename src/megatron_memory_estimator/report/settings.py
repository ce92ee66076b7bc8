"""Every setting that a user can give, as a document: its names, topic, kind of value, choices, default and help."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..inputs.setting_names import known_settings
from ..inputs.topics import TOPICS, topic
from ..job.hardware import CATALOGUE, DEFAULT_GPU
from ..job.layout import SHORT
from ..job.settings import field_kind

SCHEMA = "megatron-memory-settings/1"
SHORT_NAMES = {**{full: short for short, full in SHORT.items()}, "world_size": "num_gpus"}
BESIDE: tuple[tuple[str, str, Any, str], ...] = (
    ("gpu", "str", DEFAULT_GPU, "GPU that is judged, and that kernels are chosen for"),
    ("strict", "bool", False, "refuse to decide the number of GPUs and the split of layers that do not divide"),
    ("set_variables", "object", None, "values of variables and positional words of a launch script"),
    ("run_model", "str", None, "the model, or recipe of Megatron-Bridge, of a run file that names none"),
    ("ignore_unknown", "bool", False, "pass over unknown Megatron-LM arguments, with a warning"),
    (
        "without_unmodelled",
        "bool",
        False,
        "leave arguments of forks that are not modelled out of the figures, which are a bound then",
    ),
)
"""Settings that no dataclass of a job has: name, kind, default, help."""
UNITS = {
    "tokens": (
        "seq_length", "max_position_embeddings", "original_max_position_embeddings", "sliding_window", "image_tokens", "audio_tokens",
        "loss_chunk_size", "log_prob_micro_batch_tokens", "train_tokens",
    ),
    "sequences": ("micro_batch_size", "global_batch_size"),
    "GPUs": ("world_size", "gpus_per_node", "nvlink_domain"),
    "GiB": ("context_gib", "libraries_gib", "nccl_gib"),
    "GB/s": ("network_gbs", "storage_gbs"),
    "bytes": ("weight_sync_bytes",),
    "elements": ("min_offloaded_tensor_size", "suggested_communication_unit_size", "ddp_bucket_size"),
    "layers": (
        "num_layers", "num_layers_per_virtual_pipeline_stage", "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage", "recompute_num_layers", "cpu_offloading_num_layers", "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16",
    ),
    "microbatches": ("microbatch_group_size_per_vp_stage", "wgrad_deferral_limit"),
    "steps": ("cuda_graph_warmup_steps", "save_interval"),
    "dollars": ("gpu_hour_dollars",),
    "hours": ("gpu_mtbf_hours",),
    "minutes": ("restart_minutes",),
}  # fmt: skip
"""What a number counts, where its name or help says so."""


def settings_document() -> dict[str, Any]:
    """Schema `megatron-memory-settings/1`: settings by topic, in the order of `--help-all`."""
    order = {title: place for place, title in enumerate(TOPICS)}
    found = [*_fields(), *_beside()]
    return {
        "schema": SCHEMA,
        "topics": list(TOPICS),
        "settings": sorted(found, key=lambda one: order.get(one["topic"], len(order))),
    }


def _fields() -> Iterator[dict[str, Any]]:
    for name, part in known_settings().items():
        field = next(field for field in dataclasses.fields(part) if field.name == name)
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        yield {
            **_setting(name, field_kind(field), default, str(field.metadata["help"])),
            "choices": list(field.metadata.get("choices") or ()),
            "words": dict(field.metadata.get("words") or {}),
            "null": "None" in str(field.type),
        }


def _beside() -> Iterator[dict[str, Any]]:
    for name, kind, default, text in BESIDE:
        choices = [gpu.name for gpu in CATALOGUE] if name == "gpu" else []
        yield {**_setting(name, kind, default, text), "choices": choices, "words": {}, "null": default is None}


def _setting(name: str, kind: str, default: Any, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "short": SHORT_NAMES.get(name),
        "topic": topic(name),
        "kind": kind,
        "default": default,
        "unit": next((unit for unit, names in UNITS.items() if name in names), None),
        "help": text,
    }
