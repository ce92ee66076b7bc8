"""The tables of docs/reference/doors.md: what doors decide, and what that is in bytes for models of different families."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from docs_markdown import markdown

GIB = 2**30

MODELS: dict[str, dict[str, int]] = {
    "Qwen/Qwen3-8B": {"tp": 2, "num_gpus": 8},
    "meta-llama/Meta-Llama-3-8B": {"tp": 2, "num_gpus": 8},
    "Qwen/Qwen3-30B-A3B": {"ep": 8, "tp": 2, "num_gpus": 16},
    "deepseek-ai/DeepSeek-V2-Lite": {"ep": 8, "num_gpus": 16},
    "openai/gpt-oss-20b": {"ep": 8, "num_gpus": 16},
    "google/gemma-2-2b": {"tp": 2, "num_gpus": 8},
    "zai-org/GLM-4.5-Air": {"tp": 4, "pp": 2, "ep": 8, "num_gpus": 64},
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {"tp": 2, "ep": 8, "num_gpus": 16},
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {"tp": 2, "pp": 2, "ep": 8, "num_gpus": 32},
    "tiiuae/Falcon-H1-7B-Instruct": {"num_gpus": 8},
}
"""A model of a family each, in a layout."""


def doors() -> str:
    """The doors: what each builds on, and what it decides for all families."""
    from megatron_memory_estimator.inputs.door_defaults import own, rows
    from megatron_memory_estimator.job.choices import DOORS

    bases = {row.door: row.base for row in rows()}
    inner = sorted({*bases} - {*DOORS})
    return markdown(
        ("`--door`", "", "builds on", "decides for all families"),
        [
            (f"`{name}`", DOORS.get(name, "no door of its own"), bases.get(name, ""), _listed(own(name, by_name=True)))
            for name in (*DOORS, *inner)
        ],
    )


def families() -> str:
    """What doors decide by family."""
    from megatron_memory_estimator.inputs.door_defaults import rows

    found: dict[tuple[str, str, object], str] = {
        (row.door, row.setting, row.value): row.families for row in rows() if row.families != "*"
    }
    return markdown(
        ("door", "setting", "families"),
        [(f"`{door}`", _listed({name: value}), families) for (door, name, value), families in found.items()],
    )


def _listed(values: dict[str, object]) -> str:
    words = {True: "on", False: "off", None: "default"}
    shown: Iterator[str] = (
        f"`{name}` {words[value] if isinstance(value, bool) or value is None else value}"
        for name, value in values.items()
    )
    return ", ".join(shown)


def door_bytes() -> str:
    """The peak through each door less the one through `pretrain_gpt.py`, by model."""
    from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
    from megatron_memory_estimator.job.choices import DOORS

    table: dict[str, list[str]] = defaultdict(list)
    for model, layout in MODELS.items():
        base = estimate(TrainingJob.from_hf(model, **layout)).peak_stage.peak_allocated_bytes
        for door in DOORS:
            if door == "megatron-lm":
                table[model].append(f"{base / GIB:.2f}")
                continue
            try:
                job = TrainingJob.from_hf(model, **layout, door=door)
                peak = estimate(job).peak_stage.peak_allocated_bytes
                table[model].append(f"{(peak - base) / GIB:+.2f}")
            except EstimatorError:
                table[model].append("refused")
    return markdown(
        ("model, layout", *DOORS),
        [(f"{name.split('/')[1]}, {_layout(MODELS[name])}", *cells) for name, cells in table.items()],
    )


def _layout(sizes: dict[str, int]) -> str:
    return ", ".join(f"{key} {size}" for key, size in sizes.items()).replace("num_gpus", "GPUs")


TABLES = {"doors": doors, "door-families": families, "door-bytes": door_bytes}
