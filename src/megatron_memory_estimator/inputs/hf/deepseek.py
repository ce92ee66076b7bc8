"""DeepSeek-V2 and V3, Kimi-K2, Moonlight: multi-latent attention; DeepSeek-V3.2 and GLM-5: with sparse attention."""

from __future__ import annotations

from .converted import Converted
from .fields import Fields
from .moe import first_dense, routed


def deepseek(f: Fields) -> Converted:
    """MLA with DeepSeek's experts; `q_lora_rank: null` means that the query is not compressed."""
    moe = bool(f.optional_whole("n_routed_experts"))
    compressed = f.values.get("q_lora_rank", 1536)
    settings: dict[str, object] = {
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
    if moe:
        shared = f.whole("n_shared_experts", default=0) * f.whole("moe_intermediate_size")
        settings.update(routed(f, aux="seq_aux_loss"))
        settings["moe_layer_freq"] = first_dense(f)
        settings["moe_shared_expert_intermediate_size"] = shared or None
    if f.has("index_topk"):
        settings["experimental_attention_variant"] = "dsa"
        settings["dsa_indexer_n_heads"] = f.whole("index_n_heads")
        settings["dsa_indexer_head_dim"] = f.whole("index_head_dim")
        settings["dsa_indexer_topk"] = f.whole("index_topk")
        settings["apply_rope_fusion"] = False
        settings["cp_comm_type"] = ("all_gather",)
        settings["dsa_kernel_backend"] = "tilelang"
    return Converted(
        settings,
        warnings=("sparse attention with the TileLang kernels; dsa_kernel_backend chooses another back end",)
        if f.has("index_topk")
        else (),
    )
