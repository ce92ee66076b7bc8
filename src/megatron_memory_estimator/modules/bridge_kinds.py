"""Kinds of whole layers and sub-layers that NVIDIA-NeMo/Megatron-Bridge builds itself (`kinds.py` says what a row is)."""

from __future__ import annotations

from . import falcon_h1, gemma4_moe, kimi_k3, mamba, moe
from .kind import Kind

_KIMI = Kind(
    name="k3_dense",
    role="layer",
    declare=kimi_k3.dense_layer,
    part="mlp",
    residual="mlp_residual",
    owners=frozenset(("kimi",)),
    dense=True,
    setting="attn_res_block_size",
)

BRIDGE: tuple[Kind, ...] = (
    Kind(
        name="falcon_h1",
        role="layer",
        declare=falcon_h1.falcon_h1_layer,
        part="attn",
        residual="mlp_residual",
        owners=frozenset(("mamba",)),
        rotary="chunk",
        heads=True,
        groups=True,
        exchanges=True,
        state_heads="mamba",
        dense=True,
        recomputes=frozenset(("core_attn",)),
        kept=mamba.kept,
        setting="falcon_h1",
    ),
    Kind(
        name="gemma4_moe",
        role="layer",
        declare=gemma4_moe.gemma4_moe,
        part="moe",
        residual="moe_residual",
        owners=frozenset(("moe",)),
        routed=True,
        recomputes=frozenset(("moe", "moe_act", "shared_experts")),
        kept=moe.kept,
        setting="gemma4_moe",
    ),
    _KIMI,
    _KIMI._replace(
        name="k3_moe",
        declare=kimi_k3.moe_layer,
        part="moe",
        residual="moe_residual",
        dense=False,
        routed=True,
        owners=frozenset(("kimi", "moe")),
        recomputes=frozenset(("moe_act",)),
        kept=moe.kept,
    ),
    _KIMI._replace(
        name="k3_kda",
        declare=kimi_k3.kda_layer,
        part="attn",
        residual="attn_residual",
        dense=False,
        owners=frozenset(("kimi", "gdn")),
        state_heads="delta",
        reproducible=False,
    ),
    _KIMI._replace(
        name="k3_mla",
        declare=kimi_k3.mla_layer,
        part="attn",
        residual="attn_residual",
        dense=False,
        owners=frozenset(("kimi", "mla")),
        heads=True,
        latent=True,
    ),
)
