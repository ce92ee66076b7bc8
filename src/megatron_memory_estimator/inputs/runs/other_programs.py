"""YAML files that look like a run description and belong to another program.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/training/utils/omegaconf_utils.py` (override files), NVIDIA/NeMo
`examples/nlp/language_modeling/conf/` (NeMo 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import all_of
from ..text_files import shortened

OF_BRIDGE = frozenset(
    ("train", "optimizer", "ddp", "dataset", "mixed_precision", "scheduler", "checkpoint", "logger", "rng", "peft", "comm_overlap",
     "profiling", "dist", "tokenizer", "validation")
)  # fmt: skip
"""Sections of a ConfigContainer that a run description of ours has not."""
OF_NEMO_ONE = frozenset(("trainer", "exp_manager"))


def refuse_other_programs(document: Mapping[Any, Any], path: str) -> None:
    """Refuses override files of Megatron-Bridge and files of NeMo 1 by name."""
    keys = {key for key in document if isinstance(key, str)}
    if found := keys & OF_NEMO_ONE:
        raise ConfigError(
            f"{shortened(path)} is a file of NeMo 1 ({all_of(sorted(found))}), another implementation with other "
            "defaults, which is not read"
        )
    if "model" in keys and (found := keys & OF_BRIDGE):
        raise ConfigError(
            f"{shortened(path)} is an override file of Megatron-Bridge ({all_of(sorted(found))}): it is laid over a recipe and "
            "names no model; give the model and the settings as options: megatron-memory estimate MODEL --num-gpus N ..."
        )
