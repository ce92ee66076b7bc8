"""Gemma 4: experts beside a dense MLP (26B-A4B), or none (E2B, E4B, 31B): then an embedding for every layer, and layers that take keys
and values of earlier ones.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma4_provider.py Gemma4DenseProvider, modeling_gemma4.py).
"""

from __future__ import annotations

from typing import Any

from ..dataclass import dataclass
from ..errors import ConfigError
from .settings import setting
from .vendor import OTHER_LAYERS, Vendor


@dataclass(frozen=True)
class Gemma4Model:
    """Settings of the architecture; they are the model's."""

    gemma4_moe: bool = setting(False, "Gemma 4's experts beside a dense MLP, with norms of their own", of="moe")
    gemma4_dense: bool = setting(False, "Gemma 4's layers without experts, of local modules and norms op by op")
    per_layer_embed_dim: int | None = setting(None, "Gemma 4: width of every layer's own embedding", of="gemma4")
    per_layer_embed_vocab_size: int | None = setting(None, "Gemma 4: rows of the layers' own embedding", of="gemma4")
    kv_shared: bool = setting(
        False, "Gemma 4: keys and values are those of an earlier layer (of a variant)", of="gemma4"
    )
    kv_stored: bool = setting(False, "Gemma 4: keys and values are held for later layers (of a variant)", of="gemma4")


def check_dense_width(model: Any) -> None:
    """Raise ConfigError for experts without the dense MLP beside them."""
    if model.gemma4_moe and not model.moe_shared_expert_intermediate_size:
        raise ConfigError("gemma4_moe needs moe_shared_expert_intermediate_size, the width of the dense MLP")


def check_layer_inputs(model: Any) -> None:
    """Raise ConfigError for half of an embedding of every layer."""
    if (model.per_layer_embed_dim is None) != (model.per_layer_embed_vocab_size is None):
        raise ConfigError("per_layer_embed_dim and per_layer_embed_vocab_size belong together; give both")


def layers(model: Any, linear: tuple[int, ...], routed: tuple[bool, ...]) -> tuple[str, ...]:
    """Every layer is one of its own kind."""
    return tuple("gemma4_dense" for _ in linear)


EXPERTS = Vendor(
    "gemma4_moe",
    excludes="moe_latent_size moe_shared_expert_gate moe_n_hash_layers mtp_num_layers add_bias_linear multi_latent_attention "
    "enable_mhc_connections hybrid_layer_pattern",
    check=check_dense_width,
    experts="gemma4_moe",
)
DENSE = Vendor(
    "gemma4_dense",
    excludes=f"{OTHER_LAYERS} parallel_attention falcon_h1 mtp_num_layers enable_mhc_connections add_bias_linear "
    "attn_res_block_size fp32_residual_connection attention_output_gate",
    fixed="gemma4_dense per_layer_embed_dim per_layer_embed_vocab_size",
    eager_norms=True,
    check=check_layer_inputs,
    layers=layers,
)
