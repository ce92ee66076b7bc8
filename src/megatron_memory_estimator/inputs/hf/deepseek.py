"""DeepSeek-V2 and V3, Kimi-K2, Moonlight, GLM-4.7-Flash: multi-latent attention; DeepSeek-V3.2, GLM-5: with sparse attention.

Kimi K3: Kimi Delta Attention and gated latent attention, attention residuals, experts in a narrower width.

DeepSeek-V4 Flash and Pro: compressed sparse attention, experts by hash, hyper-connections. DeepSeek-V4.1: its parameters.

Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/deepseek/deepseek_v4_bridge.py`; huggingface/transformers
`DeepseekV4Config`; NVIDIA/Megatron-LM `dev` (2f2f8ebae) `examples/moe_recipes/deepseek_v4_{flash,pro}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError, UnsupportedError
from ...job.model import LOOKED_UP
from ...wording import shown
from .fields import Converted, Fields, Provider
from .moe import first_dense, routed, sigmoid_moe


def latent(f: Fields) -> dict[str, Any]:
    """Multi-latent attention; `q_lora_rank: null` means that the query is not compressed."""
    compressed = f.values.get("q_lora_rank", 1536)
    f.implied(qk_head_dim=f.whole("qk_nope_head_dim", default=128) + f.whole("qk_rope_head_dim", default=64))
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


def kimi_k3(f: Fields) -> Converted:
    """Kimi K3's language model, whose type is Kimi Linear's.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/` (kimi_k3_bridge.py, kimi_k3_spec.py).
    """
    if not (f.has("attn_res_block_size") and f.has("routed_expert_hidden_size")):
        raise UnsupportedError(
            "Kimi Linear without attention residuals is not supported: NVIDIA-NeMo/Megatron-Bridge builds Kimi K3 alone"
        )
    f.always(
        mla_use_nope=True, mla_use_output_gate=True, latent_moe_use_norm=True, moe_router_activation_func="sigmoid"
    )
    f.implied(use_grouped_topk=True, num_expert_group=1, topk_group=1, head_dim=f.values.get("head_dim"))
    inner, layers = f.section("linear_attn_config"), f.count("num_hidden_layers")
    kda, full = inner.wholes("kda_layers"), inner.wholes("full_attn_layers")
    if kda & full or kda | full != set(range(1, layers + 1)):
        raise ConfigError(
            "kda_layers and full_attn_layers of linear_attn_config in config.json must be all layers, each once"
        )
    heads, d = inner.count("num_heads"), inner.count("head_dim")
    settings = {
        **latent(f),
        **routed(f),
        "attn_res_block_size": f.count("attn_res_block_size"),
        "experimental_attention_variant": "kda",
        "linear_attention_freq": tuple(int(layer in kda) for layer in range(1, layers + 1)),
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": d,
        "linear_value_head_dim": d,
        "linear_conv_kernel_dim": inner.count("short_conv_kernel_size", default=4),
        "position_embedding_type": "none",
        "activation_func": "situ",
        "moe_layer_freq": first_dense(f),
        "moe_latent_size": f.count("routed_expert_hidden_size"),
        "moe_latent_norm": f.switch("latent_moe_use_norm", default=True),
        "moe_shared_expert_intermediate_size": f.whole("num_shared_experts", "n_shared_experts", default=0)
        * f.count("moe_intermediate_size")
        or None,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": ("none",),
        "moe_router_dtype": "fp32",
    }
    what = "Kimi Delta Attention, attention residuals and an activation op by op in fp32"
    return Converted(settings, provider=Provider("Kimi K3 provider", what))


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


def deepseek_v41(f: Fields) -> Converted:
    """DeepSeek-V4.1: V4 with keys and values that few layers compress and others share, tables of n-grams (Engram) beside two layers, and
    drafts (DSpark) in the place of MTP, which are not counted. Counted by hand from the public config.json: no class of it is published.

    Sources: NVIDIA/Megatron-LM pull requests 7224, 7231 and 7285, docs/models/deepseek_v41.md.
    """
    h, layers, width = f.count("hidden_size"), f.count("num_hidden_layers"), f.whole("moe_intermediate_size")
    heads, d, query = f.whole("num_attention_heads"), f.whole("head_dim"), f.whole("q_lora_rank")
    output, streams = f.count("o_groups") * f.count("o_lora_rank"), f.count("hc_mult", default=4)
    own = (
        query * h
        + query
        + heads * d * query
        + d * h
        + d
        + output * heads * d // f.count("o_groups")
        + h * output
        + heads
    )
    plain = h * d * (2 * heads + 2 * f.whole("num_key_value_heads", default=1))
    mixing = (streams * streams + 2 * streams) * streams * h + streams * streams + 2 * streams + 3
    rates, sources = f.wholes_of("compress_ratios", least=0), sorted(f.wholes("kv_source_layer_ids"))
    if any(not 0 <= one < len(rates) for one in sources):
        raise ConfigError(
            f"kv_source_layer_ids in config.json must be below {len(rates)}, the number of compress_ratios"
        )
    compressors = sum((2 if rates[one] > 1 else 1) * d * h + d for one in sources)
    keys, index = f.whole("index_n_heads"), f.whole("index_head_dim")
    indexers = len(f.items("index_source_layer_ids")) * (keys * index * query + keys * h)
    indexers += len(sources) * (index * d + index)
    ngrams = f.whole("engram_max_ngram_size") - 1
    memory = ngrams * f.whole("engram_n_heads") * f.whole("engram_head_dim")
    rows, beside = sum(f.wholes_of("engram_num_embeddings", least=0)), len(f.items("engram_layer_ids"))
    tabled = rows * f.whole("engram_head_dim")
    fusion = beside * ((streams + 1) * h * memory + 2 * streams * h)
    f.implied(num_key_value_heads=1, norm_topk_prob=True, scoring_func="sqrtsoftplus", topk_method="noaux_tc")
    for name in UNCOUNTED_OF_V41:
        f.raw(name)
    return Converted(
        {
            **routed(f, aux="seq_aux_loss"),
            "moe_layer_freq": 1,
            "moe_shared_expert_intermediate_size": f.whole("n_shared_experts", default=1) * width or None,
            "ffn_hidden_size": width,
            "mtp_num_layers": 0,
        },
        extra=(
            ("compressed attention, in the place of a plain one", layers * (own - plain)),
            ("compressors of keys and values", compressors),
            ("indexers", indexers),
            ("hyper-connections", 2 * layers * mixing),
            ("fusion of n-grams", fusion),
            (f"{LOOKED_UP} ({rows:,} rows)", tabled),
        ),
        refusal="keys and values that layers share, single-pass hyper-connections and tables of n-grams (DeepSeek-V4.1) are in no release "
        f"of Megatron-Core; expert-parallel ranks alone share its {tabled / 1e9:.1f} billion parameters of tables",
    )


UNCOUNTED_OF_V41 = (
    "candidate_block_size", "candidate_source_layer_id", "candidate_topk_blocks", "compress_rope_theta", "dspark_block_size",
    "dspark_markov_rank", "dspark_n_routed_experts", "dspark_num_experts_per_tok", "dspark_target_layer_ids", "num_nextn_predict_layers",
    "engram_compressed_vocab_size", "engram_pad_token_id", "engram_vocab_size", "hc_sinkhorn_iters", "index_topk", "qk_rope_head_dim",
    "routed_scaling_factor", "sliding_window", "swiglu_limit",
)  # fmt: skip
"""Keys that say nothing of the parameters that are counted."""


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
