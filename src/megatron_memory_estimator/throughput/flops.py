"""Model FLOPs of a training step, by the declarations: every linear's parameters, and the core of attention.

A token passes each linear once (an expert's with the share top-k / experts), twice a multiply-add, and three times as much with
the backward. Core attention is causal: half of the square. Source of the convention: Megatron-LM `megatron/training/training.py`
(num_floating_point_operations).
"""

from __future__ import annotations

from ..context import Context
from ..layout import Layout
from ..model import Model
from ..modules.kinds import kinds_of
from ..modules.layers import layer_unit
from ..training import Training


def forward_flops(model: Model, training: Training) -> float:
    """Forward FLOPs per token of the whole model."""
    c = Context(model, Layout(), training, "cudnn")
    layers = [*model.kinds, *(list(model.mtp_kinds) * model.mtp)]
    total = 0.0
    for kind in dict.fromkeys(layers):
        total += layers.count(kind) * _layer(c, kind)
    head = 2 * model.hidden_size * model.padded_vocab(1) * (1 + model.mtp)
    joined = 0 if model.hybrid else model.mtp * 4 * model.hidden_size**2
    return total + head + joined


def _layer(c: Context, kind: str) -> float:
    m = c.model
    found = 0.0
    for p in layer_unit(c, kind, 0).params:
        if p.gemm and len(p.shape) == 2:
            share = m.moe_router_topk / (m.num_moe_experts or 1) if p.split == "expert" else 1.0
            found += 2 * p.numel * share
    return found + sum(row.flops(m, c.training.seq_length) for row in kinds_of(kind))


def training_flops(model: Model, training: Training) -> float:
    """FLOPs per token of a training step."""
    return 3 * forward_flops(model, training)
