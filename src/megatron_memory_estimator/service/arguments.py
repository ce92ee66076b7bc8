"""The arguments of every tool, and what each of them must be: JSON from anyone is checked here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from ..job.settings import nearest
from ..wording import LONGEST_SHOWN, plain, shown

RUN = ("model", "text", "num_gpus", "settings")
SEARCH = (*RUN, "axes", "objective", "top", "fewest_gpus")
CASES = ("models", "layouts", "cases", "num_gpus", "settings")
MBRIDGE = (
    "hf_model_path", "custom_hf_config", "num_gpus", "mbs", "seq_len", "use_distributed_optimizer", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "recompute_modules", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "tp", "pp", "ep", "cp", "vpp", "etp", "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
)  # fmt: skip
"""The fields of mbridge's request."""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "advise": (*RUN, "detail"),
    "choices": (*RUN, "names", "detail"),
    "compare": (*CASES, "detail"),
    "estimate": (*RUN, "detail"),
    "explain": (*RUN, "stage", "at", "detail"),
    "export": tuple(dict.fromkeys((*SEARCH, *CASES, "what", "format", "stage", "moment", "at", "detail"))),
    "gpus": ("gpu", "detail"),
    "lanes": (*RUN, "detail"),
    "launch": (*RUN, "detail"),
    "mbridge": (*MBRIDGE, "detail"),
    "megatron_config": ("model", "detail"),
    "models": ("model", "detail"),
    "moment": (*RUN, "stage", "moment", "detail"),
    "plan": (*SEARCH, "detail"),
    "settings": ("detail",),
    "timeline": (*RUN, "stage", "detail"),
}
"""Names of arguments of each tool."""
Is = Callable[[Any], bool]


def _word(value: Any) -> bool:
    return isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _several(one: Is) -> Is:
    return lambda value: isinstance(value, list) and all(map(one, value))


WORDS = (
    "model", "text", "objective", "what", "format", "at", "detail", "gpu", "hf_model_path", "recompute_granularity", "recompute_method",
    "pipeline_model_parallel_layout",
)  # fmt: skip
NUMBERS = (
    "num_gpus", "stage", "moment", "top", "mbs", "seq_len", "recompute_num_layers", "tp", "pp", "ep", "cp", "vpp", "etp",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
)  # fmt: skip
SWITCHES = (
    "fewest_gpus", "use_distributed_optimizer", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
KINDS: dict[str, tuple[str, Is]] = {
    **dict.fromkeys(WORDS, ("a word", _word)),
    **dict.fromkeys(NUMBERS, ("a whole number", _whole)),
    **dict.fromkeys(SWITCHES, ("true or false", lambda value: isinstance(value, bool))),
    **dict.fromkeys(("settings", "axes", "custom_hf_config"), ("an object", _object)),
    **dict.fromkeys(("models", "names", "recompute_modules"), ("a list of words", _several(_word))),
    **dict.fromkeys(("layouts", "cases"), ("a list of objects", _several(_object))),
}
"""What an argument must be where it is not null, in words and as a test."""


def checked(tool: str, arguments: Any) -> dict[str, Any]:
    """The arguments of a tool, a config.json that is an object as its text. Raises ConfigError for what is none of them."""
    if not _object(arguments):
        raise ConfigError(f"the arguments of {tool} must be an object")
    known = ARGUMENTS[tool]
    for name in arguments:
        if name not in known:
            raise ConfigError(plain(unknown_argument(name, tool, known)))
    return of_kinds(arguments)


def unknown_argument(word: str, tool: str, known: Iterable[str]) -> str:
    """The sentence that refuses an argument that a tool does not have."""
    word = word[:LONGEST_SHOWN]
    settings = '; settings go under "settings"' if "settings" in known else ""
    return f'unknown argument "{word}" of {tool}{settings}.{nearest(word, known)}'


def of_kinds(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same of arguments whose names are known."""
    found = dict(arguments)
    if isinstance(found.get("text"), dict):
        found["text"] = json.dumps(found["text"])
    for name, value in found.items():
        words, is_one = KINDS.get(name, ("", lambda _: True))
        if value is not None and not is_one(value):
            raise ConfigError(f"{name}={shown(value)} must be {words}")
    return found
