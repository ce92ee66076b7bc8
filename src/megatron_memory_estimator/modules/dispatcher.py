"""Token dispatchers of MoE layers. Source: Megatron-LM `megatron/core/transformer/moe/token_dispatcher.py`.

Python references in `moe_layer.py` keep the permuted rows and the dispatched rows until the layer returns; those are the `holds` below.

Experts as one fused op of TransformerEngine: fc1, activation times probability, fc2, in mxfp8 or nvfp4.

Source: TransformerEngine `pytorch/ops/fused/grouped_mlp.py`; Megatron-LM `megatron/core/transformer/moe/experts.py`
(use_transformer_engine_op_fuser). Other precisions run the ops one by one and keep what the unfused experts keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..dataclass import dataclass
from ..tape.ops import Item, Op
from ..tape.tensor import Dim, Param, Tensor, largest, smallest, whole_above
from ..tape.work import Streamed, Work
from .context import Context
from .linear import gemm, grad_of, kept_input, other_orientation, quantized_grad, weight_grad, wgrad_operands
from .module import Module
from .sends import Sends, dispatched, over_etp, over_experts

PREPROCESSING, DEEPEP, HYBRIDEP = 10, 6, 3
"""Functions of PyTorch with which a rank's tokens are counted, sorted and sent (counted in `moe/token_dispatcher.py` of Megatron-Core
0.16: preprocess and _maybe_dtoh_and_synchronize; of DeepEP topk, masked_fill, get_dispatch_layout, dispatch, and two of
get_permuted_hidden_states_by_experts; of HybridEP the dispatch, which counts by itself, and two of its tokens_per_expert)."""

PERMUTED: tuple[Work, ...] = (Streamed(),)
"""HybridEP sorts the rows that it received by expert in a kernel of its own, and adds them up before they return (`moe/fused_a2a.py`,
HybridEPDispatch: dispatch_with_permute, unless moe_permute_fusion_into_hybridep joins the two)."""

LATE_PROBS = (0, 13)
"""The Megatron-Core version since which probabilities weigh the rows of the experts; before it, the rows that return."""


@dataclass(frozen=True)
class Routed:
    """Rows of this rank's experts, what is held until they return, and the probabilities that weigh them.

    `probs` are those of the rows; None before Megatron-Core 0.13, where `late`, the router's, weigh the rows that return.
    """

    tokens: Tensor
    probs: Tensor | None
    rows: Dim
    held: tuple[Tensor, ...]
    late: Tensor | None = None


def dispatch(c: Context, x: Tensor, probs: Tensor, width: Dim, beside: tuple[Item, ...] = ()) -> Module[Routed]:
    """From the residual stream's tokens to the rows of the local experts.

    `beside` are ops of shared experts that run while the rows are on their way; the dispatcher with an all-gather has none.
    """
    kind = c.training.moe_token_dispatcher_type
    if kind == "allgather":
        routed = yield from _allgather(c, x, probs, width)
    else:
        routed = yield from (_flex if kind == "flex" else _alltoall)(c, x, probs, width, beside)
    return routed if c.training.mcore >= LATE_PROBS else replace(routed, probs=None, late=probs)


def sort_map(c: Context, name: str, rows: Dim) -> tuple[Tensor, ...]:
    """Row map of a fused chunk sort; unfused and padded sorts are splits and copies that keep nothing."""
    padded = c.training.moe_pad_expert_input_to_capacity
    return (c.new(name, rows, dtype="int32"),) if c.training.moe_permute_fusion and not padded else ()


def _permute_maps(c: Context) -> tuple[Tensor, ...]:
    """Tensors kept by permutation: a fused row map, or the indices that the unfused one gathers with."""
    m, t = c.model, c.training
    assert m.num_moe_experts is not None
    experts = Dim("num_moe_experts", m.num_moe_experts)
    sent = c.sent_rows
    if t.moe_permute_fusion:
        return (
            c.new("mlp.permute.row_id_map", c.tokens, Dim("2*num_moe_experts+1", 2 * experts.size + 1), dtype="int32"),
        )
    if t.moe_pad_expert_input_to_capacity and t.moe_expert_capacity_factor is not None:
        return (
            c.new("mlp.permute.indices", sent, dtype="int64"),
            c.new("mlp.permute.prob_indices", sent, dtype="int64"),
        )
    return (
        c.new("mlp.permute.sorted_indices", sent, dtype="int64"),
        c.new("mlp.permute.token_indices", experts, c.tokens, dtype="int64"),
    )


def meanwhile(ops: tuple[Item, ...], held: tuple[Tensor, ...]) -> Iterator[Item]:
    """Ops that run while a dispatcher's variables keep rows alive."""
    for op in ops:
        yield op._replace(holds=(*op.holds, *held)) if isinstance(op, Op) else op


def _alltoall(c: Context, x: Tensor, probs: Tensor, width: Dim, beside: tuple[Item, ...]) -> Module[Routed]:
    sent, received, counts = c.sent_rows, c.received_rows, c.training.counts_expert_rows
    permuted = c.new("mlp.dispatch.permuted", sent, width)
    permuted_probs = c.new("mlp.dispatch.permuted_probs", sent, dtype=c.probs_dtype)
    yield Op(
        "mlp.permute", (x, probs), (permuted, permuted_probs), _permute_maps(c), part="permute", calls=PREPROCESSING,
        waits=counts and not c.ep_many,
    )  # fmt: skip
    tokens, row_probs = permuted, permuted_probs
    held: tuple[Tensor, ...] = (permuted, permuted_probs)
    if c.ep_many:
        tokens = c.new("mlp.dispatch.all_to_all", received, width)
        row_probs = c.new("mlp.dispatch.all_to_all_probs", received, dtype=c.probs_dtype)
        sends = dispatched(c, permuted)
        yield Op(
            "mlp.dispatch.all_to_all",
            (permuted, permuted_probs),
            (tokens, row_probs),
            holds=held,
            sends=sends,
            returns=sends,
            waits=counts,
        )
        held = (permuted, tokens, row_probs)
    yield from meanwhile(beside, held)
    rows = received
    if c.etp_many:
        rows = c.expert_rows
        gathered = c.new("mlp.dispatch.all_gather", rows, width)
        gathered_probs = c.new("mlp.dispatch.all_gather_probs", rows, dtype=c.probs_dtype)
        yield Op(
            "mlp.dispatch.all_gather", (tokens, row_probs), (gathered, gathered_probs), holds=held,
            sends=over_etp(c, "all_gather", gathered), returns=over_etp(c, "reduce_scatter", gathered),
        )  # fmt: skip
        tokens, row_probs = gathered, gathered_probs
    if c.sorts_rows:
        ordered = c.new("mlp.experts.input", rows, width)
        ordered_probs = c.new("mlp.experts.probs", rows, dtype=c.probs_dtype)
        kept = sort_map(c, "mlp.dispatch.sort_map", rows)
        yield Op("mlp.dispatch.sort", (tokens, row_probs), (ordered, ordered_probs), kept, holds=held)
        tokens, row_probs = ordered, ordered_probs
    return Routed(tokens, row_probs, rows, held)


def gathered(c: Context) -> tuple[Dim, Dim]:
    """All tokens of the expert-parallel group."""
    tokens = c.tokens.size
    return Dim("tokens*ep*etp", tokens * c.layout.ep * c.layout.etp), Dim("one", 1)


def _local_maps(c: Context) -> tuple[Tensor, ...]:
    """The same of a rank's own experts, whose rows are picked from all tokens of the group."""
    tokens = gathered(c)[0]
    columns = Dim("2*local_experts+1", 2 * c.local_experts.local + 1)
    indices = c.new("mlp.permute.indices", c.expert_rows, dtype="int64")
    if c.training.moe_permute_fusion:
        indices = c.new("mlp.permute.row_id_map", tokens, columns, dtype="int32")
    return (
        indices,  # probabilities are picked apart from the rows, fused or not
        c.new("mlp.permute.local_map", tokens, c.local_experts, dtype="bool"),
        c.new("mlp.permute.local_probs", tokens, c.local_experts, dtype=c.probs_dtype),
    )


def attributes(c: Context) -> tuple[Tensor, ...]:
    """What a dispatcher refers to from one microbatch to the next, beside probabilities and map: what autograd keeps meanwhile, unless the
    layer is recomputed (`moe/token_dispatcher.py`: reversed_local_input_permutation_mapping, local_map, local_probs)."""
    kind = c.training.moe_token_dispatcher_type
    return _permute_maps(c) if kind == "alltoall" else _local_maps(c) if kind == "allgather" else ()


def _allgather(c: Context, x: Tensor, probs: Tensor, width: Dim) -> Module[Routed]:
    """Every rank sees all tokens of the group (a persistent buffer, see workspaces.py) and picks its experts' rows."""
    m = c.model
    assert m.num_moe_experts is not None
    experts = Dim("num_moe_experts", m.num_moe_experts)
    tokens = gathered(c)[0]
    all_probs = c.new("mlp.dispatch.probs of all ranks", tokens, experts, dtype=c.probs_dtype)
    all_map = c.new("mlp.dispatch.routing_map of all ranks", tokens, experts, dtype="bool")
    rows = c.expert_rows
    local = c.new("mlp.experts.input", rows, width)
    local_probs = c.new("mlp.experts.probs", rows, dtype=c.probs_dtype)
    kept = _local_maps(c)
    grad = c.new("mlp.dispatch.tokens grad of all ranks", *gathered(c), width)
    yield Op(
        "mlp.permute", (x, probs), (local, local_probs, all_probs), kept, (all_map,), (grad,), work=(Streamed(),),
        sends=over_experts(c, "all_gather", grad), returns=over_experts(c, "reduce_scatter", grad), calls=PREPROCESSING,
        waits=c.training.counts_expert_rows,
    )  # fmt: skip
    return Routed(local, local_probs, rows, (all_probs, x))


def received_tokens(c: Context) -> Dim:
    """Tokens of the ep * etp ranks with at least one local expert: balanced, a share of 1 - C(E - E/ep, k) / C(E, k)."""
    m, layout = c.model, c.layout
    assert m.num_moe_experts is not None
    experts, local = m.num_moe_experts, c.local_experts.local
    miss = 1.0
    for i in range(m.moe_router_topk):
        miss = miss * largest(experts - local - i, 0) / (experts - i)
    total = c.tokens.size * layout.ep * layout.etp
    return Dim("received_tokens", smallest(whole_above(total * (1.0 - miss) * c.router_imbalance), total))


def once(c: Context, width: Dim) -> Sends:
    """A dispatch or combine that sends each token to a rank once."""
    return dispatched(c, c.new("rows sent", c.sent_rows, width), copies=c.model.moe_router_topk) if c.ep_many else ()


def _flex(c: Context, x: Tensor, probs: Tensor, width: Dim, beside: tuple[Item, ...]) -> Module[Routed]:
    """DeepEP receives each token once and permutes it; HybridEP writes the permuted rows directly, padded for fused experts."""
    direct = c.training.moe_flex_dispatcher_backend == "hybridep"
    rows = c.padded_expert_rows if direct and fuses(c) else c.expert_rows
    m = c.model
    assert m.num_moe_experts is not None
    tokens = c.new("mlp.experts.input", rows, width)
    row_probs = c.new("mlp.experts.probs", rows, dtype="fp32")
    sends = once(c, width)
    if direct:
        experts = Dim("num_moe_experts", m.num_moe_experts)
        maps = (
            c.new("mlp.dispatch.routing_map", c.tokens, experts, dtype="bool"),
            c.new("mlp.dispatch.row_map", c.tokens, experts, dtype="int32"),
        )
        yield Op(
            "mlp.dispatch", (x, probs), (tokens, row_probs), maps, work=PERMUTED, sends=sends, returns=sends,
            calls=HYBRIDEP, waits=c.training.counts_expert_rows,
        )  # fmt: skip
        yield from meanwhile(beside, ())
        return Routed(tokens, row_probs, rows, ())
    received = c.new("mlp.dispatch.received", received_tokens(c), width)
    topk = Dim("moe_router_topk", m.moe_router_topk)
    indices = c.new("mlp.dispatch.received_indices", received.shape[0], topk, dtype="int64")
    received_probs = c.new("mlp.dispatch.received_probs", received.shape[0], topk, dtype="fp32")
    yield Op(
        "mlp.dispatch", (x, probs), (received, received_probs), (indices,), sends=sends, returns=sends, calls=DEEPEP,
        waits=c.training.counts_expert_rows,
    )  # fmt: skip
    yield from meanwhile(beside, ())
    if c.training.moe_permute_fusion:
        local = Dim("2*local_experts+1", 2 * c.local_experts.local + 1)
        kept: tuple[Tensor, ...] = (c.new("mlp.permute.row_id_map", received.shape[0], local, dtype="int32"),)
    else:
        kept = (
            c.new("mlp.permute.sorted_indices", rows, dtype="int64"),
            c.new("mlp.permute.token_indices", c.local_experts, received.shape[0], dtype="int64"),
        )
    yield Op("mlp.permute", (received, received_probs), (tokens, row_probs), kept)
    return Routed(tokens, row_probs, rows, (received,))


FUSED = ("mxfp8", "nvfp4")
"""Recipes that the fused op exists for."""


def fuses(c: Context) -> bool:
    """Whether the experts are one op."""
    return c.training.use_transformer_engine_op_fuser and c.recipe is not None and c.recipe.name in FUSED


def fused_experts(
    c: Context, tokens: Tensor, probs: Tensor | None, rows: Dim, fc1: Param, fc2: Param
) -> Module[Tensor]:
    """Output rows of a rank's experts; inputs of both GEMMs are kept in low precision, the output of fc1 in 16 bits.

    mxfp8 keeps the inputs by columns; nvfp4 both orientations, and passes the activation and its gradient through 16 bits.
    Squared ReLU with moe_act recomputation makes the input of fc2 again.
    """
    name = "mlp.experts.grouped_mlp"
    nvfp4 = c.recipe is not None and c.recipe.name == "nvfp4"
    wide = c.new(f"{name}.fc1 output", rows, fc1.shape[0])
    act = c.new(f"{name}.activation output", rows, fc2.shape[1])
    out = c.new(f"{name}.output", rows, fc2.shape[0])
    again = c.training.recomputes("moe_act")
    inputs = [(f"{name}.fc1", tokens), (f"{name}.fc2", act)]
    kept = [wide]
    scratch: list[Tensor] = []
    for label, x in inputs:
        rowwise = other_orientation(c, f"{label}.input", x)
        if not (again and x is act):
            kept += kept_input(c, label, x)
        if nvfp4 and not (again and x is act):
            kept += rowwise
        else:
            scratch += rowwise
    reads = (tokens,) if probs is None else (tokens, probs)
    yield Op(
        name, reads, (out,), (*kept, *reads[1:]), (*scratch, *((act,) if nvfp4 else ())),
        (*quantized_grad(c, f"{name}.fc2", out), *quantized_grad(c, f"{name}.fc1", wide),
         *((grad_of(wide),) if nvfp4 else ()), *(kept_input(c, f"{name}.fc2", act) if again else ()),
         *weight_grad(c, fc1), *weight_grad(c, fc2)),
        wgrad=(*wgrad_operands(c, f"{name}.fc1", tokens, grad_of(wide)), *wgrad_operands(c, f"{name}.fc2", act, grad_of(out))),
        work=(  # the GEMMs quantize what is between them
            gemm(c, fc1, rows.local * c.filled, casts=(True, False)), gemm(c, fc2, rows.local * c.filled, casts=(False, True)),
        ),
    )  # fmt: skip
    return out
