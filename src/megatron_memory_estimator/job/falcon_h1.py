"""Falcon-H1: Mamba-2 and attention side by side behind one norm, then the MLP, on a residual stream in fp32.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/falcon_h1/falconh1_provider.py`.
"""

from __future__ import annotations

from typing import Any

from ..dataclass import dataclass
from .settings import setting
from .vendor import OTHER_LAYERS, Vendor


@dataclass(frozen=True)
class FalconModel:
    """Settings of the architecture; they are the model's."""

    falcon_h1: bool = setting(
        False, "Falcon-H1's layer: Mamba-2 and attention side by side behind one norm, then the MLP"
    )


def layers(model: Any, linear: tuple[int, ...], routed: tuple[bool, ...]) -> tuple[str, ...]:
    """Every layer is one of its own kind."""
    return tuple("falcon_h1" for _ in linear)


VENDOR = Vendor(
    "falcon_h1",
    excludes=f"{OTHER_LAYERS} parallel_attention mtp_num_layers enable_mhc_connections layer_variants norm_placement "
    "attention_block mlp_block",
    fixed="falcon_h1",
    stream="fp32",
    layers=layers,
)
