"""What Megatron-Bridge sets for a family of models when it makes a provider of a Hugging Face config, which frameworks on it inherit.

Source: NVIDIA-NeMo/Megatron-Bridge 0.6.2 `src/megatron/bridge/models/gpt_provider.py`, `models/*/*_bridge.py` (provider_bridge),
`utils/fusions.py`.
"""

from __future__ import annotations

from typing import Any

from ..catalog import entries
from .models import catalogued

PROVIDER: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "masked_softmax_fusion": True,
    "attention_softmax_in_fp32": False,
    "gradient_accumulation_fusion": True,
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
    "make_vocab_size_divisible_by": 1,
}
"""What holds for every family: the vocabulary of the config is not padded."""
EXPERTS = ("moe_grouped_gemm", "moe_permute_fusion")
"""What every provider sets and recipes that take it as it is leave out (`models/deepseek/deepseek_v4_bridge.py`, `gpt_oss_bridge.py`)."""
SETTINGS: dict[str, tuple[Any, str]] = {
    "bias_activation_fusion": (
        True,
        "llama nemotron-nas deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 kimi_k25 gpt_oss glm4_moe glm4_moe_lite",
    ),
    "apply_rope_fusion": (True, "llama nemotron nemotron-nas deepseek_v4"),
    "moe_router_dtype": (
        "fp32",
        "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 kimi_k2 kimi_k25 glm4_moe glm4_moe_lite glm_moe_dsa qwen3_next olmoe nemotron_h "
        "bailing_moe_v2 ernie4_5_moe minimax_m3 hy_v3",
    ),
    "moe_shared_expert_overlap": (
        True,
        "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 kimi_k2 kimi_k25 glm4_moe glm4_moe_lite glm_moe_dsa nemotron_h",
    ),
}
"""Settings of families (`model_type` of the config); the class default holds for all others."""


def family_of(model: str) -> str:
    """The `model_type` of a model of the catalogue; empty for others."""
    entry = catalogued(model) if model else None
    return str(entries()[entry]["config"].get("model_type")) if entry else ""


def provider_defaults(model: str) -> dict[str, Any]:
    """Settings of the provider that Bridge makes of a model, by its name."""
    family = family_of(model)
    return PROVIDER | {name: value for name, (value, families) in SETTINGS.items() if family in families.split()}
