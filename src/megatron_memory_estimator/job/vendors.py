"""Settings that models of one vendor have.

DeepSeek-V4: compressed sparse attention, hash-routed experts, and hyper-connections with fused kernels.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/transformer_config.py`, `experimental_attention_variant/csa.py`,
`transformer/hyper_connection.py`. Its `enable_hyper_connections` and `num_residual_streams` are `main`'s `enable_mhc_connections` and
`mhc_num_residual_streams`.

Kimi K3: layers that attend to the sums of the blocks before them (attention residuals).

The stream between layers is a prefix, the sum so far, and a bank of prefixes: one joins it at the first layer of every block. Source:
NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/` (kimi_k3_layers.py, kimi_k3_spec.py, kimi_k3_pipeline.py).

Gemma 4 without experts (E2B, E4B, 31B): an embedding for every layer, and layers that take keys and values of earlier ones.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma4_provider.py Gemma4DenseProvider, modeling_gemma4.py).
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from .settings import setting


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
    sequence_packing_scheduler: str | None = setting(
        None, "DeepSeek-V4: who packs samples into rows without padding (cp above 1 always packs)"
    )
    dsa_indexer_use_sparse_loss: bool = setting(False, "sparse attention: the indexer's loss of its own keys", of="dsa")


_INTERNAL = {"help": "", "internal": True}
_NAME = re.compile(r"bank(\d+)(_joined)?(_last)?")


@dataclass(frozen=True)
class KimiModel:
    """Settings of the architecture; they are the model's."""

    attn_res_block_size: int | None = setting(None, "Kimi K3: layers of a block of attention residuals", of="kimi")
    moe_latent_norm: bool = setting(False, "Kimi K3: norm before the experts' width is left again", of="kimi")
    bank_rows: int = field(default=0, metadata=_INTERNAL)
    """Rows of the bank that a layer gets: of a layer's own model (`bank_variant`)."""
    bank_joined: bool = field(default=False, metadata=_INTERNAL)
    """Whether the prefix joins the bank in a layer."""
    bank_last: bool = field(default=False, metadata=_INTERNAL)
    """Whether a layer is the last, which turns prefix and bank into its output."""

    def rows_before(self, layer: int) -> int:
        """Rows of the bank in front of a layer (from 0)."""
        block = self.attn_res_block_size
        return 0 if block is None else -(-layer // block)

    def bank_variant(self, layer: int, layers: int) -> str:
        """The name of the variant that a layer is."""
        assert self.attn_res_block_size is not None
        joined = "_joined" if layer % self.attn_res_block_size == 0 else ""
        return f"bank{self.rows_before(layer)}{joined}{'_last' if layer == layers - 1 else ''}"


def of_bank(name: str) -> dict[str, Any] | None:
    """What a variant of `bank_variant` has of its own; None for another name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return {"bank_rows": int(found[1]), "bank_joined": bool(found[2]), "bank_last": bool(found[3])}


@dataclass(frozen=True)
class Gemma4Model:
    """Settings of the architecture; they are the model's."""

    gemma4_dense: bool = setting(False, "Gemma 4's layers without experts, of local modules and norms op by op")
    per_layer_embed_dim: int | None = setting(None, "Gemma 4: width of every layer's own embedding", of="gemma4")
    per_layer_embed_vocab_size: int | None = setting(None, "Gemma 4: rows of the layers' own embedding", of="gemma4")
    kv_shared: bool = setting(
        False, "Gemma 4: keys and values are those of an earlier layer (of a variant)", of="gemma4"
    )
    kv_stored: bool = setting(False, "Gemma 4: keys and values are held for later layers (of a variant)", of="gemma4")
