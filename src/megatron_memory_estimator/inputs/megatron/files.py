"""Megatron-LM arguments wherever users keep them: a mapping, words of a command line, a YAML file, a launch script.

YAML files are read as the runners that take them do. Sources: NVIDIA/Megatron-LM
`tests/functional_tests/shell_test_utils/_run_training.sh`; yanring/Megatron-MoE-ModelZoo `sbatch_benchmarking.sh`: MODEL_ARGS with
ENV_VARS beside it. `true` gives the flag alone, `false` and an empty text leave it out, a list or "[a b]" is several words; other text
is one word, split where the argument takes several; `${NAME}` comes from outside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ...dataclass import dataclass
from ...errors import ConfigError, UnsupportedError
from ...wording import dashed, plain, shown, whole
from .. import NEITHER, YAML, is_run_file, is_script
from ..environment import VARIABLES
from ..file_keys import follow_all
from ..questions import Question
from ..shell.values import Value, bare, head, in_doubt, joined, readable, split, unknowns, unset, unset_in
from ..text_files import GivenFiles, read_run_yaml, read_text
from .classes import passes_over
from .forks import Others
from .programs import refuse_folder, refuse_other_documents
from .table import Argument, arguments
from .words import Parsed, normalised, parse_words, read_words

if TYPE_CHECKING:
    from ..shell.launches import Launch


# -- YAML of Megatron-LM arguments -------------------------------------------------------------------------------------

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
    gpu_kind: str = ""


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
    if not is_script(path):
        raise ConfigError(f"{path!r} {NEITHER}; arguments themselves must be a mapping or a list of words")
    return from_script(read_text(path, script=True), path, name, caller, ignore_unknown=ignore_unknown)


def from_script(text: str, path: str, name: str, caller: Caller, *, ignore_unknown: bool) -> Given:
    """The arguments of a launch script's text; a `path` of a script gives the files beside it too."""
    return from_launch(launch_of(text, path, caller), path, name, ignore_unknown=ignore_unknown)


def launch_of(text: str, path: str, caller: Caller) -> Launch:
    """The training that a script's text starts."""
    from ..shell.script import Beside, read_script

    stands = caller.files is not None or is_run_file(path)
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
        questions, sets=frozenset(launch.env), gpu_kind=launch.gpu_kind,
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
