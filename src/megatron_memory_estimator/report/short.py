"""Documents that are short enough for an agent to read, as compact JSON."""

from __future__ import annotations

import json
from typing import Any

from ..wording import LONGEST_MESSAGE

CHARACTERS_PER_TOKEN = 4
"""Of English text, as OpenAI's guide to tokens has it (help.openai.com, "What are tokens and how to count them?")."""
MOST_TOKENS = 1500
LEFT_OUT = "left_out"
COLUMNS = ("stage_columns", "plan_columns", "advice_columns", "tensor_columns", "model_columns", "case_columns")
WHOLE = ("verdict", "cases", *COLUMNS)
"""Parts of a summary that are never cut."""
STEP = 8
"""What is too long loses an eighth at a time."""

Document = dict[str, Any]


def compact(document: Any) -> str:
    """JSON without spaces."""
    return json.dumps(document, separators=(",", ":"))


def tokens(text: str) -> int:
    """Tokens of a text: its characters by four, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def shortened(document: Document, most: int = MOST_TOKENS) -> Document:
    """The document with its longest lists cut to so many tokens; `left_out` says how much of what is missing.

    Where no list is left to cut, what is longer than a sentence goes: half of a command line would be no use.
    """
    found = dict(document)
    left: dict[str, int] = dict(found.pop(LEFT_OUT, {}))
    while tokens(compact(_with(found, left))) > most:
        name = _longest(found)
        if name is None:
            gone = [key for key, value in found.items() if isinstance(value, str) and len(value) > LONGEST_MESSAGE]
            left |= dict.fromkeys(gone, 1)
            return _with({key: value for key, value in found.items() if key not in gone}, left)
        kept = len(found[name]) - max(len(found[name]) // STEP, 1)
        left[name] = left.get(name, 0) + len(found[name]) - kept
        found[name] = _first(found[name], kept)
    return _with(found, left)


def _with(found: Document, left: dict[str, int]) -> Document:
    return {**found, LEFT_OUT: left} if left else found


def _longest(found: Document) -> str | None:
    """The longest list or mapping that may be cut."""
    sizes = {
        name: len(compact(value))
        for name, value in found.items()
        if name not in WHOLE and isinstance(value, list | dict) and value
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def _first(value: Any, count: int) -> Any:
    return dict(list(value.items())[:count]) if isinstance(value, dict) else value[:count]
