"""The vocabulary of a run, from its tokenizer: what `--vocab-size` means depends on `--tokenizer-type`.

Sources: Megatron-LM `megatron/core/tokenizers/utils/build_tokenizer.py` and `megatron/training/argument_utils.py` (only Null and
Tik tokenizers read --vocab-size), `pretrain_gpt.py` (GPT2BPETokenizer by default); sizes of tokenizers: their published files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...wording import LONGEST_SHOWN, plain
from .derive import whole_or

FIXED = {"GPT2BPETokenizer": 50257, "BertWordPieceLowerCase": 30522, "BertWordPieceCase": 28996 + 100}
"""Tokenizers whose size does not depend on a file."""
SIZED_BY_OPTION = {"NullTokenizer": 0, "NullMultimodalTokenizer": 1, "TikTokenizer": 0}
"""Tokenizers that take --vocab-size, and how many ids they add."""
TIK_DEFAULT = 131072
NULL_ADDED_UNTIL = 17
"""NullTokenizer added an end-of-document id up to Megatron-Core 0.17 (April 2026)."""

KNOWN: tuple[tuple[str, int], ...] = (
    (r"(meta-)?llama-?3(\.[123])?-.*", 128256),
    (r"(meta-)?llama-?2-.*|llama-(7|13|30|65)b.*", 32000),
    (r"qwen2\.5-(0\.5|1\.5|3|7|14|32|72)b.*", 151665),
    (r"qwen3-(0\.6|1\.7|4|8|14|32|30|235)b.*", 151669),
    (r"deepseek-(v3(\.1)?|r1)(-base|-zero|-0324|-0528)?", 128815),
    (r"gpt-oss-(20|120)b.*", 200019),
    (r"mixtral-8x7b-.*|mixtral-8x22b(-instruct)?-v0\.1|mistral-7b(-instruct)?-v0\.[12]", 32000),
    (r"mistral-7b(-instruct)?-v0\.3", 32768),
    (r"gemma-2-(2|9|27)b.*", 256000),
    (r"gpt2(-.*)?", 50257),
)
"""len(tokenizer) of well-known Hugging Face models by the last part of their names."""


class Vocabulary(NamedTuple):
    """Entries before padding (None where nothing says), and what is said about them."""

    size: int | None
    notes: tuple[str, ...] = ()


def vocabulary(given: Mapping[str, Any], settings: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that Megatron would build for these arguments. `settings` are the caller's own, which win.

    Raises ConfigError where the tokenizer's size cannot be known and nothing gives it.
    """
    if (
        any(name in settings for name in ("vocab_size", "padded_vocab_size"))
        or given.get("padded_vocab_size") is not None
    ):
        return Vocabulary(None)
    option = whole_or("vocab_size", given.get("vocab_size"), 0) or None
    kind = given.get("tokenizer_type")
    if kind is None:
        return _unnamed(given, option)
    if kind in SIZED_BY_OPTION:
        return _by_option(str(kind), option, settings)
    if kind in FIXED:
        return Vocabulary(FIXED[kind], _ignored(option, FIXED[kind], str(kind)))
    model = str(given.get("tokenizer_model") or "")
    known = (
        known_size(model)
        if kind in ("HuggingFaceTokenizer", "SFTTokenizer") or re.search("[Ss]entence|Llama2", str(kind))
        else None
    )
    if known is not None:
        return Vocabulary(known, _ignored(option, known, f"the tokenizer of {plain(model, LONGEST_SHOWN)}"))
    shown = plain(f"{kind} {model}".strip(), LONGEST_SHOWN)
    if option is not None:
        return Vocabulary(
            option,
            (
                f"vocab_size {option} is taken, but Megatron takes the length of the tokenizer ({shown}), whose files are not read",
            ),
        )
    raise ConfigError(
        f"the size of the vocabulary is not known: Megatron takes it from the tokenizer ({shown}), whose files are not read; give "
        "--padded-vocab-size, or --vocab-size with the tokenizer's length"
    )


def known_size(model: str) -> int | None:
    """The length of a well-known tokenizer by its Hub id, or by the folder that is named after the model."""
    parts = [part for part in model.lower().replace("\\", "/").rstrip("/").split("/") if part]
    if parts and parts[-1].endswith((".model", ".json")):
        parts.pop()
    if not parts or len(parts[-1]) > 100:
        return None
    return next((size for pattern, size in KNOWN if re.fullmatch(pattern, parts[-1])), None)


def _unnamed(given: Mapping[str, Any], option: int | None) -> Vocabulary:
    """Without --tokenizer-type the training scripts build GPT-2's tokenizer, which needs its files."""
    size = FIXED["GPT2BPETokenizer"]
    if given.get("vocab_file") or given.get("merge_file"):
        return Vocabulary(size, _ignored(option, size, "GPT2BPETokenizer (no --tokenizer-type is given)"))
    if option is None:
        return Vocabulary(
            size, (f"no tokenizer and no vocab_size is given: {size}, of Megatron's default, GPT2BPETokenizer",)
        )
    if option == size:
        return Vocabulary(option)
    return Vocabulary(
        option,
        (
            f"vocab_size {option} is taken as it is; without --tokenizer-type Megatron builds GPT2BPETokenizer, which has {size} and "
            "ignores --vocab-size",
        ),
    )


def _by_option(kind: str, option: int | None, settings: Mapping[str, Any]) -> Vocabulary:
    if option is None and kind != "TikTokenizer":
        raise ConfigError(f"{kind} needs --vocab-size")
    added = SIZED_BY_OPTION[kind]
    version = str(settings.get("megatron_core_version", "0.20")).split(".")
    minor = whole_or("megatron_core_version", version[1], 0) if len(version) > 1 else 0
    if kind == "NullTokenizer" and minor <= NULL_ADDED_UNTIL and version[0] == "0":
        added = 1
    return Vocabulary((option or TIK_DEFAULT) + added)


def _ignored(option: int | None, size: int, what: str) -> tuple[str, ...]:
    if option is None or option == size:
        return ()
    return (f"vocab_size {option} is ignored, as Megatron ignores it: {what} has {size}",)
