"""Kimi K3: layers that attend to the sums of the blocks before them (attention residuals).

The stream between layers is a prefix, the sum so far, and a bank of prefixes: one joins it at the first layer of every block. Source:
NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/` (kimi_k3_layers.py, kimi_k3_spec.py, kimi_k3_pipeline.py).
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from ..errors import ConfigError
from .settings import setting
from .variants import marked
from .vendor import Vendor

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


def layers(model: Any, linear: tuple[int, ...], routed: tuple[bool, ...]) -> tuple[str, ...]:
    """Every layer is a variant of its own by what it does with the bank of prefixes."""
    kinds = (
        f"{'k3_kda' if is_linear else 'k3_mla'}+{VENDOR.experts if has_experts else 'k3_dense'}"
        for is_linear, has_experts in zip(linear, routed, strict=True)
    )
    return tuple(marked(kind, model.bank_variant(at, model.num_layers)) for at, kind in enumerate(kinds))


def check(model: Any) -> None:
    """Raise ConfigError for what Bridge's class cannot be built with, and for its linear attention in another model."""
    if not model.attn_res_block_size:
        if model.experimental_attention_variant == "kda":
            raise ConfigError("experimental_attention_variant=kda needs attn_res_block_size (Kimi K3)")
        return
    needs = {
        "experimental_attention_variant kda": model.experimental_attention_variant == "kda",
        "multi_latent_attention": model.multi_latent_attention,
        "q_lora_rank": model.q_lora_rank is not None,
        "position_embedding_type none": model.position_embedding_type == "none",
        "moe_latent_size": model.moe_latent_size is not None or not model.num_moe_experts,
    }
    lacks = [name for name, there in needs.items() if not there]
    if lacks:
        raise ConfigError(f"attn_res_block_size (Kimi K3) needs {' and '.join(lacks)}")


VENDOR = Vendor(
    "attn_res_block_size",
    excludes="hybrid_layer_pattern parallel_attention falcon_h1 gemma4_moe enable_mhc_connections mtp_num_layers "
    "layer_variants fp32_residual_connection add_bias_linear hidden_dropout moe_n_hash_layers",
    fixed="attn_res_block_size",
    stream="bank",
    check=check,
    experts="k3_moe",
    layers=layers,
    of_layer=of_bank,
)
