"""DeepSeek-V4 Flash and Pro: compressed sparse attention, experts by hash, hyper-connections.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/deepseek/deepseek_v4_bridge.py`; huggingface/transformers
`DeepseekV4Config`; NVIDIA/Megatron-LM `dev` (2f2f8ebae) `examples/moe_recipes/deepseek_v4_{flash,pro}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from ...wording import shown
from .converted import Converted
from .fields import Fields
from .moe import routed

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens per compressed key of the kinds that newer files name."""
CODE = (
    "DeepSeek-V4's layers are those of Megatron-LM's dev branch (2f2f8ebae), with fused kernels as on Blackwell: "
    "dsa_kernel_backend none and use_fused_mhc false are what PyTorch runs"
)


def deepseek_v4(f: Fields) -> Converted:
    """Window, CSA and HCA layers, all with experts, of which the first are chosen by the token's hash."""
    width = f.whole("moe_intermediate_size")
    experts = routed(f, aux="seq_aux_loss")
    experts["moe_router_score_function"] = f.word("scoring_func", default="sqrtsoftplus")
    rope = f.raw("rope_scaling") or f.raw("rope_parameters")
    positions = rope.get("original_max_position_embeddings", 65536) if isinstance(rope, Mapping) else 65536
    f.implied(num_key_value_heads=1, norm_topk_prob=True)
    return Converted(
        {
            **experts,
            "moe_router_enable_expert_bias": True,
            "moe_layer_freq": 1,
            "moe_shared_expert_intermediate_size": f.whole("n_shared_experts", default=1) * width or None,
            "moe_router_dtype": "fp32",
            "moe_n_hash_layers": hash_layers(f),
            "ffn_hidden_size": width,
            "activation_func_clamp_value": f.number("swiglu_limit", default=10) or None,
            "multi_latent_attention": True,
            "experimental_attention_variant": "dsv4_hybrid",
            "csa_compress_ratios": ratios(f),
            "csa_window_size": f.count("sliding_window", default=128),
            "num_query_groups": None,
            "kv_channels": None,
            "qk_layernorm": True,
            "q_lora_rank": f.whole("q_lora_rank"),
            "v_head_dim": f.whole("head_dim"),
            "qk_pos_emb_head_dim": f.whole("qk_rope_head_dim", default=64),
            "o_groups": f.count("o_groups"),
            "o_lora_rank": f.count("o_lora_rank"),
            "rope_type": "yarn",
            "original_max_position_embeddings": positions,
            "dsa_indexer_n_heads": f.whole("index_n_heads"),
            "dsa_indexer_head_dim": f.whole("index_head_dim"),
            "dsa_indexer_topk": f.whole("index_topk"),
            "dsa_indexer_use_sparse_loss": True,
            "dsa_kernel_backend": "cudnn",
            "enable_mhc_connections": f.whole("hc_mult", default=4) > 1,
            "mhc_num_residual_streams": f.count("hc_mult", default=4),
            "use_fused_mhc": f.whole("hc_mult", default=4) > 1,
            "make_vocab_size_divisible_by": 1280,
        },
        warnings=(CODE,),
    )


def ratios(f: Fields) -> tuple[int, ...]:
    """The compression ratio of every decoder layer and of MTP: as a list, or by the names of newer files, which leave MTP's out.

    Raises ConfigError for other kinds and rates.
    """
    listed = f.raw("compress_ratios")
    if isinstance(listed, list) and listed:
        if not f.wholes("compress_ratios") <= set(RATIOS.values()):
            raise ConfigError("compress_ratios in config.json must be a list of 0, 4 and 128")
        return tuple(listed)
    kinds, rates = f.items("layer_types"), f.raw("compress_rates")
    if not kinds or any(kind not in RATIOS for kind in kinds):
        raise ConfigError(f"config.json needs compress_ratios, or layer_types made of {', '.join(RATIOS)}")
    if isinstance(rates, Mapping) and any(
        rates.get(kind, ratio) not in (ratio, 0, None) for kind, ratio in RATIOS.items()
    ):
        raise ConfigError(f"compress_rates={shown(dict(rates))} in config.json are not those of DeepSeek-V4: 4 and 128")
    return (*(RATIOS[str(kind)] for kind in kinds), *[0] * f.whole("num_nextn_predict_layers", default=0))


def hash_layers(f: Fields) -> int:
    """The first layers whose experts are chosen by the token's hash; newer files name them layer by layer."""
    kinds: list[Any] = f.items("mlp_layer_types")
    if not kinds:
        return f.whole("num_hash_layers", default=0)
    count = sum(kind == "hash_moe" for kind in kinds)
    if any(kind == "hash_moe" for kind in kinds[count:]) or any(
        kind not in ("hash_moe", "moe", "sparse") for kind in kinds
    ):
        raise ConfigError("mlp_layer_types in config.json must be hash_moe for the first layers and moe for the others")
    return int(count)
