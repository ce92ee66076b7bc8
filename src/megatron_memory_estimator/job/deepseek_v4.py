"""DeepSeek-V4: compressed sparse attention, hash-routed experts, and hyper-connections with fused kernels.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/transformer_config.py`, `experimental_attention_variant/csa.py`,
`transformer/hyper_connection.py`. Its `enable_hyper_connections` and `num_residual_streams` are `main`'s `enable_mhc_connections` and
`mhc_num_residual_streams`.
"""

from __future__ import annotations

from typing import Any

from ..dataclass import dataclass
from ..errors import ConfigError
from .settings import setting
from .vendor import Vendor


@dataclass(frozen=True)
class CompressedModel:
    """Settings of the architecture; they are the model's."""

    csa_compress_ratios: tuple[int, ...] | str | None = setting(
        None,
        "DeepSeek-V4: tokens per compressed key of each layer (0 window only, 4 CSA, 128 HCA), then of MTP",
        kind="any",
        of="csa",
    )
    csa_window_size: int = setting(128, "DeepSeek-V4: keys of the sliding window", of="csa")
    csa_dense_mode: bool = setting(
        False, "DeepSeek-V4: CSA layers attend to every compressed key, no indexer", of="csa"
    )
    o_groups: int = setting(8, "DeepSeek-V4: groups of the output projection", of="csa")
    o_lora_rank: int = setting(1024, "DeepSeek-V4: width of a group of the output projection", of="csa")
    moe_n_hash_layers: int = setting(0, "first layers whose experts are chosen by the token's hash", of="moe")
    enable_mhc_connections: bool = setting(False, "hyper-connections: several residual streams", of="mhc")
    mhc_num_residual_streams: int = setting(4, "hyper-connections: residual streams", of="mhc")


@dataclass(frozen=True)
class CompressedTraining:
    """Settings of the run; they are the training's."""

    use_fused_mhc: bool = setting(False, "hyper-connections: fused kernels", of="mhc")
    mhc_recompute_layer_num: int | None = setting(
        None, "recompute_modules mhc: layers that come back together; default: those of a chunk", of="mhc"
    )
    dsa_indexer_use_sparse_loss: bool = setting(False, "sparse attention: the indexer's loss of its own keys", of="dsa")


def check(model: Any) -> None:
    """Raise ConfigError for more hash-routed layers than there are, and for heads that are no wider than their rotated part."""
    if model.moe_n_hash_layers > model.num_layers:
        raise ConfigError(f"moe_n_hash_layers={model.moe_n_hash_layers} is more than num_layers={model.num_layers}")
    if model.experimental_attention_variant == "dsv4_hybrid" and model.qk_pos_emb_head_dim >= model.v_head_dim:
        raise ConfigError(
            f"qk_pos_emb_head_dim={model.qk_pos_emb_head_dim} is a part of each head: it must be less than v_head_dim={model.v_head_dim}"
        )


VENDOR = Vendor(
    "enable_mhc_connections",
    fixed="enable_mhc_connections mhc_num_residual_streams",
    stream="several",
    check=check,
)
