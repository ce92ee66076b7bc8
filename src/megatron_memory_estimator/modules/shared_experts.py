"""Shared experts and their gate. Source: Megatron-LM `megatron/core/transformer/moe/shared_experts.py`.

Linears that read one gathered input: what they read is kept once, and nothing is sent by each of them (Kimi K3).

Source: NVIDIA-NeMo/Megatron-Bridge `src/megatron/bridge/models/kimi/kimi_k3_layers.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..tape.ops import Item, Op
from ..tape.tensor import Dim, Param, Tensor
from .adapters import adapted
from .context import Context
from .linear import column_linear, gemm, keeps_original, kept_input, linear_params, row_linear, rows_of, weight_grad
from .mlp import activation
from .module import Module, collected, in_part, recomputed
from .sends import over_tp

NAME = "mlp.shared_experts"
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
    """Output on the residual stream."""
    act = yield from first_half(c, x, weights)
    out = yield from row_linear(c, f"{NAME}.linear_fc2", act, weights[1])
    if not c.model.moe_shared_expert_gate:
        return out
    score = yield from gate_score(c, x)
    return (yield from gate(c, out, score))


class Beside(NamedTuple):
    """Shared experts that overlap the dispatcher: ops beside the dispatch, the gate's score first; beside the way back; and behind it.

    Source: `shared_experts.py` (pre_forward_comm, linear_fc1_forward_and_act; linear_fc2_forward, post_forward_comm; get_output).
    """

    first: tuple[Item, ...] = ()
    second: tuple[Item, ...] = ()
    last: tuple[Item, ...] = ()


def beside_experts(c: Context, x: Tensor, weights: tuple[Param, Param]) -> Module[tuple[Beside, Tensor]]:
    """What of them waits for the dispatcher, nothing where they do not overlap it, and their output on the residual stream."""
    if not c.training.moe_shared_expert_overlap:
        whole = shared_experts(c, x, weights)
        whole = recomputed(c.training.recomputes("shared_experts"), f"{NAME}.checkpoint", whole)
        return Beside(), (yield from in_part("shared_experts", whole))
    first, (score, act) = yield from collected(in_part("shared_experts", _first(c, x, weights)))
    second, out = yield from collected(in_part("shared_experts", row_linear(c, f"{NAME}.linear_fc2", act, weights[1])))
    if score is None:
        return Beside(first, second), out
    last, out = yield from collected(in_part("shared_experts", gate(c, out, score)))
    return Beside(first, second, last), out


def _first(c: Context, x: Tensor, weights: tuple[Param, Param]) -> Module[tuple[Tensor | None, Tensor]]:
    score = (yield from gate_score(c, x)) if c.model.moe_shared_expert_gate else None
    act = yield from first_half(c, x, weights)
    return score, act


def first_half(c: Context, x: Tensor, weights: tuple[Param, Param]) -> Module[Tensor]:
    """fc1 and the activation. Overlapped with the dispatcher, fc1 reads (and keeps) the gathered input, and before Megatron-Core
    0.20 nothing is added to the linear half of a gated activation (`shared_experts.py`, linear_fc1_forward_and_act)."""
    fc1, fc2 = weights
    source, gathers = x, True
    overlapped = c.training.moe_shared_expert_overlap
    if overlapped and c.sp_many:
        source = c.region(f"{NAME}.input gathered", c.hidden)
        yield Op(
            f"{NAME}.gather",
            (x,),
            (source,),
            sends=over_tp(c, "all_gather", source),
            returns=over_tp(c, "reduce_scatter", source),
        )
        gathers = False
    # in low precision too fc1 keeps its input, which the router keeps anyway (moe/shared_experts.py: set_save_original_input)
    wide = yield from column_linear(c, f"{NAME}.linear_fc1", source, fc1, gathers=gathers, original=keeps_original(c))
    offset = not overlapped or c.training.mcore >= OFFSET
    return (yield from activation(_clamped(c), f"{NAME}.activation", wide, fc2.shape[1], offset=offset))


def gate_score(c: Context, x: Tensor) -> Module[Tensor]:
    """The sigmoid of one logit a token."""
    score, logit = (c.stream(f"{NAME}.{name}", Dim("one", 1)) for name in ("gate_score", "gate_logit"))
    yield Op(f"{NAME}.gate_score", (x,), (score,), (x, score), forward=(logit,))
    return score


def gate(c: Context, out: Tensor, score: Tensor) -> Module[Tensor]:
    """The output times its score."""
    gated = c.stream(f"{NAME}.gated output", c.hidden)
    yield Op(f"{NAME}.gate", (out, score), (gated,), (out, score), calls=0)
    return gated


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
    return (yield from adapted(c, name, x, out, weight))


def split_norm(c: Context, name: str, x: Tensor) -> Module[Tensor]:
    """A norm op by op: its input in fp32, a statistic of each row and, for the weight's gradient, the normed rows stay."""
    out = x.like(f"{name}.output")
    kept = (
        x.like(f"{name}.input fp32", "fp32"),
        c.new(f"{name}.rsigma", *x.shape[:-1], dtype="fp32"),
        *(() if c.training.base_frozen else (x.like(f"{name}.normed"),)),
    )
    scratch = (x.like(f"{name}.square", "fp32"),)
    grads = (x.like(f"{name}.grad fp32", "fp32"), x.like(f"{name}.second grad fp32", "fp32"))
    yield Op(name, (x,), (out,), kept, scratch, grads, calls=7)
    return out
