"""Rules of CUDA graphs (Megatron-LM `megatron/core/transformer/transformer_config.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from ..job.layout import Layout
from ..job.model import Model
from ..job.training import Training
from .violation import Violation, broken


def graphs(model: Model, layout: Layout, training: Training) -> Iterator[Violation]:
    """What CUDA graphs exclude."""
    t = training
    if t.cuda_graph_impl == "none":
        return
    if t.recompute_granularity == "full" and t.cuda_graph_impl != "full_iteration":
        rule = f"recompute_granularity=full excludes cuda_graph_impl={t.cuda_graph_impl}"
        yield broken(rule, fix="use full_iteration or selective recomputation")
    if not model.has_moe:
        return
    scope = t.cuda_graph_modules
    padded = t.moe_expert_capacity_factor is not None and t.moe_pad_expert_input_to_capacity
    if "moe" in scope and not padded:
        needs = "moe_expert_capacity_factor and moe_pad_expert_input_to_capacity"
        yield broken(f"cuda_graph_modules moe needs {needs}", fix="use moe_router")
    if "moe" in scope and "moe_router" in scope:
        yield broken("cuda_graph_modules moe and moe_router exclude each other", fix="give one")
    if "moe_preprocess" in scope and "moe_router" not in scope:
        yield broken("cuda_graph_modules moe_preprocess needs moe_router")
