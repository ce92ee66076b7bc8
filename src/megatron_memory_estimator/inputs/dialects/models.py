"""Models by the names and folders that run files have: variants of a catalogue entry share its architecture and vocabulary."""

from __future__ import annotations

import re

from ..catalog import entries

VARIANT = re.compile(
    r"[-_.](instruct|base|chat|thinking|it|hf|torch_dist|dist|mcore|megatron|bf16|fp8|awq|gptq|int4|int8|w8a8|dynamic|sft|rl|ckpt|pt|"
    r"\d{4}|\d{6}|\d{8}|to-mcore|tp\d+|pp\d+|ep\d+|mg)$"
)
"""Endings of names that change no shape."""
ORGANIZATIONS = re.compile(r"^(meta-|llm-research/|unsloth/|nvidia/|modelscope/)")


def _plain(name: str) -> str:
    """The name without what does not change the architecture."""
    word = name.lower().rstrip("/").rsplit("/", 1)[-1]
    word = ORGANIZATIONS.sub("", word).replace("_", "-") if word.startswith("meta-") else word
    while (cut := VARIANT.sub("", word)) != word:
        word = cut
    return word


def catalogued(name: str) -> str | None:
    """The catalogue's entry that a Hub id or a folder means, or None where it is none or several are alike."""
    known = entries()
    if name in known:
        return name
    last = name.rstrip("/").rsplit("/", 1)[-1]
    for same in (last.lower, lambda: _plain(name)):
        wanted = same()
        found = [one for one in known if wanted in (one.rsplit("/", 1)[-1].lower(), _plain(one))]
        if len(found) == 1:
            return found[0]
        shapes = {repr(known[one]["config"]) for one in found}
        if found and len(shapes) == 1:
            return found[0]
    return None
