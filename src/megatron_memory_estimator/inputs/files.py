"""A run in a file: a YAML run description, a YAML file of Megatron-LM arguments, or a launch script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from ..job import TrainingJob
from . import YAML
from .run_config import SECTIONS, job_from_yaml
from .text_files import read_yaml


def job_from_file(path: str, num_gpus: int | None, settings: dict[str, Any], more: Sequence[str] = ()) -> TrainingJob:
    """The job of a file; `more` are Megatron-LM arguments behind --, which win over the file's."""
    if path.lower().endswith(YAML) and _has_sections(path):
        if more:
            raise ConfigError(f"{path} is a run description; arguments behind -- go with Megatron-LM arguments only")
        for name in ("set_variables", "ignore_unknown"):
            settings.pop(name, None)
        return job_from_yaml(path, num_gpus, **settings)
    return TrainingJob.from_megatron_args(path, num_gpus, more_arguments=list(more), **settings)


def _has_sections(path: str) -> bool:
    document = read_yaml(path)
    if "MODEL_ARGS" in document or any(str(key).startswith("--") for key in document):
        return False
    return any(key in SECTIONS for key in document) or all(isinstance(v, dict) or v is None for v in document.values())
