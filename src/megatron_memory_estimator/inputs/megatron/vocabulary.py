"""The vocabulary of a run, from its tokenizer: what `--vocab-size` means depends on `--tokenizer-type`.

Sources: Megatron-LM `megatron/core/tokenizers/utils/build_tokenizer.py` and `megatron/training/argument_utils.py` (only Null and
Tik tokenizers read --vocab-size), `pretrain_gpt.py` (GPT2BPETokenizer by default); Ascend/MindSpeed-LLM (PretrainedFromHF) and
FlagOpen/FlagScale `flagscale/train/` (..FS), which read it too; Pai-Megatron-Patch: see `pai_tokenizers.py`.

Rows of the vocabulary's table under Pai-Megatron-Patch: the tokenizer's words and --extra-vocab-size, not padded.

Source: alibaba/Pai-Megatron-Patch `megatron_patch/tokenizer/__init__.py`.

Lengths of well-known tokenizers by the last part of their names.

Sources: the published tokenizer files of each model (`tokenizer.json`, added tokens included), on the Hugging Face Hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...job.choices import INSTALLED
from ...wording import LONGEST_SHOWN, plain, whole
from ..hf.load import load
from ..model_names import named
from ..questions import Question
from .derive import whole_or

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
    entry = named(model) if model else None
    if entry is not None:
        rows = int(load(entry.entry).config["vocab_size"])
        note = f"vocab_size {rows} of the config of {entry.entry} is taken: the length of its tokenizer is not known, and may be less"
        return Vocabulary(rows, (note,))
    what = (
        f"the size of the vocabulary is not known: Megatron takes it from the tokenizer ({shown}), whose files are not read; "
        f"--vocab-size is the tokenizer's length, --padded-vocab-size the rows of the embedding"
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
        return Vocabulary(size, (f"vocab_size not given: {size}, the size of GPT2BPETokenizer, Megatron's default",))
    if option == size:
        return Vocabulary(option)
    return Vocabulary(
        option,
        (
            f"--vocab-size {option} is used here, although without --tokenizer-type Megatron builds GPT2BPETokenizer, which has {size} and "
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


OWN = {
    "Qwen2Tokenizer": 151643, "Qwen3Tokenizer": 151643, "LLama3Tokenizer": 128000, "LLama2Tokenizer": 32000, "MixtralTokenizer": 32000,
}  # fmt: skip
"""Words of a tokenizer by its kind, without special ones."""
PAI_SIZES = {
    "BloomTokenizerFromHF": 250880, "ChatGLMTokenizerFromHF": 130528, "GLM10BZHTokenizerFromHF": 50048,
    "IcetkGLM130BTokenizer": 150528, "StarcoderTokenizerFromHF": 49152, "VicunaTokenizerFromHF": 32000,
}  # fmt: skip
"""Rows of kinds that have a size of their own, whatever is added."""
DEEPSEEK = {2400: 100002, 467: 128815}
"""Words of DeepSeekV2Tokenizer by what scripts add: DeepSeek-V2's with 2400 (102,400 rows), V3's with 467 (129,280 rows)."""
BY_FILES = frozenset(
    ("LLamaTokenizer", "MistralTokenizer", "YiTokenizer", "BaichuanTokenizer", "QwenTokenizer", "FalconTokenizer")
)
"""Kinds whose words are those of the files."""


def pai_size(kind: str, extra_words: Sequence[str], known: int | None) -> tuple[int | None, str]:
    """Rows of the table, or what is missing. `known` is the length of the tokenizer's files, where it is known."""
    extra = whole(extra_words[0]) if len(extra_words) == 1 else None
    shown = plain(kind, LONGEST_SHOWN)
    if kind in PAI_SIZES:
        return PAI_SIZES[kind], ""
    if extra is None:
        return None, f"--extra-vocab-size {plain(' '.join(extra_words), LONGEST_SHOWN)} is not a whole number"
    if kind in OWN:
        return OWN[kind] + extra, ""
    if kind == "DeepSeekV2Tokenizer":
        length = DEEPSEEK.get(extra, known)
        return (length + extra - 2, "") if length else (None, f"the length of {shown} is not known")
    if kind in BY_FILES and known is not None:
        return known + extra, ""
    return None, f"the length of --patch-tokenizer-type {shown} is not known"


KNOWN: tuple[tuple[str, int], ...] = (
    (r"(openmath2-)?(meta-)?llama-?3(\.[123])?-\d+b", 128256),
    (r"deepseek-r1-distill-llama-(8|70)b", 128256),
    (r"(meta-)?llama-?2-(7|13|70)b|llama-(7|13|30|65)b", 32000),
    (r"(qwen2|codeqwen|qwen)1\.5-[\d.]+b(-a[\d.]+b)?|qwen2-[\d.]+b(-a14b)?", 151646),
    (r"qwen2\.5-(math-|coder-)?[\d.]+b", 151665),
    (r"deepseek-r1-distill-qwen-[\d.]+b", 151665),
    (r"qwen3-(next-)?[\d.]+b(-a[\d.]+b)?|qwen3-coder-[\d.]+b-a[\d.]+b", 151669),
    (r"deepseek-(v2(\.5)?(-lite)?|coder-v2(-lite)?)", 100002),
    (r"deepseek-(v3(\.1)?|r1(-zero)?)", 128815),
    (r"gpt-oss-(20|120)b", 200019),
    (r"mixtral-8x22b-instruct-v0\.1", 32768),
    (r"mixtral-8x7b(-v0\.1)?|mixtral-8x22b(-v0\.1)?|mistral-7b(-v0\.[12])?", 32000),
    (r"mistral-7b-v0\.3", 32768),
    (r"gemma-(2-)?(2|7|9|27)b", 256000),
    (r"gpt-neox-20b|pythia-[\d.]+[mb]", 50277),
    (r"gpt2(-(medium|large|xl))?", 50257),
)
VARIANT = re.compile(
    r"[-_](instruct|base|chat|thinking|it|hf|fp8|bf16|awq|gptq|int[48]|tp\d+|pp\d+|ep\d+|mcore|megatron|torch|dist|ckpts?|tokenizers?|"
    r"weights|model|0?\d{4}|\d{6,8})(?=$|[-_])"
)
"""Parts of a name that say nothing of the vocabulary: tuning, dates, formats, layouts of a converted checkpoint."""
FILES = {"nemotron_2_256k.model": 256000}
"""Files of tokenizers whose own name is known. Source: the tokenizer of Nemotron-4, arXiv 2402.16819 section 2, under the name that
NVIDIA/Megatron-LM `tests/functional_tests/test_cases/gpt/gpt3_15b_8t_release/` has for it."""
LONGEST_NAME = 100


def known_size(model: str) -> int | None:
    """The length of a well-known tokenizer by its Hub id, by a mirror's, or by the folder that is named after the model."""
    parts = [part for part in model.lower().replace("\\", "/").rstrip("/").split("/") if part]
    if parts and parts[-1] in FILES:
        return FILES[parts[-1]]
    if parts and parts[-1].endswith((".model", ".json")):
        parts.pop()
    if not parts or len(parts[-1]) > LONGEST_NAME:
        return None
    name = re.sub(r"^models--.*--", "", parts[-1])
    for text in (name, VARIANT.sub("", name)):
        found = next((size for pattern, size in KNOWN if re.fullmatch(pattern, text)), None)
        if found is not None:
            return found
    return None
