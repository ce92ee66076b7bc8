"""DeepSeek-V2 and V3, Kimi-K2, Moonlight, GLM-4.7-Flash: multi-latent attention; DeepSeek-V3.2, GLM-5: with sparse attention."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from .converted import Converted
from .fields import Fields
from .moe import first_dense, routed, sigmoid_moe


def latent(f: Fields) -> dict[str, Any]:
    """Multi-latent attention; `q_lora_rank: null` means that the query is not compressed."""
    compressed = f.values.get("q_lora_rank", 1536)
    return {
        "multi_latent_attention": True,
        "q_lora_rank": None if compressed is None else f.whole("q_lora_rank", default=1536),
        "kv_lora_rank": f.whole("kv_lora_rank", default=512),
        "qk_head_dim": f.whole("qk_nope_head_dim", default=128),
        "qk_pos_emb_head_dim": f.whole("qk_rope_head_dim", default=64),
        "v_head_dim": f.whole("v_head_dim", default=128),
        "num_query_groups": None,
        "kv_channels": None,
        "qk_layernorm": True,
    }


def deepseek(f: Fields) -> Converted:
    """MLA with DeepSeek's experts, and sparse attention where the config has an indexer."""
    settings = latent(f)
    f.implied(qk_head_dim=settings["qk_head_dim"] + settings["qk_pos_emb_head_dim"])
    if f.optional_whole("n_routed_experts"):
        shared = f.whole("n_shared_experts", default=0) * f.whole("moe_intermediate_size")
        settings.update(routed(f, aux="seq_aux_loss"))
        settings["moe_layer_freq"] = first_dense(f)
        settings["moe_shared_expert_intermediate_size"] = shared or None
        settings["moe_router_pre_softmax"] = "moe_router_score_function" not in settings  # DeepSeek-V2
    if not f.has("index_topk"):
        return Converted(settings)
    settings.update(sparse(f))
    note = "sparse attention with the TileLang kernels; dsa_kernel_backend chooses another back end"
    return Converted(settings, warnings=(note,))


def sparse(f: Fields) -> dict[str, Any]:
    """The indexer, and which layers have one: GLM-5.2 shares the keys of one among `index_topk_freq` layers."""
    every, skipped = f.count("index_topk_freq", default=1), f.whole("index_skip_topk_offset", default=0)
    check_indexers(f, every, skipped)
    f.implied(layer_types=["indexed_attention"] * f.whole("num_hidden_layers"))
    shared = {"dsa_indexer_topk_freq": every, "dsa_indexer_skip_topk_offset": skipped} if every > 1 else {}
    return {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": f.whole("index_n_heads"),
        "dsa_indexer_head_dim": f.whole("index_head_dim"),
        "dsa_indexer_topk": f.whole("index_topk"),
        **shared,
        "apply_rope_fusion": False,
        "cp_comm_type": ("all_gather",),
        "dsa_kernel_backend": "tilelang",
    }


def check_indexers(f: Fields, every: int, skipped: int) -> None:
    """Refuse an `indexer_types` that says another sharing than the frequency and the offset (`frequency.owns_indexer`)."""
    kinds = f.items("indexer_types")
    first = max(skipped, 1)
    own = ["full" if max(layer + 1 - first, 0) % every == 0 else "shared" for layer in range(len(kinds))]
    if kinds != own:
        raise ConfigError(
            f"indexer_types in config.json does not follow index_topk_freq={every} and index_skip_topk_offset={skipped}, "
            "which is how Megatron-Core shares the keys of an indexer"
        )


def glm_lite(f: Fields) -> Converted:
    """GLM-4.7-Flash: DeepSeek-V3's block; sigmoid routing with an expert bias is implied by the type.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/glm/glm47_flash_bridge.py`.
    """
    implied = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    return Converted({**deepseek(f).settings, **implied})


def sarvam_mla(f: Fields) -> Converted:
    """Sarvam-MLA: multi-latent attention whose query is not compressed unless the config says so.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/sarvam/`.
    """
    rank = f.optional_whole("q_lora_rank")
    return Converted({**latent(f), **sigmoid_moe(f), "q_lora_rank": rank})
