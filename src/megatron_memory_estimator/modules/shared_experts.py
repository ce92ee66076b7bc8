"""Shared experts and their gate. Source: Megatron-LM `megatron/core/transformer/moe/shared_experts.py`."""

from __future__ import annotations

from dataclasses import replace

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .linear import column_linear, keeps_original, linear_params, row_linear
from .mlp import activation
from .module import Module
from .sends import over_tp

OFFSET = (0, 20)
"""Megatron-Core version since which overlapped shared experts add glu_linear_offset too."""


def shared_experts_params(c: Context) -> Module[tuple[Param, Param]]:
    """fc1 and fc2, sharded over the dense tp and without bias, then the gate."""
    m = c.model
    assert m.moe_shared_expert_intermediate_size is not None
    size = m.moe_shared_expert_intermediate_size
    ffn = c.dim("moe_shared_expert_intermediate_size", size, "tp")
    wide = c.dim("gate*moe_shared_expert_intermediate_size", m.gate * size, "tp")
    fc1 = yield from linear_params(c, "mlp.shared_experts.linear_fc1", wide, c.hidden, "tp", False)
    fc2 = yield from linear_params(c, "mlp.shared_experts.linear_fc2", c.hidden, ffn, "tp", False)
    if m.moe_shared_expert_gate:
        yield Param("mlp.shared_experts.gate_weight", (Dim("one", 1), c.hidden))
    return fc1, fc2


def shared_experts(c: Context, x: Tensor, weights: tuple[Param, Param]) -> Module[Tensor]:
    """Output on the residual stream. Overlapped with the dispatcher, fc1 reads (and keeps) the gathered input, and before Megatron-Core
    0.20 nothing is added to the linear half of a gated activation (`shared_experts.py`, linear_fc1_forward_and_act)."""
    fc1, fc2 = weights
    name = "mlp.shared_experts"
    source, gathers = x, True
    overlapped = c.training.moe_shared_expert_overlap
    if overlapped and c.sp_many:
        source = c.region(f"{name}.input gathered", c.hidden)
        yield Op(
            f"{name}.gather",
            (x,),
            (source,),
            sends=over_tp(c, "all_gather", source),
            returns=over_tp(c, "reduce_scatter", source),
        )
        gathers = False
    # in low precision too fc1 keeps its input, which the router keeps anyway (moe/shared_experts.py: set_save_original_input)
    wide = yield from column_linear(c, f"{name}.linear_fc1", source, fc1, gathers=gathers, original=keeps_original(c))
    act = yield from activation(
        _clamped(c), f"{name}.activation", wide, fc2.shape[1], offset=not overlapped or c.training.mcore >= OFFSET
    )
    out = yield from row_linear(c, f"{name}.linear_fc2", act, fc2)
    if c.model.moe_shared_expert_gate:
        gated = c.stream(f"{name}.gated output", c.hidden)
        score = c.stream(f"{name}.gate_score", Dim("one", 1))
        logit = c.stream(f"{name}.gate_logit", Dim("one", 1))
        yield Op(f"{name}.gate", (out, x), (gated,), (out, x, score), forward=(logit,))
        out = gated
    return out


def _clamped(c: Context) -> Context:
    """The context with the shared experts' own clamp, where they have one."""
    clamp = c.model.activation_func_clamp_value_shared_expert
    return c if clamp is None else replace(c, model=replace(c.model, activation_func_clamp_value=clamp))
