"""Settings that hold where nothing is given: published recipes' habits, Megatron's class defaults; what Megatron-Bridge has in their place.

Source of the last: NVIDIA-NeMo/Megatron-Bridge 0.6.2 `src/megatron/bridge/models/gpt_provider.py`, `models/*/*_bridge.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..job.assumption import OpenSetting

DEFAULT_SEQ_LENGTH = 4096

HABITS: dict[str, Any] = {
    "expert_tensor_parallel_size": 1,
    "use_distributed_optimizer": True,
    "gradient_accumulation_fusion": True,
    "moe_token_dispatcher_type": "alltoall",
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_aux_loss_coeff": 1e-3,
}
"""With a model name: settings that published recipes share and Megatron-LM leaves off by default."""

CLASS_DEFAULTS: dict[str, Any] = {
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "attention_softmax_in_fp32": True,
    "gradient_accumulation_fusion": False,
}
"""Defaults of the TransformerConfig class, where they differ from Megatron-LM's command line."""


def habits_for(given: dict[str, Any]) -> dict[str, Any]:
    """The habits that go with what was given: a choice that excludes one is not contradicted by it."""
    habits = dict(HABITS)
    if given.get("optimizer") == "sgd":
        habits["use_distributed_optimizer"] = False
    if given.get("transformer_impl") == "local":
        habits["moe_grouped_gemm"] = habits["moe_permute_fusion"] = False
    return habits


UNFUSED = (
    "qwen2 qwen3 qwen3_moe qwen3_next mistral ministral3 hy_v3 ernie4_5 ernie4_5_moe bailing_moe deepseek_v4 glm_moe_dsa sarvam_moe "
    "sarvam_mla"
)
"""Families whose provider leaves the activation unfused, and which are estimated with what `pretrain_gpt.py` fuses."""
LOSSES = {
    "te": "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 kimi_k2 kimi_linear sarvam_moe sarvam_mla",
    "native": "qwen2 qwen3 qwen3_moe qwen3_next mistral ministral3 hy_v3 ernie4_5 ernie4_5_moe bailing_moe glm_moe_dsa llama nemotron "
    "nemotron-nas nemotron_h exaone4 exaone_moe gpt_oss glm4_moe glm4_moe_lite olmoe minimax_m2 minimax_m3_vl_text mimo_v2_flash "
    "step3p5 gemma2 gemma3_text gemma4_text qwen3_vl_text qwen3_vl_moe_text qwen3_5_text qwen3_5_moe_text",
}
"""Families by the fused loss of their provider; the class has the native one (`models/gpt_provider.py`, `hybrid/hybrid_provider.py`)."""
LOSS, IMPLEMENTATION = "cross_entropy_loss_fusion", "cross_entropy_fusion_impl"


def open_fusions(family: str, values: Mapping[str, Any]) -> Iterator[OpenSetting]:
    """The fusions that nothing gives and that Megatron-Bridge decides otherwise for a family than what is taken, Megatron-LM's own."""
    who = f"as Megatron-Bridge builds {family}"
    if "bias_activation_fusion" not in values and family in UNFUSED.split():
        flag = "--no-bias-activation-fusion"
        yield OpenSetting((("bias_activation_fusion", False),), "fused activation", "on", f"off, {who}", flag)
    loss = next((name for name, families in LOSSES.items() if family in families.split()), "")
    if loss and LOSS not in values:
        flag = f"--cross-entropy-loss-fusion --cross-entropy-fusion-impl {loss}"
        yield OpenSetting(((LOSS, True), (IMPLEMENTATION, loss)), "unfused loss", "off", f"{loss}, {who}", flag)
