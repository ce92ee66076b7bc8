"""Model FLOPs of a training step, by the declarations: what every op multiplies, and three times as much with the backward.

A token passes each linear once, an expert's as often as it has experts. Core attention is causal: half of the square. Megatron counts
no router. Source of the convention: Megatron-LM `megatron/training/training.py` (num_floating_point_operations).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from ..modules.context import Context
from ..modules.layers import Declaration, layer_unit, mtp_unit, output_unit
from ..tape.ops import flattened
from ..tape.work import Gemm


def forward_flops(model: Model, training: Training) -> float:
    """Forward FLOPs per token of the whole model."""
    c = Context(model, Layout(), replace(training, peft="none"), "cudnn")
    total = sum(count * _flops(c, layer_unit(c, kind)) for kind, count in Counter(model.kinds).items())
    total += _flops(c, output_unit(c, owns_weight=True, shared=False))
    return total + (_flops(c, mtp_unit(c, owns_embedding=False)) if model.mtp else 0.0)


def _flops(c: Context, unit: Declaration) -> float:
    found = 0.0
    for op in flattened(unit.unit.items):
        for one in op.work:
            if isinstance(one, Gemm) and one.counted:
                rows = c.tokens.size * c.model.moe_router_topk if one.experts is not None else one.rows
                found += 2 * rows * one.n * one.k
            elif not isinstance(one, Gemm) and getattr(one, "counted", True):
                found += one.flops
    return found / c.tokens.size


def training_flops(model: Model, training: Training) -> float:
    """FLOPs per token of a training step."""
    return 3 * forward_flops(model, training)
