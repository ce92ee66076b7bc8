"""Model FLOPs of a training step, by the declarations: every linear's parameters, and the core of attention.

A token passes each linear once (an expert's with the share top-k / experts), twice a multiply-add, and three times as much with
the backward. Core attention is causal: half of the square. Source of the convention: Megatron-LM `megatron/training/training.py`
(num_floating_point_operations).
"""

from __future__ import annotations

from ..context import Context
from ..layout import Layout
from ..model import Model
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
    mixer = kind.split("+")[0]
    s = c.training.seq_length
    if mixer == "gqa":
        found += 2 * s * m.num_attention_heads * m.head_dim
    elif mixer in ("mla", "dsa", "dsa_shared"):
        found += s * m.num_attention_heads * (m.qk_head_dim + m.qk_pos_emb_head_dim + m.v_head_dim)
    elif mixer == "mamba":
        found += 7 * m.mamba_heads * m.mamba_head_dim * m.mamba_state_dim
    elif mixer in ("gdn", "gdn2"):
        found += 8 * m.linear_num_value_heads * m.linear_value_head_dim**2
    return found


def training_flops(model: Model, training: Training) -> float:
    """FLOPs per token of a training step."""
    return 3 * forward_flops(model, training)
