"""Kimi K3: layers that attend to the sums of the blocks before them (attention residuals).

The stream between layers is a prefix, the sum so far, and a bank of prefixes: one joins it at the first layer of every block. Source:
NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/` (kimi_k3_layers.py, kimi_k3_spec.py, kimi_k3_pipeline.py).
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from ..dataclass import dataclass
from .settings import setting

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
