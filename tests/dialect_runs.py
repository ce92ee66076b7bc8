"""Runs of dialects for tests: words or a document, and what is beside them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.inputs.dialects.job import job_of
from megatron_memory_estimator.inputs.dialects.run import Run
from megatron_memory_estimator.inputs.dialects.table import dialect_of
from megatron_memory_estimator.inputs.strict_yaml import parse_yaml


def started(program: str, words: str, files: Mapping[str, str] | None = None, **more: Any) -> Run:
    """A run of a program with its words in one text."""
    return Run(path="run.sh", program=program, words=tuple(shlex.split(words)), text_of=dict(files or {}).get, **more)


def written(text: str, files: Mapping[str, str] | None = None, **more: Any) -> Run:
    """A run of a YAML text."""
    return Run(path="run.yaml", document=parse_yaml(text, "run.yaml"), text_of=dict(files or {}).get, **more)


def job(run: Run, num_gpus: int | None = None, **settings: Any) -> TrainingJob:
    """The job of a run, by the dialect that knows it."""
    dialect = dialect_of(run)
    assert dialect is not None
    return job_of(dialect, run, num_gpus, settings)
