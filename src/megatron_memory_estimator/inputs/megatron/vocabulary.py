"""The vocabulary of a run, from its tokenizer: what `--vocab-size` means depends on `--tokenizer-type`.

Sources: Megatron-LM `megatron/core/tokenizers/utils/build_tokenizer.py` and `megatron/training/argument_utils.py` (only Null and
Tik tokenizers read --vocab-size), `pretrain_gpt.py` (GPT2BPETokenizer by default); Ascend/MindSpeed-LLM (PretrainedFromHF) and
FlagOpen/FlagScale `flagscale/train/` (..FS), which read it too; Pai-Megatron-Patch: see `pai_tokenizers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...job.choices import INSTALLED
from ...wording import LONGEST_SHOWN, plain
from ..questions import Question
from .derive import whole_or
from .pai_tokenizers import pai_size
from .tokenizers import known_size

FIXED = {"GPT2BPETokenizer": 50257, "BertWordPieceLowerCase": 30522, "BertWordPieceCase": 28996 + 100}
"""Tokenizers whose size does not depend on a file."""
SIZED_BY_OPTION = {
    "NullTokenizer": 0, "NullMultimodalTokenizer": 1, "TikTokenizer": 0,
    "QwenTokenizerFS": 0, "HFTokenizerFS": 0, "HFTokenizersTokenizerFS": 0, "AquilaTokenizerFS": 0, "Qwen2TokenizerFS": 0,
    "Llama3TokenizerFS": 0,
}  # fmt: skip
"""Tokenizers that take --vocab-size, and how many ids they add."""
TAKES_OPTION = frozenset({"PretrainedFromHF"})
"""Tokenizers of which --vocab-size wins over the length of the files."""
TIK_DEFAULT = 131072
NULL_ADDED_UNTIL = 17
"""NullTokenizer added an end-of-document id up to Megatron-Core 0.17 (April 2026)."""
OPTION = "--vocab-size N"


class Vocabulary(NamedTuple):
    """Entries before padding (None where nothing says), entries after it where they are not padded further, what is said of them, and
    what is asked."""

    size: int | None
    notes: tuple[str, ...] = ()
    padded: int | None = None
    question: Question | None = None


def vocabulary(
    given: Mapping[str, Any], settings: Mapping[str, Any], others: Mapping[str, tuple[str, ...]] | None = None
) -> Vocabulary:
    """The vocabulary that Megatron would build for these arguments. `settings` are the caller's own, which win; `others` are
    arguments that Megatron-LM does not have."""
    others = others or {}
    if (
        any(name in settings for name in ("vocab_size", "padded_vocab_size"))
        or given.get("padded_vocab_size") is not None
    ):
        return Vocabulary(None)
    if patched := others.get("patch_tokenizer_type"):
        return _patched(patched, given, others)
    if others.get("extra_vocab_size", ("0",)) != ("0",):
        what = (
            "--extra-vocab-size adds to a tokenizer of Pai-Megatron-Patch, which --patch-tokenizer-type does not name"
        )
        return Vocabulary(None, question=Question(what, "--padded-vocab-size N"))
    option = whole_or("vocab_size", given.get("vocab_size"), 0) or None
    kind = given.get("tokenizer_type")
    if kind is None:
        return _unnamed(given, option)
    if kind in SIZED_BY_OPTION:
        return _by_option(str(kind), option, settings)
    if kind in FIXED:
        return Vocabulary(FIXED[kind], _ignored(option, FIXED[kind], str(kind)))
    return _of_files(str(kind), option, model_of_tokenizer(given, others))


def model_of_tokenizer(given: Mapping[str, Any], others: Mapping[str, tuple[str, ...]]) -> str:
    """The Hub id or the folder of the tokenizer."""
    named = others.get("tokenizer_name_or_path") or ()
    return str(given.get("tokenizer_model") or " ".join(named) or "")


def _of_files(kind: str, option: int | None, model: str) -> Vocabulary:
    """A tokenizer whose length stands in its files: known by name, else as --vocab-size says, else asked for."""
    known = known_size(model)
    shown = plain(f"{kind} {model}".strip(), LONGEST_SHOWN)
    if option is not None and kind in TAKES_OPTION:
        return Vocabulary(option)
    if known is not None:
        return Vocabulary(known, _ignored(option, known, f"the tokenizer of {plain(model, LONGEST_SHOWN)}"))
    if option is not None:
        note = f"--vocab-size {option} is taken, but Megatron takes the length of the tokenizer ({shown}), whose files are not read"
        return Vocabulary(option, (note,))
    what = (
        f"the size of the vocabulary is not known: Megatron takes it from the tokenizer ({shown}), whose files are not read; "
        f"--vocab-size is the tokenizer's length, --padded-vocab-size the rows of the table"
    )
    return Vocabulary(None, question=Question(what, OPTION))


def _patched(words: tuple[str, ...], given: Mapping[str, Any], others: Mapping[str, tuple[str, ...]]) -> Vocabulary:
    """A tokenizer of Pai-Megatron-Patch, whose table is not padded."""
    kind = " ".join(words)
    model = model_of_tokenizer(given, others) or str(given.get("load") or "")
    extra = others.get("extra_vocab_size") or ("0",)
    found, problem = pai_size(kind, extra, known_size(model))
    if found is None:
        return Vocabulary(None, question=Question(problem, "--padded-vocab-size N"))
    return Vocabulary(None, padded=found)


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
            f"--vocab-size {option} is taken as it is; without --tokenizer-type Megatron builds GPT2BPETokenizer, which has {size} and "
            "ignores --vocab-size",
        ),
    )


def _by_option(kind: str, option: int | None, settings: Mapping[str, Any]) -> Vocabulary:
    if option is None and kind != "TikTokenizer":
        return Vocabulary(None, question=Question(f"{kind} needs --vocab-size", OPTION))
    added = SIZED_BY_OPTION[kind]
    version = str(settings.get("megatron_core_version", INSTALLED["megatron_core_version"])).split(".")
    minor = whole_or("megatron_core_version", version[1], 0) if len(version) > 1 else 0
    if kind == "NullTokenizer" and minor <= NULL_ADDED_UNTIL and version[0] == "0":
        added = 1
    return Vocabulary((option or TIK_DEFAULT) + added)


def _ignored(option: int | None, size: int, what: str) -> tuple[str, ...]:
    if option is None or option == size:
        return ()
    return (f"--vocab-size {option} is ignored, as Megatron ignores it: {what} has {size}",)
