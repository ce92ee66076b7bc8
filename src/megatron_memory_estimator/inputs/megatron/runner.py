"""YAML files of Megatron-LM arguments, as the runners that take them read them.

Sources: NVIDIA/Megatron-LM `tests/functional_tests/shell_test_utils/_run_training.sh`; yanring/Megatron-MoE-ModelZoo
`sbatch_benchmarking.sh`: MODEL_ARGS with ENV_VARS beside it. `true` gives the flag alone, `false` and an empty text leave it out, a
list or "[a b]" is several words; other text is one word, split where the argument takes several; `${NAME}` comes from outside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...wording import dashed, shown, whole
from ..questions import Question
from ..shell.values import Value, bare, head, joined, readable, split, unknowns, unset, unset_in
from .classes import passes_over
from .forks import Others
from .table import Argument, arguments
from .words import Parsed, read_words

GPUS_PER_NODE = 8
"""GPUs of a node where a file of Megatron-LM's test runner does not say it."""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?-)([^{}]*))?\}|([A-Za-z_]\w*))")
_FOLDER = re.compile(r"_([0-9]+)N([0-9]+)G$")
LONGEST = 100_000
"""Characters of a value with its variables filled in."""


@dataclass(frozen=True)
class Document:
    """What a file says: arguments, environment, GPUs (`gpus_said` tells why, `gpus_unknown` why not), and what the user should know."""

    words: Parsed
    env: dict[str, str] = field(default_factory=dict)
    num_gpus: int | None = None
    gpus_said: str = ""
    gpus_unknown: str = ""
    notes: tuple[str, ...] = ()


def from_document(
    document: Mapping[Any, Any], path: str, given: Mapping[str, str], *, ignore_unknown: bool
) -> Document:
    """The arguments of a YAML document; `given` are variables of the caller, which win over ENV_VARS.

    Raises ConfigError where its parts are no mappings, UnsupportedError for arguments of NeMo.
    """
    args = document.get("MODEL_ARGS", document)
    if not isinstance(args, Mapping):
        raise ConfigError(f"{path}: MODEL_ARGS must hold arguments, not {shown(args)}")
    if foreign := [str(key) for key in args if str(key).startswith(("trainer.", "model.config."))]:
        raise UnsupportedError(f"{path}: {foreign[0]} is of NeMo, whose runs are Python code")
    raw = document.get("ENV_VARS") or {}
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{path}: ENV_VARS must hold variables, not {shown(raw)}")
    env = _environment(raw, given)
    variables = {**env, **given}
    words = Parsed(others=Others(ignore_unknown))
    for key, value in args.items():
        _read(words, str(key), value, variables)
    unknown = _uncounted(env)
    gpus, said = (None, "") if unknown else _gpus(document, env, path, _from_outside(args))
    rest = [f"{key}, a run of its own, is not read" for key in document if re.fullmatch(r"MODEL_ARGS_\w+", str(key))]
    return Document(words, env, gpus, said, unknown, tuple(rest))


def _environment(raw: Mapping[Any, Any], given: Mapping[str, str]) -> dict[str, str]:
    """The variables of ENV_VARS as texts; what the caller gives wins."""
    env: dict[str, str] = {}
    for key, value in raw.items():
        if value is None or isinstance(value, list | dict):
            continue
        text = filled(_text(value), {**env, **given})
        env[str(key)] = given.get(str(key), bare(text))
    return env


def _read(words: Parsed, key: str, value: Any, variables: Mapping[str, str]) -> None:
    """One argument with its value."""
    flag = dashed(key.lstrip("-"))
    argument = arguments()[0].get(flag[2:].replace("-", "_"))
    texts = (
        [filled(_text(one), variables) for one in value]
        if isinstance(value, list)
        else [filled(_text(value), variables)]
    )
    if argument is not None:
        for known in (argument.dest, f"words behind {argument.dest}"):
            words.problems.pop(known, None)
    single = texts[0] if len(texts) == 1 else None
    number = argument is not None and (argument.kind != "Store" or argument.type in ("int", "float"))
    if single in LEFT_OUT or (number and isinstance(single, str) and single.lower() == "none"):
        return
    switch = argument is not None and argument.kind != "Store"
    if single == "true" and (switch or value is True or argument is None):
        read_words(words, [flag])
    elif argument is not None and switch and single is not None and unknowns(single) and not passes_over(argument):
        names = ", ".join("$" + name for name in unset_in(single))
        options = " ".join(f"--set {name}=true" for name in unset_in(single))
        words.problems[argument.dest] = Question(
            f"whether {flag} is passed depends on {names}, which has no value", options
        )
    else:
        read_words(
            words, [flag, *(word for text in texts for word in _split(text, argument, listed=isinstance(value, list)))]
        )


LEFT_OUT = frozenset(("false", "", "null", "None"))
"""Values that leave an argument out: runners drop it, and `None` is what it is without a value; `none` may be a choice."""


def _text(value: Any) -> str:
    """A value as a runner passes it; booleans and words for them alike."""
    text = "" if value is None else str(value).strip()
    return text.lower() if text.lower() in ("true", "false", "null") else text


def filled(text: str, variables: Mapping[str, str]) -> Value:
    """The text with its variables; those that nothing sets are not known. Raises ConfigError for one that grows too long."""

    def value(match: re.Match[str]) -> Value:
        name = match.group(1) or match.group(4)
        operator, default = match.group(2), match.group(3)
        found = variables.get(name)
        if (operator == ":-" and not found) or (operator and found is None):
            return default or ""
        return unset(name, quoted=True) if found is None else found

    if "$" not in text:
        return text
    text = text.replace("\0", "")
    parts: list[Value] = []
    at = 0
    for match in _VARIABLE.finditer(text):
        parts += [text[at : match.start()], value(match)]
        at = match.end()
    found = joined([*parts, text[at:]])
    if len(bare(found)) > LONGEST:
        raise ConfigError(f"{shown(text)} is longer than {LONGEST} characters with its variables")
    return _text(found) if isinstance(found, str) else found


def _split(text: Value, argument: Argument | None, *, listed: bool) -> list[Value]:
    """The words of a value: several where it is a list, and where the argument takes several; `(...)` is always one."""
    if listed or head(text).startswith("("):
        return [text]
    many = argument is not None and bool(argument.nargs)
    plain = readable(text)
    bracketed = re.fullmatch(r"\[[^\]*+()]*\]", plain) is not None
    if bracketed and (many or " " in plain or re.fullmatch(r"\[[A-Za-z_]\w*\]", plain)):
        inner = joined(
            piece.translate({ord("["): " ", ord("]"): " ", ord(","): " " if many else ","})
            if isinstance(piece, str)
            else (piece,)
            for piece in ((text,) if isinstance(text, str) else text)
        )
        return split(inner)
    return split(text) if many else [text]


def _from_outside(args: Mapping[Any, Any]) -> bool:
    """Whether a size comes from outside, so that the number of GPUs does too."""
    by_flag = arguments()[0]
    return any(
        isinstance(value, str)
        and "$" in value
        and (known := by_flag.get(str(key).lstrip("-").replace("-", "_"))) is not None
        and not passes_over(known)
        for key, value in args.items()
    )


def _uncounted(env: Mapping[str, str]) -> str:
    """Why the number of GPUs is not known where a variable gives one that is none."""
    for name in ("GPUS_PER_NODE", "NUM_NODES"):
        if env.get(name) and "$" not in env[name] and not whole(env[name]):
            return f"{name}={shown(env[name])} is no count"
    return ""


def _gpus(document: Mapping[Any, Any], env: Mapping[str, str], path: str, from_outside: bool) -> tuple[int | None, str]:
    """GPUs of the run, and where they are said; those of Megatron-LM's own test runner where a file of its kind does not say."""
    per, nodes = whole(env.get("GPUS_PER_NODE")), whole(env.get("NUM_NODES"))
    folder = _FOLDER.search(os.path.basename(os.path.dirname(path)))
    if folder is not None and per is None and nodes is None:
        nodes, per = int(folder.group(1)), int(folder.group(2))
    if per or nodes:
        count = (per or GPUS_PER_NODE) * (nodes or 1)
        rest = "" if per else f" ({GPUS_PER_NODE} a node, as in Megatron-LM's test runner)"
        return count, f"num_gpus as in {path}: {count}{rest}"
    if "MODEL_ARGS" in document and not from_outside:
        return GPUS_PER_NODE, f"num_gpus not given: {GPUS_PER_NODE}, one node of Megatron-LM's test runner"
    return None, ""
