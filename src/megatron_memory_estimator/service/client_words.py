"""Sentences in the words of a client that has no command line: its arguments and settings in place of options."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from ..inputs.setting_names import full_name

OPTION = re.compile(r"--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)")
COMMAND = re.compile(r"megatron-memory ([a-z]+)(?: MODEL)?")
ARGUMENTS = {
    "min-num-gpus": "fewest_gpus=true",
    "num-gpus": "num_gpus",
    "gpu": "gpu",
    "max-increase": "baseline",
    "set": "set_variables",
    "model": "model",
    "layout": "layouts",
    "stage": "stage",
    "tight": 'detail="full", which has tight_plans,',
    "show": 'detail="full"',
    "verbose": 'detail="full"',
    "recompute": "recompute",
    "ignore-unknown": "ignore_unknown=true",
    "without-unmodelled": "without_unmodelled=true",
}
"""Options that are no settings: the argument of a tool that says the same."""
SENTENCES = frozenset(
    (
        "answer",
        "answers",
        "changes",
        "sentence",
        "reason",
        "assumptions",
        "warnings",
        "notes",
        "next",
        "refused",
        "cases",
        "better_but_tight",
    )
)
"""Parts of a short answer that are sentences; launch arguments stay as they are."""


@cache
def _kinds() -> dict[str, str]:
    """The kind of each setting."""
    from ..report.settings import settings_document

    return {one["name"]: one["kind"] for one in settings_document()["settings"]}


def _worded(found: re.Match[str]) -> str:
    """An option as a setting or an argument; an unknown one as it is."""
    off, word = found.groups()
    if word in ARGUMENTS:
        return ARGUMENTS[word]
    name = word.replace("-", "_")
    kind = _kinds().get(full_name(name))
    if kind is None:
        return found[0]
    return f"{name}={'false' if off else 'true'}" if kind == "bool" else name


def client_words(sentence: str) -> str:
    """A sentence that names options, in a client's words."""
    return OPTION.sub(_worded, COMMAND.sub(r"the tool \1", sentence)).replace("`", "")


def _said(value: Any) -> Any:
    if isinstance(value, str):
        return client_words(value)
    return [_said(one) for one in value] if isinstance(value, list) else value


def in_client_words(document: str) -> str:
    """A short answer, compact JSON, with its sentences in a client's words."""
    found = json.loads(document)
    if not isinstance(found, dict):
        return document
    said = {name: _said(value) if name in SENTENCES else value for name, value in found.items()}
    return json.dumps(said, separators=(",", ":"))
