"""Rules of towers (NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/qwen_vl/modelling_qwen3_vl/`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..tape.tensor import divisors
from .violation import Violation, indivisible


def towers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Heads of a tower of Megatron's own layers divide over tensor-parallel ranks."""
    for tower in model.towers:
        if tower.heads % layout.tp:
            fix = f"use {divisors(tower.heads, model.num_attention_heads or tower.heads)}"
            yield indivisible(
                f"heads of the {tower.name}", tower.heads, "tensor_model_parallel_size", layout.tp, fix=fix
            )
