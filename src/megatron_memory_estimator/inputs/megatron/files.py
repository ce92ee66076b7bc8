"""Megatron-LM arguments wherever users keep them: a mapping, words of a command line, a YAML file, a launch script."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...dataclass import dataclass
from ...errors import ConfigError
from ...wording import plain
from .. import SCRIPTS, YAML
from ..environment import VARIABLES
from ..file_keys import follow_all
from ..questions import Question
from ..shell.values import Value, bare, in_doubt
from ..text_files import GivenFiles, read_run_yaml, read_text
from .programs import refuse_folder, refuse_other_documents
from .runner import from_document
from .table import arguments
from .words import Parsed, normalised, parse_words

if TYPE_CHECKING:
    from ..shell.launches import Launch

OTHER_ENTRIES = ("vlm", "bert", "t5", "train_rl", "ict", "retro", "vision", "mimo")


@dataclass(frozen=True)
class Given:
    """Arguments as read, and what their source says beside them.

    `gpus_said` is where `num_gpus` stand, `gpus_unknown` why they are not known where something says them; `lost` are files that are
    not there and may hold what is missing. `env` are variables whose values are known, `sets` all that are set, None where no
    environment is said.
    """

    words: Parsed
    source: str = "Megatron arguments"
    name: str = ""
    num_gpus: int | None = None
    gpus_said: str = ""
    gpus_unknown: str = ""
    lost: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    container: str = ""
    warnings: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()
    sets: frozenset[str] | None = None


@dataclass(frozen=True)
class Caller:
    """What the caller of a launch script says beside its name: variables, words behind it, whether files elsewhere are opened, and
    files that came with it, which alone are opened then."""

    variables: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()
    follow: bool = False
    files: GivenFiles | None = None


def given_arguments(args: Any, caller: Caller | None = None, *, ignore_unknown: bool = False) -> Given:
    """The arguments of a mapping, a list of words, a YAML file or a launch script (by the ending of its name)."""
    if isinstance(args, Given):
        return args
    if isinstance(args, Mapping):
        return Given(normalised(args, ignore_unknown=ignore_unknown))
    if isinstance(args, os.PathLike):
        args = os.fspath(args)
    if isinstance(args, str):
        return _from_file(args, caller or Caller(), ignore_unknown=ignore_unknown)
    if isinstance(args, Sequence) and all(isinstance(word, str) for word in args):
        return Given(parse_words(args, ignore_unknown=ignore_unknown))
    raise ConfigError(
        "Megatron arguments must be a mapping, a list of words, or the path of a YAML file or a launch script"
    )


def _from_file(path: str, caller: Caller, *, ignore_unknown: bool) -> Given:
    name = os.path.splitext(os.path.basename(path))[0]
    if path.lower().endswith(YAML):
        document, repeated = read_run_yaml(path)
        return from_mapping_file(document, path, name, caller.variables, repeated, ignore_unknown=ignore_unknown)
    if not path.lower().endswith(SCRIPTS):
        raise ConfigError(
            f"{path!r} is neither a YAML file ({', '.join(YAML)}) nor a launch script ({', '.join(SCRIPTS)}); arguments "
            "themselves must be a mapping or a list of words"
        )
    return from_script(read_text(path, script=True), path, name, caller, ignore_unknown=ignore_unknown)


def from_script(text: str, path: str, name: str, caller: Caller, *, ignore_unknown: bool) -> Given:
    """The arguments of a launch script's text; a `path` of a script gives the files beside it too."""
    return from_launch(launch_of(text, path, caller), path, name, ignore_unknown=ignore_unknown)


def launch_of(text: str, path: str, caller: Caller) -> Launch:
    """The training that a script's text starts."""
    from ..shell.script import Beside, read_script

    stands = caller.files is not None or path.lower().endswith((*SCRIPTS, *YAML))
    beside = Beside(path, caller.follow, caller.files) if stands else None
    return read_script(text, caller.variables, caller.words, beside)


def from_launch(launch: Launch, path: str, name: str, *, ignore_unknown: bool) -> Given:
    """The arguments of a launch of Megatron-LM."""
    refuse_entry(launch.entry)
    found = parse_words(launch.words, ignore_unknown=ignore_unknown)
    said = f"num_gpus as in {path}: {launch.num_gpus}" if launch.num_gpus is not None else ""
    env, questions = _known_environment(launch.env)
    return Given(
        found, path, name, launch.num_gpus, said, launch.gpus_unknown, launch.lost, env, launch.container, tuple(launch.notes),
        questions, sets=frozenset(launch.env),
    )  # fmt: skip


def _known_environment(env: Mapping[str, Value]) -> tuple[dict[str, str], tuple[Question, ...]]:
    """The variables whose values are known, and questions about those that memory depends on."""
    open_ = [name for name in VARIABLES if in_doubt(env.get(name, ""))]
    questions = [Question(f"the environment variable {name} is not known", f"--set {name}=VALUE") for name in open_]
    return {name: bare(value) for name, value in env.items() if not in_doubt(value)}, tuple(questions)


def refuse_entry(entry: str) -> None:
    """Refuse programs that do not train a decoder-only model."""
    base = os.path.basename(entry)
    word = next(
        (word for word in OTHER_ENTRIES if re.search(rf"(?:^|_){word}(?:_|\.|$)", base) or base == f"{word}.py"), None
    )
    if word is not None:
        raise ConfigError(
            f"{base} trains another kind of model than a decoder; only GPT-like models and hybrids are modelled"
        )


def from_mapping_file(
    document: Mapping[Any, Any],
    path: str,
    name: str,
    variables: Mapping[str, str],
    repeated: Sequence[str] = (),
    *,
    ignore_unknown: bool,
) -> Given:
    """A flat mapping of arguments, or one under MODEL_ARGS with ENV_VARS beside it, as test runners have them (`runner.py`).

    `repeated` are keys that stand twice: the last counts, as in the runners.
    """
    refuse_other_documents(document, path)
    _refuse_base(document, path)
    found = from_document(document, path, variables, ignore_unknown=ignore_unknown)
    refuse_folder(path)
    notes = (*twice(repeated), *found.notes)
    return Given(
        found.words, path, name, found.num_gpus, found.gpus_said, found.gpus_unknown, env=found.env, warnings=notes,
        sets=frozenset(found.env) if found.env else None,
    )  # fmt: skip


def _refuse_base(document: Mapping[Any, Any], path: str) -> None:
    """Raises ConfigError for a file that names other files: one that runs build on, and that is none itself."""
    name = os.path.basename(path)
    for key in ("extends", "bases"):
        if document.get(key):
            raise ConfigError(
                f"{path} {key} other files and has no modules: runs of Primus build on it, and it is none; name it in one "
                f"(modules.pre_trainer.model: {name})"
            )
    known = arguments()[0]
    follow_all(document, path, [str(key) for key in document if str(key).replace("-", "_") in known])


def twice(repeated: Sequence[str]) -> tuple[str, ...]:
    """The warning about keys that stand twice in a mapping."""
    keys = ", ".join(dict.fromkeys(repeated))
    return (plain(f"keys that stand twice, of which the last counts: {keys}"),) if repeated else ()
