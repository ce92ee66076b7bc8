"""Lengths of well-known tokenizers by the last part of their names.

Sources: the published tokenizer files of each model (`tokenizer.json`, added tokens included), on the Hugging Face Hub.
"""

from __future__ import annotations

import re

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
