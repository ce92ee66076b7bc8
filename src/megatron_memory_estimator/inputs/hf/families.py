"""The table from model_type to its mapping. One family is one small function; a new one is one function and one entry."""

from __future__ import annotations

from collections.abc import Callable

from .converted import Converted
from .deepseek import deepseek
from .dense import falcon, gpt2, llama, plain_llama, qwen2, qwen3
from .fields import Fields
from .foreign import cohere, deci, gemma2, gemma3, gemma4, minimax_m1, minimax_m2, olmo2, olmoe
from .hybrid import nemotron_h, qwen_next
from .moe import bailing, dots1, ernie_moe, glm4_moe, gpt_oss, hunyuan_moe, llama4, mixtral, qwen2_moe, qwen3_moe

Family = Callable[[Fields], Converted]

FAMILIES: dict[str, Family] = {
    "llama": llama,
    "mistral": llama,
    "granite": llama,
    "smollm3": llama,
    "ernie4_5": llama,
    "phi3": llama,
    "qwen2": qwen2,
    "mimo": qwen2,
    "qwen3": qwen3,
    "gpt2": gpt2,
    "falcon": falcon,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "glm4_moe": glm4_moe,
    "dots1": dots1,
    "bailing_moe": bailing,
    "bailing_moe_v2": bailing,
    "ernie4_5_moe": ernie_moe,
    "hunyuan_v1_moe": hunyuan_moe,
    "llama4_text": llama4,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "kimi_k2": deepseek,
    "glm_moe_dsa": deepseek,
    "qwen3_next": qwen_next,
    "qwen3_5_text": qwen_next,
    "qwen3_5_moe_text": qwen_next,
    "nemotron_h": nemotron_h,
    "cohere": cohere,
    "cohere2": cohere,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma4_text": gemma4,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "olmoe": olmoe,
    "minimax_m1": minimax_m1,
    "minimax_m2": minimax_m2,
    "nemotron-nas": deci,
}

TIED = frozenset(
    {
        "gemma", "gemma2", "gemma3_text", "gemma4_text", "cohere", "cohere2", "gpt2", "falcon", "smollm3", "ernie4_5",
        "ernie4_5_moe",
    }
)  # fmt: skip
"""Families whose embeddings are tied when the config does not say (huggingface/transformers configuration classes)."""

__all__ = ["FAMILIES", "TIED", "Converted", "plain_llama"]
