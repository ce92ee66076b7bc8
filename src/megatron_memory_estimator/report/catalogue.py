"""Models of the catalogue, with parameters also where their memory is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, UnsupportedError
from ..inputs.catalog import entries
from ..inputs.hf import load
from ..inputs.loaded_model import LoadedModel
from ..inputs.resolve import model_of
from ..job.hardware import CATALOGUE, Gpu
from ..job.tower import lacking
from ..modules.counts import count_parameters
from ..wording import plain


def model_facts(name: str, read: Callable[[str], LoadedModel] = load) -> dict[str, Any]:
    """Name, source, parameters, and why its memory is refused, if it is. Raises ConfigError for an unknown model."""
    try:
        loaded = read(name)
    except UnsupportedError as error:
        return {
            "name": name, "source": "", "model_type": "", "num_parameters": None, "refused": str(error), "not_counted": None,
        }  # fmt: skip
    count = count_parameters(model_of(loaded))
    return {
        "name": loaded.name,
        "source": loaded.source,
        "model_type": loaded.model_type,
        "num_parameters": {"total": count.total, "active": count.active, "mtp": count.mtp},
        "refused": loaded.refusal or None,
        "not_counted": lacking(loaded.towers) or None,
    }


def chosen(word: str) -> list[str]:
    """The bundled models that a word is part of; nothing where the word names one model, or a file."""
    return [] if os.path.exists(word) else matching(word)


def matching(word: str) -> list[str]:
    """The bundled models that a word is part of, by name or type; nothing where the word names one model, or something else."""
    named = [name for name in entries() if word.lower() in (name.lower(), name.partition("/")[2].lower())]
    if len(named) == 1:
        return []
    return [
        name for name, entry in entries().items() if word.lower() in f"{name} {entry['config']['model_type']}".lower()
    ]


def model_record(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a model as one flat record."""
    count = facts["num_parameters"] or dict.fromkeys(("total", "active", "mtp"))
    return {
        "name": plain(facts["name"]),
        "model_type": plain(facts["model_type"]),
        **{f"num_parameters_{kind}": number for kind, number in count.items()},
        "supported": not facts["refused"],
        "memory": "modelled" if not facts["refused"] else "parameters only" if facts["num_parameters"] else "refused",
        "not_counted": facts["not_counted"],
        "reason": plain(facts["refused"] or "").removeprefix(f"{plain(facts['name'])}: "),
    }


def _source(gpu: Gpu) -> str:
    return f"{gpu.source}; nothing else is known of it" if gpu.chip_unknown else gpu.source


def gpu_facts(word: str = "") -> list[dict[str, Any]]:
    """The GPUs with a word in their names. Raises ConfigError where there is none."""
    shown = [gpu for gpu in CATALOGUE if any(word.lower() in name.lower() for name in (gpu.name, *gpu.aliases))]
    if not shown:
        raise ConfigError(f'no GPU has "{plain(word)}" in its name; `megatron-memory gpus` lists them')
    return [
        {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "aliases": list(gpu.aliases), "source": _source(gpu)}
        for gpu in shown
    ]
