"""The table from model_type to its mapping. One family is one small function; a new one is one function and one entry.

Families with layers that Megatron-Core does not have: their parameters are counted, their memory is refused by name.

Each gives the nearest Megatron model and, by name, the parameters that it has more or less than that.

Language models that differ from their family's where they stand behind a tower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import UnsupportedError
from ...job.model import known_text
from .deepseek import deepseek, deepseek_v4, deepseek_v41, glm_lite, kimi_k3, sarvam_mla
from .dense import (
    cohere,
    falcon,
    gemma,
    gpt2,
    llama,
    minimax_m2,
    nemotron,
    nemotron_nas,
    olmoe,
    plain_llama,
    qwen2,
    qwen3,
)
from .fields import Converted, Fields
from .gemma import gemma2, gemma3, gemma4
from .hybrid import falcon_h1, nemotron_h, qwen4_exp, qwen_next
from .moe import (
    DENSE_WIDTH,
    bailing,
    dots1,
    ernie_moe,
    glm4_moe,
    gpt_oss,
    hunyuan_moe,
    llama4,
    minimax_m3,
    mixtral,
    normed_moe,
    qwen2_moe,
    qwen3_moe,
    routed,
)
from .windowed_moe import exaone4, exaone45, exaone_moe, mimo_v2, step

__all__ = ["FAMILIES", "REFUSED", "TIED", "Converted", "plain_llama", "refused"]


def _sizes(f: Fields) -> tuple[int, int]:
    return f.count("hidden_size"), f.count("num_hidden_layers")


def _heads(f: Fields) -> int:
    return f.count("num_attention_heads")


def _projection_norms(f: Fields) -> int:
    """Norms over the whole query and key projections, in place of norms per head (which the nearest model lacks)."""
    hidden, layers = _sizes(f)
    heads = _heads(f)
    d = f.whole("head_dim", default=hidden // heads)
    return (heads + f.whole("num_key_value_heads", default=heads)) * d * layers


def olmo2(f: Fields) -> Converted:
    """OLMo 2: norms after attention and MLP, norms over whole projections."""
    return Converted(
        {},
        extra=(("norms over the query and key projections", _projection_norms(f)),),
        refusal="post-norms and norms over whole projections (OLMo 2) are not in Megatron-Core's transformer layer",
    )


def minimax_m1(f: Fields) -> Converted:
    """MiniMax-M1: lightning attention in most layers."""
    f.implied(postnorm=True, shared_moe_mode="sigmoid")
    hidden, _ = _sizes(f)
    heads, groups, d = _heads(f), f.whole("num_key_value_heads"), f.whole("head_dim")
    lightning = sum(kind == 0 for kind in f.items("attn_type_list"))
    softmax = hidden * d * (2 * heads + 2 * groups)
    linear = hidden * d * heads * 5 + heads * d
    return Converted(
        routed(f, DENSE_WIDTH),
        extra=(("lightning attention", lightning * (linear - softmax)),),
        refusal="lightning attention (MiniMax-M1) is not in Megatron-Core",
    )


def glm4v_moe(f: Fields) -> Converted:
    """GLM-4.5V: GLM-4.5's decoder without MTP, whatever the file says.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/glm_vl/glm_45v_bridge.py`.
    """
    found = glm4_moe(f)
    return found._replace(settings={**found.settings, "mtp_num_layers": 0})


Family = Callable[[Fields], Converted]

FAMILIES: dict[str, Family] = {
    "llama": llama,
    "mistral": llama,
    "mistral3": llama,
    "ministral3": llama,
    "granite": llama,
    "smollm3": llama,
    "ernie4_5": llama,
    "phi3": llama,
    "gemma": gemma,
    "nemotron": nemotron,
    "qwen2": qwen2,
    "qwen2_vl": qwen2,
    "qwen2_vl_text": qwen2,
    "qwen2_5_vl": qwen2,
    "qwen2_5_vl_text": qwen2,
    "qwen2_5_omni_text": qwen2,
    "mimo": qwen2,
    "qwen3": qwen3,
    "qwen3_vl_text": qwen3,
    "qwen3_asr_text": qwen3,
    "gpt2": gpt2,
    "falcon": falcon,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_vl_moe_text": qwen3_moe,
    "qwen3_omni_moe_text": qwen3_moe,
    "glm4_moe": glm4_moe,
    "glm4v_moe_text": glm4v_moe,
    "dots1": dots1,
    "bailing_moe": bailing,
    "bailing_moe_v2": bailing,
    "ernie4_5_moe": ernie_moe,
    "hunyuan_v1_moe": hunyuan_moe,
    "hy_v3": normed_moe,
    "sarvam_moe": normed_moe,
    "sarvam_mla": sarvam_mla,
    "llama4_text": llama4,
    "gpt_oss": gpt_oss,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "deepseek_v4": deepseek_v4,
    "deepseek_v41_text": deepseek_v41,
    "kimi_k2": deepseek,
    "glm_moe_dsa": deepseek,
    "glm4_moe_lite": glm_lite,
    "qwen3_next": qwen_next,
    "qwen3_5_text": qwen_next,
    "qwen3_5_moe_text": qwen_next,
    "qwen4_exp_text": qwen4_exp,
    "nemotron_h": nemotron_h,
    "kimi_linear": kimi_k3,
    "kimi_k3": kimi_k3,
    "falcon_h1": falcon_h1,
    "cohere": cohere,
    "cohere2": cohere,
    "exaone4": exaone4,
    "exaone4_5_text": exaone45,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma4_text": gemma4,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "olmoe": olmoe,
    "minimax_m1": minimax_m1,
    "minimax_m2": minimax_m2,
    "nemotron-nas": nemotron_nas,
    "exaone_moe": exaone_moe,
    "mimo_v2_flash": mimo_v2,
    "step3p5": step,
    "step3p7": step,
    "step3p7_text": step,
}

TIED = frozenset(
    {
        "gemma", "gemma2", "gemma3_text", "gemma4_text", "cohere", "cohere2", "gpt2", "falcon", "smollm3", "ernie4_5",
        "ernie4_5_moe",
    }
)  # fmt: skip
"""Families whose embeddings are tied when the config does not say (huggingface/transformers configuration classes)."""


class Refused(NamedTuple):
    """What of a family is not modelled; and a published model of it with its parameters, where they are known."""

    what: str
    model: str = ""
    parameters: int = 0

    def __str__(self) -> str:
        return f"{self.what} ({self.model}: {known_text(self.parameters)})" if self.model else self.what


TWO_POOLS = Refused(
    "two pools of experts of different width in a layer, for tokens of text and of images, each with a router of its own"
)
SHORT_CONVOLUTIONS = "short convolutions between layers of attention"
REFUSED: dict[str, Refused] = {
    "ernie4_5_moe_vl": TWO_POOLS,
    "ernie4_5_vl_moe": TWO_POOLS,
    "ernie4_5_vl_moe_text": TWO_POOLS,
    "bailing_hybrid": Refused("Kimi delta attention beside latent attention", "Ling-3.0-Flash", 124_414_191_072),
    "glm4": Refused("norms after attention and after the MLP"),
    "glm5_next_text": Refused(
        "Kimi delta attention beside latent attention with pooled index keys, and four residual streams",
        "GLM-5.3-Flash",
        313_326_816_766,
    ),
    "hunyuan_v1_dense": Refused("norms on query and key"),
    "hy_v4": Refused(
        "an indexer with sinks and a gate in latent attention, and hyper-connections",
        "the class's defaults",
        58_278_193_133,
    ),
    "inkling_text": Refused(
        "relative positions, and convolutions on keys, values and outputs", "Inkling", 975_340_270_146
    ),
    "lfm2": Refused(SHORT_CONVOLUTIONS),
    "lfm2_moe": Refused(SHORT_CONVOLUTIONS, "LFM2-8B-A1B", 8_339_929_856),
    "lfm3": Refused(SHORT_CONVOLUTIONS, "LFM3-1.7B", 1_728_801_536),
    "muse_glimmer_text": Refused(
        "four norms in a layer and a gate of attention with a projection of its own", "Muse-Glimmer-30B", 27_854_780_928
    ),
    "olmo": Refused("norms without weights"),
    "qwen": Refused("an MLP of half the width that intermediate_size says"),
}
"""What is not modelled of models that Megatron-Bridge trains (NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/`,
067f987d), of a few whose config.json looks like a plain decoder's but is none (huggingface/transformers), and of families of the winter of
2026 that no release of Megatron-Core has; their parameters are those of the classes of huggingface/transformers 5.23."""


def refused(name: str, model_type: str) -> UnsupportedError:
    """The refusal of a model of a family that is not modelled."""
    return UnsupportedError(f"{name}: {model_type} is not supported; what is not modelled: {REFUSED[model_type]}")
