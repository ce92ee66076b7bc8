"""Megatron-LM arguments wherever users keep them: a mapping, words of a command line, a YAML file, a launch script."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from ...wording import whole
from .. import SCRIPTS, YAML
from ..environment import VARIABLES
from ..shell.doubts import bare, in_doubt
from ..text_files import read_text, read_yaml
from .words import parse_words

OTHER_ENTRIES = ("vlm", "bert", "t5", "train_rl", "ict", "retro", "vision", "mimo")


@dataclass(frozen=True)
class Given:
    """Arguments by flag or destination, and what their source says beside them."""

    args: Mapping[str, Any]
    source: str = "Megatron arguments"
    name: str = ""
    num_gpus: int | None = None
    gpus_unknown: str = ""
    env: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Caller:
    """What the caller of a launch script says beside its name: variables, words behind it, and whether files elsewhere are opened."""

    variables: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()
    follow: bool = False


def given_arguments(
    args: Any,
    caller: Caller | None = None,
    *,
    ignore_unknown: bool = False,
    overridden: Collection[str] = (),
) -> Given:
    """The arguments of a mapping, a list of words, a YAML file or a launch script (by the ending of its name)."""
    if isinstance(args, Given):
        return args
    if isinstance(args, Mapping):
        return Given(args)
    if isinstance(args, os.PathLike):
        args = os.fspath(args)
    if isinstance(args, str):
        return _from_file(args, caller or Caller(), ignore_unknown=ignore_unknown, overridden=overridden)
    if isinstance(args, Sequence) and all(isinstance(word, str) for word in args):
        found = parse_words(args, ignore_unknown=ignore_unknown)
        return Given(found.values, warnings=passed_over(found.unknown))
    raise ConfigError(
        "Megatron arguments must be a mapping, a list of words, or the path of a YAML file or a launch script"
    )


def passed_over(unknown: list[str]) -> tuple[str, ...]:
    """The warning about unknown arguments, if there are any."""
    return (f"unknown arguments passed over: {', '.join(dict.fromkeys(unknown))}",) if unknown else ()


def _from_file(path: str, caller: Caller, *, ignore_unknown: bool, overridden: Collection[str]) -> Given:
    name = os.path.splitext(os.path.basename(path))[0]
    if path.lower().endswith(YAML):
        return from_mapping_file(read_yaml(path), path, name, ignore_unknown=ignore_unknown)
    if not path.lower().endswith(SCRIPTS):
        raise ConfigError(
            f"{path!r} is neither a YAML file ({', '.join(YAML)}) nor a launch script ({', '.join(SCRIPTS)}); arguments "
            "themselves must be a mapping or a list of words"
        )
    return from_script(read_text(path), path, name, caller, ignore_unknown=ignore_unknown, overridden=overridden)


def from_script(
    text: str,
    path: str,
    name: str,
    caller: Caller,
    *,
    ignore_unknown: bool,
    overridden: Collection[str] = (),
) -> Given:
    """The arguments of a launch script's text; a `path` of a script gives the files beside it too."""
    from ..shell.script import Beside, read_script

    beside = Beside(path, caller.follow) if path.lower().endswith(SCRIPTS) else None
    launch = read_script(text, caller.variables, caller.words, beside)
    refuse_entry(launch.entry)
    found = parse_words(launch.words, ignore_unknown=ignore_unknown, doubts=launch.doubts, overridden=overridden)
    warnings = (*launch.notes, *found.notes, *passed_over(found.unknown))
    return Given(
        found.values, path, name, launch.num_gpus, launch.gpus_unknown, _known_environment(launch.env), warnings
    )


def _known_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values are known. Raises ConfigError where one that memory depends on is not."""
    for name in VARIABLES:
        if in_doubt(env.get(name, "")):
            raise ConfigError(f"the environment variable {name} is not known; give --set {name}=VALUE")
    return {name: bare(value) for name, value in env.items() if not in_doubt(value)}


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


def from_mapping_file(document: Mapping[Any, Any], path: str, name: str, *, ignore_unknown: bool) -> Given:
    """A flat mapping, or one under MODEL_ARGS with ENV_VARS beside it, as Megatron-LM's test cases have them.

    `true` gives the flag alone, a list or "[a b]" several words, any other value one word.
    """
    args = document.get("MODEL_ARGS", document)
    if not isinstance(args, Mapping):
        raise ConfigError(f"{path}: MODEL_ARGS must hold arguments, not {args!r}")
    words: list[str] = []
    for key, value in args.items():
        flag = "--" + str(key).lstrip("-").replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is False:
            raise ConfigError(f"{path}: {key}: false would be passed as a word; leave the argument out")
        elif value is None:
            raise ConfigError(f"{path}: {key} has no value")
        else:
            words += [flag, *_words(value)]
    found = parse_words(words, ignore_unknown=ignore_unknown)
    env = document.get("ENV_VARS") or {}
    if not isinstance(env, Mapping):
        raise ConfigError(f"{path}: ENV_VARS must hold variables, not {env!r}")
    texts = {str(key): str(value) for key, value in env.items() if value is not None}
    per_node, nodes = whole(texts.get("GPUS_PER_NODE")), whole(texts.get("NUM_NODES", "1"))
    gpus = per_node * nodes if per_node and nodes else None
    return Given(found.values, path, name, gpus, "", texts, passed_over(found.unknown))


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    text = str(value)
    if re.fullmatch(r"\[[^\]*+()]*\]", text) and " " in text:
        return text[1:-1].split()
    if re.fullmatch(r"\[\w+\]", text) and not re.fullmatch(r"\[\d+\]", text):
        return [text[1:-1]]
    return [text]
