"""Rows of the vocabulary's table under Pai-Megatron-Patch: the tokenizer's words and --extra-vocab-size, not padded.

Source: alibaba/Pai-Megatron-Patch `megatron_patch/tokenizer/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...wording import LONGEST_SHOWN, plain, whole

OWN = {
    "Qwen2Tokenizer": 151643, "Qwen3Tokenizer": 151643, "LLama3Tokenizer": 128000, "LLama2Tokenizer": 32000, "MixtralTokenizer": 32000,
}  # fmt: skip
"""Words of a tokenizer by its kind, without special ones."""
FIXED = {
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
    if kind in FIXED:
        return FIXED[kind], ""
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
