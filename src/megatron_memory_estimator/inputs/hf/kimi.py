"""Kimi K3: Kimi Delta Attention and gated latent attention, attention residuals, experts in a narrower width."""

from __future__ import annotations

from ...errors import ConfigError, UnsupportedError
from .converted import Converted, Provider
from .deepseek import latent
from .fields import Fields
from .moe import first_dense, routed


def kimi_k3(f: Fields) -> Converted:
    """Kimi K3's language model, whose type is Kimi Linear's.

    Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/` (kimi_k3_bridge.py, kimi_k3_spec.py).
    """
    if not (f.has("attn_res_block_size") and f.has("routed_expert_hidden_size")):
        raise UnsupportedError(
            "Kimi Linear without attention residuals is not supported: NVIDIA-NeMo/Megatron-Bridge builds Kimi K3 alone"
        )
    f.implied(
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
        "moe_shared_expert_intermediate_size": f.whole("num_shared_experts", default=0)
        * f.count("moe_intermediate_size")
        or None,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_load_balancing_type": ("none",),
        "moe_router_dtype": "fp32",
    }
    what = "Kimi Delta Attention, attention residuals and an activation op by op in fp32"
    return Converted(settings, provider=Provider("Kimi K3 provider", what))
