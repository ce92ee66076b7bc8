"""A run in a file, or in its text: a YAML run description, a YAML file of Megatron-LM arguments, or a launch script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...job.training_job import TrainingJob
from .. import YAML
from ..hf.convert import convert
from ..hf.load import parse
from ..loaded_model import LoadedModel
from ..megatron.files import Caller, from_mapping_file, from_script
from ..megatron.job import job_from_args
from ..resolve import job_from_parts
from ..text_files import read_run_yaml
from .other_programs import refuse_other_programs
from .run_config import SECTIONS, job_from_document, job_from_yaml

SCRIPT = re.compile(
    r"(?m)\A#!|^\s*(?:export|torchrun|srun|python3?|deepspeed|mpirun|exec|set)\s|^\s*[A-Za-z_][A-Za-z0-9_]*="
)
"""What a launch script begins with, or has at the beginning of a line."""


def job_from_file(path: str, num_gpus: int | None, settings: dict[str, Any], more: Sequence[str] = ()) -> TrainingJob:
    """The job of a file; `more` are Megatron-LM arguments behind --, which win over the file's.

    Raises ConfigError for a file that is none of ours, by the name of the program that it belongs to where that is known.
    """
    if path.lower().endswith(YAML) and has_sections(read_run_yaml(path)[0]):
        if more:
            raise ConfigError(f"{path} is a run description; arguments behind -- go with Megatron-LM arguments only")
        refuse_other_programs(read_run_yaml(path)[0], path)
        return job_from_yaml(path, num_gpus, **_without_words(settings))
    return TrainingJob.from_megatron_args(path, num_gpus, more_arguments=list(more), **settings)


def job_from_text(
    text: str, num_gpus: int | None, settings: Mapping[str, Any], named: Callable[[str], LoadedModel]
) -> TrainingJob:
    """The job of the text of a config.json, a YAML file, or a launch script; `named` gives a model by its name.

    Raises ConfigError for a text that is none of them.
    """
    from ..strict_yaml import LARGEST_YAML, parse_yaml

    where = "the text"
    if len(text) > LARGEST_YAML:
        raise ConfigError(f"{where} is longer than {LARGEST_YAML} characters")
    if text.lstrip().startswith("{"):
        loaded = convert(parse(text.encode("utf-8", "replace"), where), "config.json", where)
        return job_from_parts(loaded, num_gpus, settings, habits=True)
    ignoring = bool(settings.get("ignore_unknown"))
    if SCRIPT.search(text):
        found = from_script(
            text, where, "", Caller(_variables(settings), settings.get("words") or ()), ignore_unknown=ignoring
        )
        return job_from_args(found, num_gpus, settings)
    repeated: list[str] = []
    document = parse_yaml(text, where, repeated)
    if not isinstance(document, dict):
        raise ConfigError(f"{where} is neither a config.json nor a YAML mapping nor a launch script")
    refuse_other_programs(document, where)
    if has_sections(document):
        return job_from_document(parse_yaml(text, where), where, num_gpus, _without_words(settings), named)
    found = from_mapping_file(document, where, "", _variables(settings), repeated, ignore_unknown=ignoring)
    return job_from_args(found, num_gpus, settings)


def _variables(settings: Mapping[str, Any]) -> Mapping[str, str]:
    """The variables that the caller gives."""
    variables = settings.get("set_variables") or {}
    if not isinstance(variables, Mapping) or not all(isinstance(v, str) for pair in variables.items() for v in pair):
        raise ConfigError("set_variables must hold words by name")
    return variables


def _without_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that are about words of a command line."""
    return {
        name: value
        for name, value in settings.items()
        if name not in ("set_variables", "words", "follow", "ignore_unknown")
    }


def has_sections(document: Mapping[Any, Any]) -> bool:
    """Whether a YAML document is a run description, and not Megatron-LM arguments."""
    if "MODEL_ARGS" in document or any(str(key).startswith("--") for key in document):
        return False
    return any(key in SECTIONS for key in document) or all(isinstance(v, dict) or v is None for v in document.values())
