"""The tree of a run of verl: hydra's words over the file that they name, and the engine that trains.

Sources: volcengine/verl 0.9.1 `verl/trainer/config/ppo_trainer.yaml`, `ppo_megatron_trainer.yaml`, `model_engine/*.yaml`,
`sft_trainer_engine.yaml`, `verl/trainer/main_ppo.py`, `verl/trainer/sft_trainer.py`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..questions import Question
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .run import Run

OWN = re.compile(
    r"(ppo|sft|dapo|fully_async|one_step_off|spin|sppo|prime|entropy|gspo|grpo)\w*_trainer(_engine)?|evaluation"
)
"""Names of configs in verl and its recipes, whose defaults are verl's."""
NOT_TRAINING = re.compile(r"main_(eval|generation)|generation_server|model_merger|preprocess")
FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
GROUPS = re.compile(
    "actor|algorithm|critic|data|engine|hydra|legacy_data|model|model_engine|npu_profile|optim|profiler|ref|reward|reward_model|"
    "rollout|trainer"
)
"""Groups of verl's `trainer/config`, whose defaults are verl's."""
DEEPEST = 8
"""Files that build on one another."""


def tree_of(run: Run) -> tuple[Tree, list[str], list[Question]]:
    """The settings of a run, what was assumed about files that are not there, and which files are missing.

    A key without a dot (`engine=megatron`) chooses a file of a group.
    """
    notes: list[str] = []
    questions: list[Question] = []
    env = {**run.env, **run.variables}
    if run.document is not None:
        return Tree(_with_bases(run, run.document, "", questions), env), notes, questions
    options, words = parted(run.words)
    base: Mapping[str, Any] = {}
    name = options.get("config-name", "").removesuffix(".yaml")
    if name:
        folder = options.get("config-path", "") or options.get("config-dir", "")
        base = _file(run, folder, name, questions)
    groups = [(key, text) for key, text in words if "." not in key or "@" in key]
    root = overridden(base, [pair for pair in words if pair not in groups])
    chosen = {key.lstrip("+"): text for key, text in groups}
    root["defaults"] = [*_listed(root.get("defaults")), *({key: text} for key, text in chosen.items()), name]
    return Tree(root, env), notes, questions


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found] if isinstance(found, str) else []


def _file(run: Run, folder: str, name: str, questions: list[Question], depth: int = 0) -> dict[str, Any]:
    """A config by its name, with those it builds on; verl's own configs are not looked for."""
    for path in dict.fromkeys((posixpath.join(folder, f"{name}.yaml"), f"{name}.yaml")):
        document = document_of(run, path, "keys of verl", follows=FOLLOWS)
        if document is not None:
            return _with_bases(run, document, posixpath.dirname(path), questions, depth)
    if not OWN.fullmatch(name.rsplit("/", 1)[-1]):
        questions.append(Question(f"{name}.yaml, on which the run builds, is not beside {run.path}; put it there"))
    return {}


def _with_bases(
    run: Run, document: Mapping[str, Any], folder: str, questions: list[Question], depth: int = 0
) -> dict[str, Any]:
    """A file over the files that its `defaults` name; groups of verl's own (`actor@...: megatron_actor`) are left out."""
    if depth > DEEPEST:
        raise ConfigError(f"{run.path} builds on more than {DEEPEST} files, or on itself")
    out: dict[str, Any] = {}
    listed: list[Any] = []
    for one in _listed(document.get("defaults")):
        listed.append(one)
        if isinstance(one, str) and one != "_self_":
            below = _file(run, folder, one.removesuffix(".yaml"), questions, depth + 1)
            listed += _listed(below.pop("defaults", None))
            out = merged(out, below)
        elif isinstance(one, Mapping):
            _refuse_group(run, one)
    out = merged(out, {str(key): each for key, each in document.items() if key != "defaults"})
    return {**out, "defaults": listed}


def _refuse_group(run: Run, entry: Mapping[Any, Any]) -> None:
    """Raises ConfigError for a file of a group (`group: name`) that is none of verl's own, of which no key is read."""
    for key, name in entry.items():
        group = str(key).removeprefix("override ").partition("@")[0].strip("/").partition("/")[0]
        if name is not None and not GROUPS.fullmatch(group):
            raise ConfigError(
                f"{run.path}: defaults names {group}/{shown(str(name))[1:-1]}.yaml, a group that verl does not have and that is not read; "
                "put its keys into the file"
            )


def is_sft(run: Run, tree: Tree) -> bool:
    """Whether the run is of the SFT trainer. Raises UnsupportedError for a program that trains nothing, or with FSDP alone."""
    if NOT_TRAINING.search(run.program):
        raise UnsupportedError(f"{run.program} of verl trains nothing")
    if "fsdp_sft" in run.program:
        raise UnsupportedError(f"{run.program} of verl trains with fsdp; only Megatron is modelled")
    return "sft_trainer" in run.program or (not tree.has("actor_rollout_ref") and tree.has("engine"))


def engine_of(run: Run, tree: Tree, *, sft: bool) -> None:
    """Nothing for Megatron's engine. Raises UnsupportedError that names another."""
    key = "engine" if sft else "actor_rollout_ref.actor.strategy"
    named = [] if sft else [tree.at(key)]
    for one in reversed(_listed(tree.at("defaults"))):
        if isinstance(one, Mapping):
            words = {str(name).removeprefix("override ").strip(): each for name, each in one.items()}
            named.append(words.get("engine") if sft else words.get("model_engine"))
            named.append(words.get("engine@engine") if sft else words.get("actor@actor_rollout_ref.actor"))
        elif isinstance(one, str) and "megatron" in one:
            named.append("megatron")
    named.append(tree.at("engine.strategy") if sft else None)
    if run.document is not None or sft:
        section = "engine.override_transformer_config" if sft else "actor_rollout_ref.actor.megatron"
        named.append("megatron" if tree.section(section) else None)
    engine = next((str(one) for one in named if one), "fsdp")
    if not engine.startswith("megatron"):
        raise UnsupportedError(
            f"{key}={shown(engine)}: this run of verl does not train with Megatron; only megatron is modelled",
            "a run of verl does not train with Megatron",
        )
