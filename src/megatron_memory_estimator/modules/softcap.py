"""Soft caps of logits: cap * tanh(logits / cap), eager (Gemma 2).

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/gemma/gemma2_provider.py` (logit_softcapping).
"""

from __future__ import annotations

from ..tape.ops import Op
from ..tape.tensor import Tensor
from .module import Module


def capped(name: str, logits: Tensor, *, until: tuple[Tensor, ...] = ()) -> Module[Tensor]:
    """Capped logits. The tanh is kept; so are tensors that live `until` the gradient of the product."""
    tanh, out = logits.like(f"{name}.tanh"), logits.like(f"{name}.capped")
    yield Op(f"{name}.tanh", (logits,), (tanh,), (tanh,), (logits.like(f"{name}.divided"),))
    yield Op(f"{name}.times_cap", (tanh,), (out,), until)
    return out
