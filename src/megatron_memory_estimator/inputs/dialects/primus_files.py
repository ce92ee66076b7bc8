"""Primus' YAML files: `${NAME:default}` from the environment, `bases` and `includes`, and where the framework looks for them.

Source: AMD-AIG-AIMA/Primus `primus/core/utils/yaml_utils.py`, `primus/core/launcher/parser.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from .documents import document_of
from .run import Run
from .words import scalar

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
MODELS = "primus/configs/models/megatron/"
"""Where Primus looks for the file of a model, from the root of its repository."""
LANGUAGE_MODEL = "language_model.yaml"
"""The base of all models of the framework; what it says stands in `primus.DEFAULTS`."""
MOST_FILES = 20
DEEPEST = 30


def variables(run: Run) -> dict[str, str]:
    """What `${NAME}` in a file means: the environment, and what the caller gives."""
    return {**run.env, **run.variables}


def substituted(value: Any, env: Mapping[str, str], depth: int = 0) -> Any:
    """A value with variables replaced; one that is set nowhere and has no default stays as it is written."""
    if depth > DEEPEST:
        raise ConfigError(f"mappings stand more than {DEEPEST} deep inside each other")
    if isinstance(value, Mapping):
        return {str(key): substituted(each, env, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [substituted(each, env, depth + 1) for each in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    return scalar(VARIABLE.sub(lambda match: _of(match, env), value))


def _of(match: re.Match[str], env: Mapping[str, str]) -> str:
    name, default = match.group(1), match.group(2)
    if env.get(name) or default is None:
        return env.get(name) or match.group(0)
    return default[1:-1] if len(default) > 1 and default[0] == default[-1] and default[0] in "'\"" else default


def open_variables(value: Any) -> list[str]:
    """The variables that a value still waits for."""
    return [match.group(1) for match in VARIABLE.finditer(value)] if isinstance(value, str) else []


def model_file(run: Run, name: str) -> dict[str, Any] | None:
    """The arguments of a model's file with those of its bases; None where the file is not there.

    Raises ConfigError with the path of a base that is missing.
    """
    left = [MOST_FILES]

    def one(path: str) -> dict[str, Any] | None:
        left[0] -= 1
        if left[0] < 0:
            raise ConfigError(f"{shown(name)}: more than {MOST_FILES} files are its bases")
        held = document_of(run, path, "a mapping", empty=True)
        if held is None:
            return None
        tree = substituted(held, variables(run))
        found: dict[str, Any] = {}
        for base in (*_listed(tree.pop("bases", None), path), *_listed(tree.pop("includes", None), path)):
            where = path.rpartition("/")[0] + "/" + base
            inner = one(where)
            if inner is None and base.rpartition("/")[2] != LANGUAGE_MODEL:
                raise ConfigError(
                    f"{shown(where)[1:-1]}, a base of {shown(path)[1:-1]}, is not there; put it beside it"
                )
            found |= inner or {}
        found |= tree
        return found

    return one(MODELS + name)


def _listed(value: Any, path: str) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"{shown(path)}: bases and includes must be lists of files")
    return names
