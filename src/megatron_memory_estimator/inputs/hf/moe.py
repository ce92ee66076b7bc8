"""Mixture-of-experts decoders with softmax attention."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from .fields import Converted, Fields, Provider

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOPK = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_experts_per_token", "experts_per_token")
WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
DENSE_WIDTH = (*WIDTH, "intermediate_size")
"""The width of an expert in families without dense layers may stand where a dense MLP's does."""


def routed(f: Fields, width: tuple[str, ...] = WIDTH, *, aux: str = "aux_loss") -> dict[str, Any]:
    """Settings that all MoE families share."""
    found: dict[str, Any] = {
        "num_moe_experts": f.whole(*EXPERTS),
        "moe_router_topk": f.whole(*TOPK),
        "moe_ffn_hidden_size": f.whole(*width),
        "moe_router_load_balancing_type": (aux,),
    }
    sigmoid = f.word("scoring_func", "score_function") == "sigmoid"
    if sigmoid:
        found["moe_router_score_function"] = "sigmoid"
    if f.word("topk_method") == "noaux_tc" or f.switch(
        "moe_router_enable_expert_bias", "use_routing_bias", default=False
    ):
        found["moe_router_enable_expert_bias"] = True
    groups, topk = f.optional_whole("n_group"), f.optional_whole("topk_group")
    if groups and topk and groups > 1:
        found["moe_router_num_groups"], found["moe_router_group_topk"] = groups, topk
    return found


def placement(f: Fields, is_moe: list[bool]) -> Any:
    """`moe_layer_freq`: 1 when every layer is MoE, else a 0/1 list."""
    return 1 if all(is_moe) else tuple(int(one) for one in is_moe)


def first_dense(f: Fields) -> Any:
    """The first `first_k_dense_replace` layers are dense; `mlp_layer_types` or a list of 0 and 1 says it layer by layer."""
    dense, layers = f.whole("first_k_dense_replace", default=0), f.whole("num_hidden_layers")
    kinds, freq = f.items("mlp_layer_types"), f.raw("moe_layer_freq")
    if kinds:
        if any(kind not in ("dense", "sparse") for kind in kinds):
            raise ConfigError("mlp_layer_types in config.json must be made of dense and sparse")
        return placement(f, [kind == "sparse" for kind in kinds])
    if isinstance(freq, list):
        if not f.wholes("moe_layer_freq") <= {0, 1}:
            raise ConfigError("moe_layer_freq in config.json must be a whole number or a list of 0 and 1")
        return placement(f, [one == 1 for one in freq])
    every = f.count("moe_layer_freq", default=1)
    return placement(f, [i >= dense and i % every == 0 for i in range(layers)])


def sparse_step(f: Fields) -> Any:
    """Qwen: MoE where the step says so, except for `mlp_only_layers`."""
    step, only = f.whole("decoder_sparse_step", default=1), f.wholes("mlp_only_layers")
    layers = range(f.whole("num_hidden_layers"))
    return placement(f, [i not in only and (i + 1) % max(step, 1) == 0 for i in layers])


def mixtral(f: Fields) -> Converted:
    """Mixtral: every layer MoE, no shared expert."""
    return Converted(routed(f, DENSE_WIDTH))


def qwen2_moe(f: Fields) -> Converted:
    """Qwen2-MoE: bias on query, key and value; a gated shared expert."""
    f.always(qkv_bias=True)
    f.implied(attention_bias=True)
    return Converted(
        {
            **routed(f),
            "add_qkv_bias": True,
            "moe_layer_freq": sparse_step(f),
            "moe_shared_expert_intermediate_size": f.whole("shared_expert_intermediate_size", default=5632),
            "moe_shared_expert_gate": True,
        }
    )


def qwen3_moe(f: Fields) -> Converted:
    """Qwen3-MoE and Qwen3-VL-MoE's text: norms per head on query and key, no shared expert."""
    f.implied(use_qk_norm=True)
    return Converted(
        {
            **routed(f),
            "qk_layernorm": True,
            "add_qkv_bias": f.switch("attention_bias", default=False),
            "moe_layer_freq": sparse_step(f),
        }
    )


def glm4_moe(f: Fields) -> Converted:
    """GLM-4.5: sigmoid routing with an expert bias, shared experts, dense first layers."""
    width = f.whole("moe_intermediate_size")
    return Converted(
        {
            **routed(f),
            "add_qkv_bias": f.switch("attention_bias", default=True),
            "qk_layernorm": f.switch("use_qk_norm", default=False),
            "moe_layer_freq": first_dense(f),
            "moe_shared_expert_intermediate_size": f.whole("n_shared_experts", default=1) * width,
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
        }
    )


def dots1(f: Fields) -> Converted:
    """dots.llm1: norms per head on query and key, shared experts."""
    return Converted(
        {
            **routed(f),
            "qk_layernorm": True,
            "moe_layer_freq": first_dense(f),
            "moe_shared_expert_intermediate_size": f.whole("n_shared_experts", default=2)
            * f.whole("moe_intermediate_size"),
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
        }
    )


def sigmoid_moe(f: Fields) -> dict[str, Any]:
    """Sigmoid routing with an expert bias, `num_shared_experts` shared experts, dense first layers (Hy3, Sarvam)."""
    shared = f.whole("num_shared_experts", "n_shared_experts", default=1) * f.whole("moe_intermediate_size")
    return {
        **routed(f),
        "moe_layer_freq": first_dense(f),
        "moe_shared_expert_intermediate_size": shared or None,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    }


def normed_moe(f: Fields) -> Converted:
    """Hy3, Sarvam-MoE: norms per head on query and key, no bias.

    Sources: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/hy_v3/hy_v3_bridge.py`, `sarvam/`.
    """
    f.always(qk_norm=True, use_qk_norm=True)
    return Converted({**sigmoid_moe(f), "qk_layernorm": True})


def bias_parameters(f: Fields, freq: Any) -> tuple[tuple[str, int], ...]:
    """Router correction biases that the Hugging Face class holds as parameters and Megatron-Core as buffers."""
    layers = f.whole("num_hidden_layers") if freq == 1 else sum(freq)
    return (("router correction bias (a buffer in Megatron-Core)", f.whole(*EXPERTS) * layers),)


def bailing(f: Fields) -> Converted:
    """Ling 2.0 (BailingMoeV2)."""
    f.implied(use_rmsnorm=True)
    shared = f.optional_whole("moe_shared_expert_intermediate_size") or f.whole("moe_intermediate_size")
    return Converted(
        {
            **routed(f),
            "qk_layernorm": f.switch("use_qk_norm", default=False),
            "add_qkv_bias": f.switch("use_qkv_bias", default=False),
            "moe_layer_freq": first_dense(f),
            "moe_shared_expert_intermediate_size": shared * f.whole("num_shared_experts", default=0) or None,
        },
        extra=bias_parameters(f, first_dense(f)),
    )


def ernie_moe(f: Fields) -> Converted:
    """ERNIE 4.5 MoE."""
    f.implied(use_rmsnorm=True)
    layers = range(f.whole("num_hidden_layers"))
    start, end = f.whole("moe_layer_start_index", default=0), f.whole("moe_layer_end_index", default=len(layers) - 1)
    every = max(f.whole("moe_layer_interval", default=1), 1)
    shared = f.whole("moe_num_shared_experts", default=0) * f.whole("moe_intermediate_size")
    freq = placement(f, [start <= i <= end and (i + 1) % every == 0 for i in layers])
    return Converted(
        {
            **routed(f),
            "moe_layer_freq": freq,
            "moe_shared_expert_intermediate_size": shared or None,
            "moe_router_enable_expert_bias": f.switch("moe_use_aux_free", default=False),
        },
        extra=bias_parameters(f, freq),
    )


def hunyuan_moe(f: Fields) -> Converted:
    """Hunyuan-A13B: per-layer lists, one shared expert."""
    layers, skipped = range(f.whole("num_hidden_layers")), f.whole("moe_layer_num_skipped", default=0)
    f.implied(use_mixed_mlp_moe=True)
    return Converted(
        {
            **routed(f, DENSE_WIDTH),
            "qk_layernorm": f.switch("use_qk_norm", default=False),
            "moe_layer_freq": placement(f, [i >= skipped for i in layers]),
            "moe_shared_expert_intermediate_size": f.whole("num_shared_expert", default=1) * f.whole(*DENSE_WIDTH),
        }
    )


def llama4(f: Fields) -> Converted:
    """Llama 4: top-1 sigmoid routing, one shared expert of an expert's width, L2 norm on query and key."""
    layers, step = range(f.whole("num_hidden_layers")), max(f.whole("interleave_moe_layer_step", default=1), 1)
    listed = f.wholes("moe_layers")
    is_moe = [i in listed if listed else (i + 1) % step == 0 for i in layers]
    width = f.whole("intermediate_size")
    return Converted(
        {
            **routed(f, DENSE_WIDTH),
            "ffn_hidden_size": f.whole("intermediate_size_mlp", default=width),
            "moe_ffn_hidden_size": width,
            "moe_shared_expert_intermediate_size": width,
            "moe_router_score_function": "sigmoid",
            "moe_layer_freq": placement(f, is_moe),
            "qk_l2_norm": f.switch("use_qk_norm", default=True),
        },
        warnings=(
            "Llama 4 multiplies expert inputs by the probabilities; they are priced as multiplied in the activation",
        ),
    )


def gpt_oss(f: Fields) -> Converted:
    """gpt-oss: biases everywhere, attention sinks, clamped gated activation."""
    f.always(attention_bias=True)
    return Converted(
        {
            **routed(f, DENSE_WIDTH),
            "add_bias_linear": True,
            "add_qkv_bias": True,
            "bias_dropout_fusion": False,  # which grouped experts with biases exclude
            "softmax_type": "learnable",
            "activation_func": "quick_gelu",
            "activation_func_clamp_value": f.number("swiglu_limit", default=7.0) or 7.0,
        }
    )


def minimax_m3(f: Fields) -> Converted:
    """MiniMax-M3's language model: dense first layers, routers in fp32, a clamped quick GELU with an offset; no MTP weights are published.

    The published lightning indexer is frozen state of the vision-language model that never runs: attention is full in every layer.
    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/minimax_m3/minimax_m3_bridge.py`.
    """
    if f.word("qk_norm_type", default="per_head") != "per_head":
        raise ConfigError("qk_norm_type in config.json of minimax_m3 must be per_head")
    f.always(use_gemma_norm=True, scoring_func="sigmoid", use_routing_bias=True)
    shared = f.whole("n_shared_experts", default=1) * f.whole("shared_intermediate_size", default=0)
    d = f.count("head_dim", default=128)
    settings = {
        **routed(f, ("intermediate_size",)),
        "ffn_hidden_size": f.count("dense_intermediate_size"),
        "moe_layer_freq": first_dense(f),
        "moe_shared_expert_intermediate_size": shared or None,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_weight_in_fp32": True,
        "moe_router_dtype": "fp32",
        "activation_func": "quick_gelu",
        "activation_func_clamp_value": f.number("swiglu_limit", default=7.0) or 7.0,
        "qk_layernorm": f.switch("use_qk_norm", default=True),
        "rotary_percent": f.count("rotary_dim", default=d, most=d) / d,
        "mtp_num_layers": None,
        "scatter_embedding_sequence_parallel": False,
    }
    what = "routers in fp32, a clamped activation with an offset"
    return Converted(settings, extra=_lightning_indexer(f), provider=Provider("MiniMaxM3ModelProvider", what))


def _lightning_indexer(f: Fields) -> tuple[tuple[str, int], ...]:
    """Projections and norms of the indexer's queries and of its one key, in the layers that have it."""
    sparse = f.section("sparse_attention_config")
    listed = sparse.items("sparse_attention_freq")
    heads, d = sparse.whole("sparse_num_index_heads", default=0), sparse.whole("sparse_index_dim", default=0)
    each = (heads + 1) * d * f.count("hidden_size") + 2 * d
    return (("lightning indexer (frozen, never run)", each * sum(one == 1 for one in listed)),)
