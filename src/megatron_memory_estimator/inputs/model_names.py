"""Models by the names and folders that run files have: variants of a catalogue entry share its architecture and vocabulary.

Sources: config.json of the models on the Hugging Face Hub; folders as modelscope and huggingface_hub name them in their caches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .catalog import entries

VARIANT = re.compile(
    r"[-_.](instruct|base|chat|thinking|it|hf|torch_dist|dist|mcore|megatron|bf16|fp16|fp8|awq|gptq|int4|int8|w8a8|dynamic|sft|rl|ckpt|pt|"
    r"\d{4}|\d{6}|\d{8}|to-mcore|tp\d+|pp\d+|ep\d+|mg|raw|1m|slime|miles|model|hf-ckpt)$"
)
"""Endings of names that change no shape."""
INNER = re.compile(r"[-_.](instruct|base|chat|thinking)(?=[-_.]v?\d)")
"""The same in front of a version (`Mixtral-8x7B-Instruct-v0.1`)."""
ORGANIZATIONS = re.compile(r"^(meta-|llm-research/|unsloth/|nvidia/|modelscope/)")
WITHIN = re.compile(
    r"|hf|huggingface|actor|policy|model|models|checkpoint|latest|final|main|master|base|mcore|torch_dist|release|snapshots|dist_ckpt|"
    r"(?:checkpoint|global_step|iter|step)[-_]?\d+|[0-9a-f]{7,64}"
)
"""Folders inside a model's own: a revision, a format, a step of a training."""
CACHED = re.compile(r"models--(?P<who>[^/]+?)--(?P<name>[^/]+)")
"""A model's folder in the cache of huggingface_hub."""
ESCAPED_DOT = "___"
"""What modelscope writes for a dot in names of folders."""

SAME: dict[str, str] = {
    r"qwen2-(0\.5b|1\.5b|7b|72b)": "qwen2.5-{0}",
    r"qwen2\.5-coder-(0\.5b|1\.5b|7b|14b|32b)": "qwen2.5-{0}",
    r"qwen2\.5-math-(1\.5b|7b|72b)": "qwen2.5-{0}",
    r"qwq-32b(?:-preview)?": "qwen2.5-32b",
    r"deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    r"deepseek-r1-0528-qwen3-8b": "qwen3-8b",
    r"qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    r"deepseek-v3\.1(?:-terminus)?": "deepseek-v3",
    r"deepseek-v3\.2-(?:exp|speciale)": "deepseek-v3.2",
    r"deepseek-r1-zero": "deepseek-r1",
    r"deepseek-coder-v2-lite": "deepseek-v2-lite",
    r"deepseek-v2\.5": "deepseek-v2",
    r"glm-4\.[67]": "glm-4.5",
    r"meta-llama-3\.1-(8b|70b|405b)": "llama-3.1-{0}",
    r"llama-3-(8b|70b)": "meta-llama-3-{0}",
    r"kimi-k2": "kimi-k2-instruct",
    r"mistral-7b-v0\.2": "mistral-7b-v0.1",
    r"ring-(1t|flash-2\.0)": "ling-{0}",
}  # fmt: skip
"""Models whose config.json has the sizes and the vocabulary of another's, without variants' endings."""
LANGUAGE_PART: dict[str, str] = {
    r"qwen2-vl-(7b|72b)": "qwen2.5-{0}",
    r"qwen2-vl-2b": "qwen2.5-1.5b",
    r"qwen2\.5-vl-3b": "qwen2.5-3b",
    r"qwen2\.5-omni-7b": "qwen2.5-7b",
    r"qwen3-vl-2b": "qwen3-1.7b",
    r"qwen3-vl-(4b|32b|235b-a22b)": "qwen3-{0}",
    r"glm-4\.6v": "glm-4.5-air",
    r"kimi-vl-a3b": "moonlight-16b-a3b",
}  # fmt: skip
"""Models with towers of vision or audio, and the model whose sizes their language model has."""


class Named(NamedTuple):
    """The catalogue's entry that a name means, and whether it is only the language model of what is named."""

    entry: str
    has_towers: bool = False


def _plain(name: str) -> str:
    """The name without what does not change the architecture."""
    word = name.lower().rstrip("/").rsplit("/", 1)[-1]
    word = ORGANIZATIONS.sub("", word).replace("_", "-") if word.startswith("meta-") else word
    while (cut := INNER.sub("", VARIANT.sub("", word))) != word:
        word = cut
    return word


def _folders(name: str) -> Iterator[str]:
    """The last part of a name, and those above it while what is behind them only stands inside a model's folder."""
    for part in reversed(name.rstrip("/").split("/")):
        cached = CACHED.fullmatch(part)
        part = cached["name"] if cached else part.replace(ESCAPED_DOT, ".")
        yield part
        if not WITHIN.fullmatch(part.lower()):
            return


def _entry(last: str) -> str | None:
    """The only entry that a model's own name means, or one of several that are alike."""
    known = entries()
    for wanted in (last.lower(), _plain(last)):
        found = [one for one in known if wanted in (one.rsplit("/", 1)[-1].lower(), _plain(one))]
        shapes = {repr(known[one]["config"]) for one in found}
        if found and len(shapes) == 1:
            return found[0]
    return None


def _like(last: str, table: dict[str, str]) -> str | None:
    """The entry of a model that a table calls another's twin."""
    for pattern, twin in table.items():
        if match := re.fullmatch(pattern, last):
            return _entry(twin.format(*match.groups()))
    return None


def named(name: str) -> Named | None:
    """The catalogue's entry that a Hub id or a folder means, or None where it is none or several are alike."""
    if name in entries():
        return Named(name)
    for last in _folders(name):
        for word in dict.fromkeys((last.lower(), _plain(last))):
            if entry := _entry(word) or _like(word, SAME):
                return Named(entry)
            if entry := _like(word, LANGUAGE_PART):
                return Named(entry, has_towers=True)
    return None


def catalogued(name: str) -> str | None:
    """The entry of `named` alone."""
    found = named(name)
    return found.entry if found else None


EXPERTS = ("moe_grouped_gemm", "moe_permute_fusion")
"""What every provider sets and recipes that take it as it is leave out (`models/deepseek/deepseek_v4_bridge.py`, `gpt_oss_bridge.py`)."""


def family_of(model: str) -> str:
    """The `model_type` of a model of the catalogue; empty for others."""
    entry = catalogued(model) if model else None
    return str(entries()[entry]["config"].get("model_type")) if entry else ""
