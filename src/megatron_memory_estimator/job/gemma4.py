"""Gemma 4 without experts (E2B, E4B, 31B): an embedding for every layer, and layers that take keys and values of earlier ones.

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/` (gemma4_provider.py Gemma4DenseProvider, modeling_gemma4.py).
"""

from __future__ import annotations

from ..dataclass import dataclass
from .settings import setting


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
