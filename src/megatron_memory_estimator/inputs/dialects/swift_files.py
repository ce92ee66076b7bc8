"""What a run of ms-swift is given: the words of its command, a YAML or JSON file, and the environment of its launcher.

Source: modelscope/ms-swift 4.6.0 `swift/cli/_megatron/main.py`, `swift/cli/main.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown, whole
from ..questions import Question
from ..strict_yaml import parse_yaml
from .documents import needed
from .run import Run
from .words import flags, value_of


def values_of(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys and values, and the environment that a file sets where the run does not."""
    if run.document is not None:
        document: Mapping[str, Any] = run.document
        words: dict[str, list[str]] = {}
    else:
        words, first = flags(run.words)
        document = _file(run, first[0]) if first else {}
    env = document.get("ENV") or {}
    if not isinstance(env, Mapping):
        raise ConfigError(f"{run.path}: ENV must hold variables, not {shown(repr(env))}")
    values = {str(key).replace("-", "_"): value for key, value in document.items()}
    values |= {key: value_of(each) for key, each in words.items()}
    extra = values.get("megatron_extra_kwargs")
    if isinstance(extra, str):
        extra = parse_yaml(extra, "megatron_extra_kwargs")
    if isinstance(extra, Mapping):
        values |= {str(key): value for key, value in extra.items()}
    return values, {str(key): str(value) for key, value in env.items()}


def _file(run: Run, path: str) -> Mapping[str, Any]:
    """The YAML or JSON file that is given as the first word."""
    missing = f"{shown(path)}, which holds the options of {run.program}, is not beside {run.path}; put it there"
    return needed(run, path, "keys of ms-swift", missing)


def gpus_of(run: Run, env: Mapping[str, str], questions: list[Question]) -> int | None:
    """Processes of the launcher: NPROC_PER_NODE for each of NNODES; without both a single one of the command."""
    if run.gpus_unknown or run.program.endswith(".py"):
        return run.num_gpus
    if run.document is not None and run.num_gpus is None and "NPROC_PER_NODE" not in env:
        asked = "the file does not say the number of GPUs (NPROC_PER_NODE and NNODES of the command's environment do)"
        questions.append(Question(asked, "--num-gpus N"))
        return None
    counts = [whole(env.get(name) or "1") for name in ("NPROC_PER_NODE", "NNODES")]
    if not all(counts):
        questions.append(Question("NPROC_PER_NODE and NNODES are not both numbers of at least 1", "--num-gpus N"))
        return None
    return (counts[0] or 1) * (counts[1] or 1)
