"""Primus' YAML files: `${NAME:default}` from the environment, `extends`, and where the framework looks for them.

Source: AMD-AGI/Primus `primus/core/config/yaml_loader.py` (parse_yaml, _resolve_env, _apply_extends), `merge_utils.py`,
`primus/core/launcher/parser.py`; before November 2025 `bases` and `includes` (`primus/core/utils/yaml_utils.py`).

The models that Primus has files for, by the catalogue's names.

Source: AMD-AIG-AIMA/Primus `primus/configs/models/megatron/`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from .documents import document_of
from .hydra import merged
from .run import Run
from .words import scalar

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
FOLDER_OF_MODELS = "primus/configs/models/megatron/"
"""Where Primus looks for the file of a model, from the root of its repository."""
MODULES = "primus/configs/modules/megatron/"
"""Where it looks for the file of a module."""
FOLLOWS = ("extends", "bases", "includes")
"""Keys of a file that name the files it builds on."""
OWN_FILES = frozenset(
    ["language_model.yaml", "primus_megatron_model.yaml", "pre_trainer.yaml", "trainer_base.yaml", "module_base.yaml"]
)
"""Files of the framework on which the others build; what they say stands in `primus.DEFAULTS`."""
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


def model_file(run: Run, name: str, old: dict[str, None]) -> dict[str, Any] | None:
    """The arguments of a model's file with those of the files it extends; None where it is not there. `old` as in `extended`.

    Raises ConfigError with the path of a file that is missing.
    """
    return _from_folder(run, FOLDER_OF_MODELS, name, old)


def module_file(run: Run, name: str, old: dict[str, None]) -> dict[str, Any] | None:
    """The same of a module's file (`config: pre_trainer.yaml`)."""
    return _from_folder(run, MODULES, name, old)


def _from_folder(run: Run, folder: str, name: str, old: dict[str, None]) -> dict[str, Any] | None:
    path = folder + (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    held = document_of(run, path, "a mapping", empty=True, follows=FOLLOWS)
    return None if held is None else extended(run, held, path, old)


def extended(run: Run, document: Mapping[str, Any], path: str, old: dict[str, None]) -> dict[str, Any]:
    """A document over the files that it extends, the first of a list lowest; variables are replaced in each file by itself.

    A path is relative to the folder of the file that says it. Mappings are merged key by key, lists and values replaced whole.
    `bases` and `includes` are read as their authors meant them; those that stand anywhere are put into `old`. Raises ConfigError with
    the path of a file that is missing; what the framework's own files say stands in `primus.DEFAULTS`.
    """
    left = [MOST_FILES]

    def one(document: Mapping[str, Any], path: str) -> dict[str, Any]:
        tree = substituted(document, variables(run))
        found: dict[str, Any] = {}
        old.update(dict.fromkeys(key for key in FOLLOWS[1:] if tree.get(key)))
        for key in FOLLOWS:
            for name in _listed(tree.pop(key, None), key, path):
                left[0] -= 1
                if left[0] < 0:
                    raise ConfigError(f"{shown(path)[1:-1]} builds on more than {MOST_FILES} files, or on itself")
                where = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                inner = document_of(run, where, "a mapping", empty=True, follows=FOLLOWS)
                if inner is None and posixpath.basename(where) not in OWN_FILES:
                    raise ConfigError(
                        f"{shown(where)[1:-1]}, which {shown(path)[1:-1]} {key}, is not there; put it at that path"
                    )
                found = merged(found, one(inner or {}, where))
        return merged(found, tree)

    return one(document, path)


def passed_over_today(old: Iterable[str]) -> tuple[str, ...]:
    """The warning about keys that the framework read before November 2025 and passes over now."""
    keys = " and ".join(old)
    return (f"Primus since 28 November 2025 passes {keys} over; read as extends",) if keys else ()


def _listed(value: Any, key: str, path: str) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"{shown(path)[1:-1]}: {key} must be a list of files")
    return names


MODELS = {
    "llama2_7B": "meta-llama/Llama-2-7b-hf",
    "llama2_13B": "meta-llama/Llama-2-13b-hf",
    "llama2_70B": "meta-llama/Llama-2-70b-hf",
    "llama3_8B": "meta-llama/Meta-Llama-3-8B",
    "llama3_70B": "meta-llama/Meta-Llama-3-70B",
    "llama3.1_8B": "meta-llama/Llama-3.1-8B",
    "llama3.1_70B": "meta-llama/Llama-3.1-70B",
    "llama3.1_405B": "meta-llama/Llama-3.1-405B",
    "llama3.2_1B": "meta-llama/Llama-3.2-1B",
    "llama3.2_3B": "meta-llama/Llama-3.2-3B",
    "llama3.3_70B": "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek_v2_lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "mixtral_8x7B_v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral_8x22B_v0.1": "mistralai/Mixtral-8x22B-v0.1",
    "qwen2.5_7B": "Qwen/Qwen2.5-7B",
    "qwen2.5_72B": "Qwen/Qwen2.5-72B",
    "qwen3_8B": "Qwen/Qwen3-8B",
    "qwen3_32B": "Qwen/Qwen3-32B",
    "qwen3_30B_A3B": "Qwen/Qwen3-30B-A3B",
    "qwen3_235B_A22B": "Qwen/Qwen3-235B-A22B",
    "gpt_oss_20B": "openai/gpt-oss-20b",
    "gpt_oss_120B": "openai/gpt-oss-120b",
}
