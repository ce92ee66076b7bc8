"""Rules of towers (NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/qwen_vl/modelling_qwen3_vl/`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..tape.tensor import divisors
from .violation import Violation, broken, indivisible


def towers(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """Heads of a tower of Megatron's own layers divide over tensor-parallel ranks; images are a part of a sequence."""
    for tower in model.towers:
        heads = tower.vit.heads if tower.vit else 0
        if heads % layout.tp:
            fix = f"use {divisors(heads, model.num_attention_heads or heads)}"
            yield indivisible(f"heads of the {tower.name}", heads, "tensor_model_parallel_size", layout.tp, fix=fix)
    if not 0 <= training.image_tokens <= training.seq_length:
        numbers = {"image_tokens": training.image_tokens, "seq_length": training.seq_length}
        yield broken(
            "{image_tokens} is not between 0 and {seq_length}", numbers, fix="images are a part of the sequence"
        )
