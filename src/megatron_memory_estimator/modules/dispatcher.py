"""Token dispatchers of MoE layers. Source: Megatron-LM `megatron/core/transformer/moe/token_dispatcher.py`.

Python references in `moe_layer.py` keep the permuted rows and the dispatched rows until the layer returns, and the rows
that go back until they are un-permuted; those are the `holds` below.
"""

from __future__ import annotations

from dataclasses import replace

from ..dataclass import dataclass
from ..tape.ops import Op
from ..tape.tensor import Dim, Tensor, largest, smallest, whole_above
from ..tape.work import Streamed
from .context import Context
from .fused_experts import fuses
from .module import Module
from .sends import Sends, dispatched, over_etp, over_experts

PREPROCESSING = 10
"""Functions of PyTorch that count and sort a rank's tokens before they are sent (counted in `moe/token_dispatcher.py` of Megatron-Core
0.16: preprocess, _maybe_dtoh_and_synchronize)."""


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


def dispatch(c: Context, x: Tensor, probs: Tensor, width: Dim) -> Module[Routed]:
    """From the residual stream's tokens to the rows of the local experts."""
    way = {"allgather": _allgather, "flex": _flex, "alltoall": _alltoall}[c.training.moe_token_dispatcher_type]
    routed = yield from way(c, x, probs, width)
    return routed if c.training.mcore >= LATE_PROBS else replace(routed, probs=None, late=probs)


def combine(c: Context, routed: Routed, done: Tensor, width: Dim) -> Module[Tensor]:
    """From the experts' rows back to the residual stream's tokens."""
    kind = c.training.moe_token_dispatcher_type
    out = c.stream("mlp.unpermuted", width)
    if kind == "allgather":
        full = c.new("mlp.unpermuted of all ranks", *_gathered(c), width)
        yield _unpermute(c, "mlp.unpermute_local", done, full, routed, routed.held)
        yield Op(
            "mlp.unpermute", (full,), (out,), holds=routed.held, sends=over_experts(c, "reduce_scatter", full),
            returns=over_experts(c, "all_gather", full),
        )  # fmt: skip
        if c.model.add_bias_linear and routed.late is not None:
            return (yield from _biased(c, out, routed, width))
        return out
    if kind == "flex":
        back = done
        if c.training.moe_flex_dispatcher_backend == "deepep":
            back = c.new("mlp.combine.rows", _received_tokens(c), width)
            yield _unpermute(c, "mlp.combine.unpermute", done, back, routed, routed.held)
        sends = _once(c, width)
        yield Op("mlp.unpermute", (back,), (out,), holds=routed.held, sends=sends, returns=sends)
        return out
    rows = done
    if c.local_experts_many:
        rows = c.new("mlp.combine.unsorted", routed.rows, width)
        chunk_map = _sort_map(c, "mlp.combine.sort_map", routed.rows)
        yield Op("mlp.combine.unsort", (done,), (rows,), chunk_map, holds=routed.held)
    if c.etp_many:
        shard = c.new("mlp.combine.reduce_scattered", c.received_rows, width)
        promoted = (rows.like("mlp.combine.promoted to fp32", "fp32"),) if c.probs_dtype == "fp32" else ()
        yield Op(
            "mlp.combine.reduce_scatter", (rows,), (shard,), forward=promoted, holds=routed.held,
            sends=over_etp(c, "reduce_scatter", rows), returns=over_etp(c, "all_gather", rows),
        )  # fmt: skip
        rows = shard
    back = rows
    if c.ep_many:
        back = c.new("mlp.combine.all_to_all", c.sent_rows, width)
        sends = dispatched(c, back)
        yield Op("mlp.combine.all_to_all", (rows,), (back,), holds=routed.held, sends=sends, returns=sends)
    yield _unpermute(c, "mlp.unpermute", back, out, routed, (*routed.held, rows))
    return out


def _biased(c: Context, out: Tensor, routed: Routed, width: Dim) -> Module[Tensor]:
    """Biases of fc2 take the way of the rows: one row each, weighed, un-permuted and added up over ranks, then added.

    Source: Megatron-LM `moe/experts.py` (SequentialMLP.forward: output_bias_list), `moe/token_dispatcher.py` (token_unpermutation of
    the all-gather dispatcher), both before Megatron-Core 0.13. With one expert its bias is broadcast.
    """
    rows = c.new("mlp.experts.bias rows", routed.rows, width)
    if not c.local_experts_many:
        rows = rows._replace(nbytes=0)
    yield Op("mlp.experts.bias_rows", (), (rows,))
    full = c.new("mlp.unpermuted bias of all ranks", *_gathered(c), width)
    yield _unpermute(c, "mlp.unpermute_local_bias", rows, full, routed, (), "mlp.unpermute_local")
    bias = out.like("mlp.unpermuted bias")
    yield Op(
        "mlp.unpermute_bias", (full,), (bias,), sends=over_experts(c, "reduce_scatter", full),
        returns=over_experts(c, "all_gather", full),
    )  # fmt: skip
    total = out.like("mlp.output with bias")
    yield Op("mlp.bias_add", (out, bias), (total,), passes=(out, bias))
    return total


def _unpermute(
    c: Context, name: str, rows: Tensor, out: Tensor, routed: Routed, holds: tuple[Tensor, ...], weighed: str = ""
) -> Op:
    """Rows added up per token. Unfused and deterministic it is an index_add, whose node keeps its source in PyTorch.

    Source: Megatron-LM `moe/moe_utils.py` unpermute: index_add since Megatron-Core 0.15, probabilities here before 0.13 (the
    product keeps the rows and their probabilities, `weighed` names the op that has them too); the fused kernel and scatter_add keep
    no rows. PyTorch `tools/autograd/derivatives.yaml`, index_add: the gradient is `grad.index_select(dim, index).expand_as(source)`.
    """
    t = c.training
    if routed.late is None:
        added = t.deterministic_mode and not t.moe_permute_fusion and t.mcore >= (0, 15)
        return Op(name, (rows,), (out,), (rows,) if added else (), holds=holds)
    probs = c.new(f"{weighed or name}.probs", rows.shape[0], dtype=c.probs_dtype)
    product = () if t.moe_permute_fusion else (rows.like(f"{name}.weighted rows", c.probs_dtype),)
    return Op(name, (rows, routed.late), (out,), (rows, probs), product, product, holds)


def _sort_map(c: Context, name: str, rows: Dim) -> tuple[Tensor, ...]:
    """Row map of a fused chunk sort; unfused and padded sorts are splits and copies that keep nothing."""
    padded = c.training.moe_pad_expert_input_to_capacity
    return (c.new(name, rows, dtype="int32"),) if c.training.moe_permute_fusion and not padded else ()


def _permute_maps(c: Context) -> tuple[Tensor, ...]:
    """What permutation keeps: a fused row map, or the indices that the unfused one gathers with."""
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
            c.new("mlp.permute.routing_map", c.tokens, experts, dtype="bool"),
        )
    return (
        c.new("mlp.permute.sorted_indices", sent, dtype="int64"),
        c.new("mlp.permute.token_indices", experts, c.tokens, dtype="int64"),
    )


def _alltoall(c: Context, x: Tensor, probs: Tensor, width: Dim) -> Module[Routed]:
    sent, received = c.sent_rows, c.received_rows
    permuted = c.new("mlp.dispatch.permuted", sent, width)
    permuted_probs = c.new("mlp.dispatch.permuted_probs", sent, dtype=c.probs_dtype)
    yield Op(
        "mlp.permute", (x, probs), (permuted, permuted_probs), _permute_maps(c), part="permute", calls=PREPROCESSING
    )
    tokens, row_probs = permuted, permuted_probs
    held: tuple[Tensor, ...] = (permuted,)
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
        )
        held = (permuted, tokens)
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
    if c.local_experts_many:
        ordered = c.new("mlp.experts.input", rows, width)
        ordered_probs = c.new("mlp.experts.probs", rows, dtype=c.probs_dtype)
        kept = _sort_map(c, "mlp.dispatch.sort_map", rows)
        yield Op("mlp.dispatch.sort", (tokens, row_probs), (ordered, ordered_probs), kept, holds=held)
        tokens, row_probs = ordered, ordered_probs
    return Routed(tokens, row_probs, rows, held)


def _gathered(c: Context) -> tuple[Dim, Dim]:
    """All tokens of the expert-parallel group."""
    tokens = c.tokens.size
    return Dim("tokens*ep*etp", tokens * c.layout.ep * c.layout.etp), Dim("one", 1)


def _allgather(c: Context, x: Tensor, probs: Tensor, width: Dim) -> Module[Routed]:
    """Every rank sees all tokens of the group (a persistent buffer, see workspaces.py) and picks its experts' rows."""
    m = c.model
    assert m.num_moe_experts is not None
    experts = Dim("num_moe_experts", m.num_moe_experts)
    tokens = _gathered(c)[0]
    all_probs = c.new("mlp.dispatch.probs of all ranks", tokens, experts, dtype=probs.dtype)
    all_map = c.new("mlp.dispatch.routing_map of all ranks", tokens, experts, dtype="bool")
    rows = c.expert_rows
    local = c.new("mlp.experts.input", rows, width)
    local_probs = c.new("mlp.experts.probs", rows, dtype=c.probs_dtype)
    kept: tuple[Tensor, ...] = (
        c.new("mlp.permute.indices", rows, dtype="int64"),
        c.new("mlp.permute.local_map", tokens, c.local_experts, dtype="bool"),
        c.new("mlp.permute.local_probs", tokens, c.local_experts, dtype=c.probs_dtype),
    )
    if c.training.moe_permute_fusion:
        columns = Dim("2*local_experts+1", 2 * c.local_experts.local + 1)
        kept = (c.new("mlp.permute.row_id_map", tokens, columns, dtype="int32"),)
    grad = c.new("mlp.dispatch.tokens grad of all ranks", *_gathered(c), width)
    yield Op(
        "mlp.permute", (x, probs), (local, local_probs), kept, (all_probs, all_map), (grad,), work=(Streamed(),),
        sends=over_experts(c, "all_gather", grad), returns=over_experts(c, "reduce_scatter", grad), calls=PREPROCESSING,
    )  # fmt: skip
    return Routed(local, local_probs, rows, ())


def _received_tokens(c: Context) -> Dim:
    """Tokens of the ep * etp ranks with at least one local expert: balanced, a share of 1 - C(E - E/ep, k) / C(E, k)."""
    m, layout = c.model, c.layout
    assert m.num_moe_experts is not None
    experts, local = m.num_moe_experts, c.local_experts.local
    miss = 1.0
    for i in range(m.moe_router_topk):
        miss = miss * largest(experts - local - i, 0) / (experts - i)
    total = c.tokens.size * layout.ep * layout.etp
    return Dim("received_tokens", smallest(whole_above(total * (1.0 - miss) * c.router_imbalance), total))


def _once(c: Context, width: Dim) -> Sends:
    """A dispatch or combine that sends each token to a rank once."""
    return dispatched(c, c.new("rows sent", c.sent_rows, width), copies=c.model.moe_router_topk) if c.ep_many else ()


def _flex(c: Context, x: Tensor, probs: Tensor, width: Dim) -> Module[Routed]:
    """DeepEP receives each token once and permutes it; HybridEP writes the permuted rows directly, padded for fused experts."""
    direct = c.training.moe_flex_dispatcher_backend == "hybridep"
    rows = c.padded_expert_rows if direct and fuses(c) else c.expert_rows
    m = c.model
    assert m.num_moe_experts is not None
    tokens = c.new("mlp.experts.input", rows, width)
    row_probs = c.new("mlp.experts.probs", rows, dtype="fp32")
    sends = _once(c, width)
    if direct:
        experts = Dim("num_moe_experts", m.num_moe_experts)
        maps = (
            c.new("mlp.dispatch.routing_map", c.tokens, experts, dtype="bool"),
            c.new("mlp.dispatch.row_map", c.tokens, experts, dtype="int32"),
        )
        yield Op("mlp.dispatch", (x, probs), (tokens, row_probs), maps, sends=sends, returns=sends, calls=PREPROCESSING)
        return Routed(tokens, row_probs, rows, ())
    received = c.new("mlp.dispatch.received", _received_tokens(c), width)
    topk = Dim("moe_router_topk", m.moe_router_topk)
    indices = c.new("mlp.dispatch.received_indices", received.shape[0], topk, dtype="int64")
    received_probs = c.new("mlp.dispatch.received_probs", received.shape[0], topk, dtype="fp32")
    yield Op(
        "mlp.dispatch",
        (x, probs),
        (received, received_probs),
        (indices,),
        sends=sends,
        returns=sends,
        calls=PREPROCESSING,
    )
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
