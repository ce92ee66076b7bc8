"""The way back of the experts' rows. Source: Megatron-LM `megatron/core/transformer/moe/token_dispatcher.py`, `moe_layer.py`.

Python references in `moe_layer.py` keep the experts' output until their rows are on the way back (routed_experts_compute), and what
came back until the layer returns; those are the `holds` below.
"""

from __future__ import annotations

from ..tape.ops import Item, Op
from ..tape.tensor import Dim, Tensor
from .context import Context
from .dispatcher import LATE_PROBS, PERMUTED, Routed, gathered, meanwhile, once, received_tokens, sort_map
from .module import Module
from .sends import dispatched, over_etp, over_experts

POSTPROCESS = (0, 16)
"""The Megatron-Core version since which the layer un-permutes in a function of its own (MoELayer.postprocess)."""


def combine(
    c: Context, routed: Routed, done: Tensor, width: Dim, beside: tuple[Item, ...] = ()
) -> Module[tuple[Tensor, tuple[Tensor, ...]]]:
    """From the experts' rows back to the residual stream's tokens, and the rows that the layer's forward refers to until it returns.

    `beside` are ops of shared experts that run while the rows are on their way.
    """
    kind = c.training.moe_token_dispatcher_type
    if kind == "allgather":
        return (yield from _reduced(c, routed, done, width)), ()
    if kind == "flex":
        out = yield from _flexible(c, routed, done, width)
        yield from beside
        return out, ()
    probs = () if routed.probs is None else (routed.probs,)
    # until the rows are sorted, and summed over tensor-parallel ranks
    held = (
        *routed.held,
        done,
        routed.tokens,
        *probs,
    )
    rows = done
    if c.sorts_rows:
        rows = c.new("mlp.combine.unsorted", routed.rows, width)
        chunk_map = sort_map(c, "mlp.combine.sort_map", routed.rows)
        yield Op("mlp.unsort", (done,), (rows,), chunk_map, holds=held)
    if c.etp_many:
        rows = yield from _reduce_scattered(
            c, rows, c.new("mlp.combine.reduce_scattered", c.received_rows, width), held
        )
    back = rows
    # in the backward the shared experts' gradient is gathered before anything else
    waiting = (
        (c.region("mlp.shared_experts.linear_fc2.output grad gathered", c.hidden),) if beside and c.sp_many else ()
    )
    if c.ep_many:
        back = c.new("mlp.combine.all_to_all", c.sent_rows, width)
        sends = dispatched(c, back)
        yield Op(
            "mlp.combine.all_to_all", (rows,), (back,), backward=waiting, holds=routed.held, sends=sends, returns=sends
        )
    yield from meanwhile(beside, (*routed.held, rows, back))
    out = c.stream("mlp.unpermuted", width)
    held = (*routed.held, *_sent(c, done, rows))
    last = _unpermute(c, "mlp.unpermute", back, out, routed, held)
    yield last._replace(backward=(*last.backward, *waiting))
    return out, (*routed.held, back) if c.training.mcore >= POSTPROCESS else held


def _sent(c: Context, done: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Rows still referenced while returned rows are un-permuted: those that were sent, a variable of the layer's forward before
    Megatron-Core 0.16, and before 0.13 the experts' output."""
    if c.training.mcore >= POSTPROCESS:
        return ()
    return (rows,) if c.training.mcore >= LATE_PROBS else (rows, done)


def _reduce_scattered(c: Context, rows: Tensor, shard: Tensor, held: tuple[Tensor, ...]) -> Module[Tensor]:
    """Rows summed over the ranks of an expert, in the dtype of the probabilities."""
    name = "mlp.combine.reduce_scatter"
    if c.probs_dtype == rows.dtype:
        yield Op(
            name,
            (rows,),
            (shard,),
            holds=held,
            sends=over_etp(c, "reduce_scatter", rows),
            returns=over_etp(c, "all_gather", rows),
        )
        return shard
    wide, sums = rows.like(f"{name}.promoted", c.probs_dtype), shard.like(f"{name}.sums", c.probs_dtype)
    yield Op(f"{name}.promote", (rows,), (wide,), holds=held)
    yield Op(
        name,
        (wide,),
        (sums,),
        holds=(*held, rows),
        sends=over_etp(c, "reduce_scatter", rows),
        returns=over_etp(c, "all_gather", rows),
    )
    yield Op(f"{name}.cast", (sums,), (shard,), holds=(*held, rows))
    return shard


def _reduced(c: Context, routed: Routed, done: Tensor, width: Dim) -> Module[Tensor]:
    """All-gather dispatcher: rows added up per token of the group, then over its ranks, in the dtype of the probabilities."""
    out = c.stream("mlp.unpermuted", width)
    if not (c.ep_many or c.etp_many):
        yield _unpermute(c, "mlp.unpermute_local", done, out, routed, (*routed.held, routed.tokens))
        return (yield from _late_biases(c, out, routed, width))
    full = c.new("mlp.unpermuted of all ranks", *gathered(c), width)
    yield _unpermute(c, "mlp.unpermute_local", done, full, routed, (*routed.held, routed.tokens))
    sends, returns = over_experts(c, "reduce_scatter", full), over_experts(c, "all_gather", full)
    if c.probs_dtype == full.dtype:
        yield Op("mlp.unpermute", (full,), (out,), holds=routed.held, sends=sends, returns=returns)
    else:
        wide, sums = full.like(f"{full.name}, promoted", c.probs_dtype), out.like("mlp.unpermute.sums", c.probs_dtype)
        yield Op("mlp.unpermute.promote", (full,), (wide,), holds=routed.held)
        yield Op("mlp.unpermute", (wide,), (sums,), holds=(*routed.held, full), sends=sends, returns=returns)
        yield Op("mlp.unpermute.cast", (sums,), (out,), holds=(*routed.held, full))
    return (yield from _late_biases(c, out, routed, width))


def _late_biases(c: Context, out: Tensor, routed: Routed, width: Dim) -> Module[Tensor]:
    if c.model.add_bias_linear and routed.late is not None:
        return (yield from _biased(c, out, routed, width))
    return out


def _flexible(c: Context, routed: Routed, done: Tensor, width: Dim) -> Module[Tensor]:
    """DeepEP adds rows up per token before it sends them, HybridEP on the way."""
    out, back, work = c.stream("mlp.unpermuted", width), done, PERMUTED
    if c.training.moe_flex_dispatcher_backend == "deepep":
        work = ()
        back = c.new("mlp.combine.rows", received_tokens(c), width)
        yield _unpermute(c, "mlp.combine.unpermute", done, back, routed, routed.held)
    sends = once(c, width)
    yield Op("mlp.unpermute", (back,), (out,), holds=routed.held, work=work, sends=sends, returns=sends)
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
    full = c.new("mlp.unpermuted bias of all ranks", *gathered(c), width)
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
