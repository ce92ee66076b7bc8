"""The tree of a run of NeMo-RL: a file over the files that its `defaults` name, and words over both.

Source: NVIDIA-NeMo/RL `nemo_rl/utils/config.py` (load_config, parse_hydra_overrides), `examples/run_*.py`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import shown
from ..questions import Question
from .documents import document_of
from .hydra import Tree, merged, overridden, parted
from .launched import UNKNOWN
from .nemo_rl_bases import base_of, defaults_of
from .run import Run

FOLLOWS = ("defaults",)
"""Keys of a file that name the files it builds on."""
DEEPEST = 16
"""Files that build on one another."""
OWN_CONFIG = {"grpo": "grpo_math_1B.yaml", "sft": "sft.yaml"}
"""Configs that scripts take where none is given."""


class _Files:
    """Files below a run: what was assumed of those that are not there, and which are asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.notes: list[str] = []
        self.questions: list[Question] = []

    def whole(self, document: Mapping[str, Any], folder: str, depth: int = 0) -> dict[str, Any]:
        """A document over its bases, the last of a list above the others."""
        if depth > DEEPEST:
            raise ConfigError(f"{self.run.path} builds on more than {DEEPEST} files, or on itself")
        bases = document.get("defaults")
        out: dict[str, Any] = {}
        for name in [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else []:
            if not isinstance(name, str):
                raise ConfigError(f"defaults of {self.run.path} must be names of files, not {shown(name)}")
            out = merged(out, self.base(posixpath.normpath(posixpath.join(folder, name)), depth))
        return merged(out, {str(key): each for key, each in document.items() if key != "defaults"})

    def base(self, path: str, depth: int) -> dict[str, Any]:
        """A base by its path: beside the run, or the framework's own."""
        document = document_of(self.run, path, "keys of NeMo-RL", follows=FOLLOWS)
        if document is not None:
            return self.whole(document, posixpath.dirname(path), depth + 1)
        own = base_of(path)
        if own is None and (waits := UNKNOWN.search(path)):
            self.questions.append(
                Question(f"the config is {shown(path)}, and nothing sets {waits[1]}", f"--set {waits[1]}=PATH")
            )
            return {}
        name = path.rsplit("/", 1)[-1]
        if own is None:
            self.questions.append(
                Question(f"{shown(path)}, on which {self.run.path} builds, is not there; put it beside the file")
            )
            return {}
        self.notes.append(f"defaults of {name} of NeMo-RL's own repository: the file is not beside {self.run.path}")
        return own


def tree_of(run: Run) -> tuple[Tree, list[str], list[Question]]:
    """The settings of a run, what was assumed about bases that are not there, and which are missing."""
    files = _Files(run)
    if run.document is not None:
        own, root = dict(run.document), files.whole(run.document, "")
    else:
        options, words = parted(run.words)
        path = options.get("config") or OWN_CONFIG.get(_script(run), f"the config of {run.script}")
        own, root = overridden({}, words), overridden(files.base(path, 0), words)
    whole = merged(defaults_of("sft" if "sft" in root else "grpo"), root)
    return Tree(whole, {**run.env, **run.variables}, own), files.notes, files.questions


def _script(run: Run) -> str:
    """The kind of run that a script starts."""
    name = run.script.removeprefix("run_").removeprefix("vlm_")
    return next((kind for kind in ("grpo", "sft", "dpo", "rm", "distillation") if name.startswith(kind)), "")


def kind_of(run: Run, tree: Tree) -> str:
    """The kind of training. Raises UnsupportedError for what is not modelled."""
    kinds = [kind for kind in ("distillation", "rm", "dpo", "sft") if tree.has(kind)]
    kind = (_script(run) if run.document is None else "") or (kinds[0] if kinds else "grpo")
    if kind in ("distillation", "rm"):
        what = "a student of a teacher model" if kind == "distillation" else "a reward model"
        raise UnsupportedError(f"this run of NeMo-RL trains {what} ({kind}), which is not modelled")
    return kind
