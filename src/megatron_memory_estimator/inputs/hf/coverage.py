"""Every bridge of Megatron-Bridge for a decoder, and what is said of its models here: estimated, parameters only, or refused.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/` (067f987d). Bridges of other models (diffusion, video) are left out.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import EstimatorError
from ..catalog import entries
from .convert import convert
from .towers import READERS


class Bridge(NamedTuple):
    """A bridge: its file, published models, and what shows what becomes of them.

    example  an entry of the catalogue, as it is or (with `kind`) as the language model of this model_type
    whole    model_type of the whole model where it has a tower
    """

    file: str
    checkpoints: str
    example: str
    kind: str = ""
    whole: str = ""


class Status(NamedTuple):
    """What is said of the models of a bridge: whether memory is estimated, why it is not, and with which code figures are true."""

    memory: str
    reason: str
    code: str
    tower: str


BRIDGES = (
    Bridge("bailing/bailing_moe2", "Ling 2.0 mini, flash, 1T; Ring", "inclusionAI/Ling-flash-2.0"),
    Bridge("deepseek/deepseek_v2", "DeepSeek-V2, V2-Lite", "deepseek-ai/DeepSeek-V2"),
    Bridge("deepseek/deepseek_v3", "DeepSeek-V3, V3.1, R1; Moonlight", "deepseek-ai/DeepSeek-V3"),
    Bridge("deepseek/deepseek_v4", "DeepSeek-V4-Flash, V4-Pro", "deepseek-ai/DeepSeek-V4-Flash"),
    Bridge("ernie/ernie_45", "ERNIE-4.5-21B-A3B", "baidu/ERNIE-4.5-21B-A3B-PT"),
    Bridge(
        "ernie_vl/ernie45_vl", "ERNIE-4.5-VL-28B-A3B, 424B-A47B",
        "baidu/ERNIE-4.5-21B-A3B-PT", "ernie4_5_vl_moe_text", "ernie4_5_vl_moe",
    ),
    Bridge("exaone/exaone4", "EXAONE-4.0 1.2B, 32B", "LGAI-EXAONE/EXAONE-4.0-32B"),
    Bridge("exaone/exaone45", "EXAONE-4.5 33B", "LGAI-EXAONE/EXAONE-4.0-32B", "exaone4_5_text", "exaone4_5"),
    Bridge("exaone/exaone_moe", "K-EXAONE-236B-A23B", "LGAI-EXAONE/K-EXAONE-236B-A23B"),
    Bridge("falcon_h1/falconh1", "Falcon-H1 0.5B to 34B", "tiiuae/Falcon-H1-7B-Instruct"),
    Bridge("gemma/gemma", "Gemma 2B, 7B", "google/gemma-2-2b", "gemma"),
    Bridge("gemma/gemma2", "Gemma 2 2B, 9B, 27B", "google/gemma-2-27b"),
    Bridge("gemma/gemma3", "Gemma 3 1B", "google/gemma-3-1b-pt"),
    Bridge("gemma_vl/gemma3_vl", "Gemma 3 4B, 12B, 27B; MedGemma", "google/gemma-3-27b-pt", whole="gemma3"),
    Bridge("gemma/gemma4", "Gemma 4 26B-A4B", "google/gemma-4-26B-A4B"),
    Bridge("gemma_vl/gemma4_vl", "Gemma 4 E2B, E4B, 31B", "google/gemma-4-E4B", whole="gemma4"),
    Bridge("glm/glm45", "GLM-4.5, 4.5-Air, 4.6, 4.7", "zai-org/GLM-4.5"),
    Bridge("glm/glm47_flash", "GLM-4.7-Flash", "zai-org/GLM-4.7-Flash"),
    Bridge("glm_moe_dsa/glm5", "GLM-5, 5.1, 5.2", "zai-org/GLM-5"),
    Bridge("glm_vl/glm_45v", "GLM-4.5V, 4.6V", "zai-org/GLM-4.5-Air", "glm4v_moe_text", "glm4v_moe"),
    Bridge("gpt_oss/gpt_oss", "gpt-oss 20B, 120B", "openai/gpt-oss-120b"),
    Bridge("hy_v3/hy_v3", "Hy3-preview", "tencent/Hy3-preview"),
    Bridge("kimi/kimi", "Kimi-K2, K2-Thinking", "moonshotai/Kimi-K2-Instruct"),
    Bridge("kimi/kimi_k3", "Kimi-K3", "moonshotai/Kimi-K3", whole="kimi_k3"),
    Bridge("kimi_vl/kimi_k25_vl", "Kimi-K2.5, K2.6", "moonshotai/Kimi-K2.5", whole="kimi_k25"),
    Bridge("llama/llama", "Llama 1 to 3.3", "meta-llama/Llama-3.1-8B"),
    Bridge("llama_nemotron/llama_nemotron", "Llama-3.3-Nemotron-Super-49B, Ultra-253B", "nvidia/Llama-3_3-Nemotron-Super-49B-v1"),
    Bridge("mimo/mimo", "MiMo-7B", "Qwen/Qwen2.5-7B", "mimo"),
    Bridge("mimo_v2_flash/mimo_v2_flash", "MiMo-V2-Flash", "XiaomiMiMo/MiMo-V2-Flash"),
    Bridge("minimax_m2/minimax_m2", "MiniMax-M2, M2.1, M2.5, M2.7", "MiniMaxAI/MiniMax-M2.5"),
    Bridge("minimax_m3/minimax_m3", "MiniMax-M3", "MiniMaxAI/MiniMax-M3", whole="minimax_m3_vl"),
    Bridge(
        "ministral3/ministral3", "Ministral-3 3B, 8B, 14B; Mistral-Small-3.1, 3.2",
        "mistralai/Ministral-3-8B-Instruct-2512", whole="mistral3",
    ),
    Bridge("mistral/mistral", "Mistral 7B, Nemo, Small", "mistralai/Mistral-7B-v0.3"),
    Bridge("nemotron/nemotron", "Minitron, Nemotron-4", "nvidia/Nemotron-4-15B-Base"),
    Bridge("nemotronh/nemotron_h", "Nemotron-H, Nano v2, Nemotron-3 Nano, Super, Ultra", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
    Bridge("nemotron_vl/nemotron_vl", "Nano-12B-v2-VL", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nemotron_h", "NemotronH_Nano_VL_V2"),
    Bridge(
        "nemotron_omni/nemotron_omni", "Nemotron-3-Nano-Omni",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron_h", "NemotronH_Nano_Omni_Reasoning_V3",
    ),
    Bridge("olmoe/olmoe", "OLMoE-1B-7B", "allenai/OLMoE-1B-7B-0924"),
    Bridge("qwen/qwen2", "Qwen2, Qwen2.5", "Qwen/Qwen2.5-7B"),
    Bridge("qwen_audio/qwen2_audio", "Qwen2-Audio", "Qwen/Qwen2.5-7B", "qwen2", "qwen2_audio"),
    Bridge("qwen_vl/qwen25_vl", "Qwen2.5-VL 3B to 72B", "Qwen/Qwen2.5-7B", "qwen2_5_vl_text", "qwen2_5_vl"),
    Bridge("qwen_omni/qwen25_omni", "Qwen2.5-Omni", "Qwen/Qwen2.5-7B", "qwen2_5_omni_text", "qwen2_5_omni"),
    Bridge("qwen/qwen3", "Qwen3 0.6B to 32B", "Qwen/Qwen3-8B"),
    Bridge("qwen3_asr/qwen3_asr", "Qwen3-ASR", "Qwen/Qwen3-0.6B", "qwen3_asr_text", "qwen3_asr"),
    Bridge("qwen/qwen3_moe", "Qwen3 30B-A3B, 235B-A22B, Coder", "Qwen/Qwen3-235B-A22B"),
    Bridge("qwen_omni/qwen3_omni", "Qwen3-Omni-30B-A3B", "Qwen/Qwen3-30B-A3B", "qwen3_omni_moe_text", "qwen3_omni_moe"),
    Bridge("qwen_vl/qwen3_vl", "Qwen3-VL 2B to 32B", "Qwen/Qwen3-VL-8B-Instruct", whole="qwen3_vl"),
    Bridge("qwen_vl/qwen3_vl (MoE)", "Qwen3-VL-30B-A3B, 235B-A22B", "Qwen/Qwen3-VL-30B-A3B-Instruct", whole="qwen3_vl_moe"),
    Bridge("qwen/qwen3_next", "Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    Bridge("qwen/qwen35", "Qwen3.5, Qwen3.6 text", "Qwen/Qwen3.5-4B"),
    Bridge("qwen_vl/qwen35_vl", "Qwen3.5 0.8B to 27B", "Qwen/Qwen3.5-9B", whole="qwen3_5"),
    Bridge(
        "qwen_vl/qwen35_vl (MoE)", "Qwen3.5 35B-A3B, 122B-A10B, 397B-A17B; Qwen3.6-35B-A3B",
        "Qwen/Qwen3.5-397B-A17B", whole="qwen3_5_moe",
    ),
    Bridge("sarvam/sarvam_mla", "sarvam-105b", "sarvamai/sarvam-105b"),
    Bridge("sarvam/sarvam_moe", "sarvam-30b", "sarvamai/sarvam-30b"),
    Bridge("stepfun/step35", "Step-3.5-Flash", "stepfun-ai/Step-3.5-Flash"),
    Bridge("stepfun/step37", "Step-3.7-Flash", "stepfun-ai/Step-3.5-Flash", "step3p7_text", "step3p7"),
)  # fmt: skip

OWN = "Megatron-Bridge's own modules"
CORE = "Megatron-Core's modules"
DEV = "Megatron-LM's dev branch"


def status(bridge: Bridge) -> Status:
    """What becomes of the models of a bridge."""
    config = entries()[bridge.example]["config"]
    if bridge.kind:
        config = {**(config.get("text_config") or config), "model_type": bridge.kind}
    tower = "" if not bridge.whole else "counted" if bridge.whole in READERS else "not counted, and said so"
    try:
        found = convert(config, bridge.example, "the catalogue")
    except EstimatorError as error:
        return Status("refused", reason_of(str(error), bridge.example), "", "")
    if found.refusal:
        return Status("parameters only", reason_of(found.refusal, bridge.example), "", tower)
    code = OWN if found.provider else CORE
    dev = found.config.get("experimental_attention_variant") == "dsv4_hybrid"
    return Status("estimated", "", DEV if dev else code, tower)


def reason_of(said: str, name: str) -> str:
    """A refusal without the model's name."""
    said = said.removeprefix(f"{name}: ")
    return said.partition(" is not supported; what is not modelled: ")[2] or said
