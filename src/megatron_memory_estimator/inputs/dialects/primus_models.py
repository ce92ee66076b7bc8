"""The models that Primus has files for, by the catalogue's names.

Source: AMD-AIG-AIMA/Primus `primus/configs/models/megatron/`.
"""

from __future__ import annotations

MODELS = {
    "llama2_7B": "meta-llama/Llama-2-7b-hf",
    "llama2_13B": "meta-llama/Llama-2-13b-hf",
    "llama2_70B": "meta-llama/Llama-2-70b-hf",
    "llama3_8B": "meta-llama/Meta-Llama-3-8B",
    "llama3_70B": "meta-llama/Meta-Llama-3-70B",
    "llama3.1_8B": "meta-llama/Llama-3.1-8B",
    "llama3.1_70B": "meta-llama/Llama-3.1-70B",
    "llama3.1_405B": "meta-llama/Llama-3.1-405B",
    "llama3.2_1B": "meta-llama/Llama-3.2-1B",
    "llama3.2_3B": "meta-llama/Llama-3.2-3B",
    "llama3.3_70B": "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek_v2_lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "mixtral_8x7B_v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral_8x22B_v0.1": "mistralai/Mixtral-8x22B-v0.1",
    "qwen2.5_7B": "Qwen/Qwen2.5-7B",
    "qwen2.5_72B": "Qwen/Qwen2.5-72B",
    "qwen3_8B": "Qwen/Qwen3-8B",
    "qwen3_32B": "Qwen/Qwen3-32B",
    "qwen3_30B_A3B": "Qwen/Qwen3-30B-A3B",
    "qwen3_235B_A22B": "Qwen/Qwen3-235B-A22B",
    "gpt_oss_20B": "openai/gpt-oss-20b",
    "gpt_oss_120B": "openai/gpt-oss-120b",
}
