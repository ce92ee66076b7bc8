"""Shared experts and their gate. Source: Megatron-LM `megatron/core/transformer/moe/shared_experts.py`.

Linears that read one gathered input: what they read is kept once, and nothing is sent by each of them (Kimi K3).

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .linear import column_linear, gemm, keeps_original, kept_input, linear_params, row_linear, rows_of, weight_grad
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


def gathered_input(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """All tokens of the tensor-parallel region, kept whole; the gradients of all that read it are summed over the ranks at once."""
    if not c.tp_many:
        return x
    whole = c.region(f"{name}.input gathered", c.hidden)
    if c.sp_many:
        sends, returns = over_tp(c, "all_gather", whole), over_tp(c, "reduce_scatter", whole)
    else:
        whole, sends, returns = x.view(whole.name, x.shape), (), over_tp(c, "all_reduce", whole)
    yield Op(f"{name}.gather_input", (x,), (whole,), passes=() if c.sp_many else (x,), sends=sends, returns=returns)
    return whole


def projected(c: Context, name: str, x: Tensor, weight: Param) -> Module[Tensor]:
    """Output on the input's tokens."""
    out = c.new(f"{name}.output", *x.shape[:-1], weight.shape[0])
    yield Op(
        name,
        (x,),
        (out,),
        kept_input(c, name, x),
        backward=weight_grad(c, weight),
        work=(gemm(c, weight, rows_of(out)),),
    )
    return out


def split_norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """A norm op by op: its input in fp32, a statistic of each row and the normed rows without the weight stay."""
    out = x.like(f"{name}.output")
    kept = (
        x.like(f"{name}.input fp32", "fp32"),
        c.new(f"{name}.rsigma", *x.shape[:-1], dtype="fp32"),
        x.like(f"{name}.normed"),
    )
    scratch = (x.like(f"{name}.square", "fp32"),)
    grads = (x.like(f"{name}.grad fp32", "fp32"), x.like(f"{name}.second grad fp32", "fp32"))
    yield Op(name, (x,), (out,), kept, scratch, grads, calls=7)
    return out
