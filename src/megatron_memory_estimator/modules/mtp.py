"""Multi-token prediction. Source: Megatron-LM `megatron/core/transformer/multi_token_prediction.py`.

Each depth: norms of the shifted embedding and of the hidden states, their concatenation through eh_proj, one transformer
layer of the last decoder layer's kind, a final norm. All depths are concatenated behind the main hidden states.
"""

from __future__ import annotations

from collections.abc import Callable

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .embedding import lookup
from .hyper_connection import contracted, contraction_params
from .linear import column_linear, duplicated_linear, linear_params
from .module import Module, recomputed
from .norm import norm, norm_params
from .sends import over_tp

Layer = Callable[[Context, Tensor], Module[Tensor]]


def mtp_depth(c: Context, hidden: Tensor, table: Param, layer: Layer, prefix: str) -> Module[tuple[Tensor, Tensor]]:
    """Hidden states of one depth, from those of the depth before; and what the next depth reads, which are the same."""
    m = c.model
    both = Dim("2*hidden_size", 2 * m.hidden_size)
    eh_out = c.dim("hidden_size", m.hidden_size, "tp")
    yield from norm_params(c, f"{prefix}.enorm.", c.hidden)
    yield from norm_params(c, f"{prefix}.hnorm.", c.hidden)
    eh_proj = yield from linear_params(c, f"{prefix}.eh_proj", eh_out, both, "tp", False)
    embedded = yield from lookup(c, f"{prefix}.embedding", table, c.stream(f"{prefix}.embedding.output", c.hidden))

    def body() -> Module[Tensor]:
        e = yield from norm(c, f"{prefix}.enorm", embedded)
        h = yield from norm(c, f"{prefix}.hnorm", hidden)
        joined = c.stream(f"{prefix}.joined", both)
        yield Op(f"{prefix}.concatenate", (e, h), (joined,))
        projected = yield from column_linear(c, f"{prefix}.eh_proj", joined, eh_proj)
        x = projected
        if c.tp_many:
            full = c.region(f"{prefix}.eh_proj gathered", c.hidden)
            yield Op(f"{prefix}.eh_proj.gather", (projected,), (full,), sends=over_tp(c, "all_gather", full))
            # scattered again over the sequence; the scatter is a view that pins the gathered tensor
            x = full.view(f"{prefix}.layer input", c.residual("").shape)
            back = over_tp(c, "all_gather", full) if c.sp_many else ()
            yield Op(f"{prefix}.eh_proj.scatter", (full,), (x,), returns=back)
        out = yield from layer(c, x)
        yield from norm_params(c, f"{prefix}.final_layernorm.", c.hidden)
        return (yield from norm(c, f"{prefix}.final_layernorm", out))

    normed = yield from recomputed(c.training.recomputes_layers(), f"{prefix}.checkpoint", body())
    return normed, normed


def mtp_depth_of_streams(
    c: Context, streams: Tensor, table: Param, layer: Layer, prefix: str
) -> Module[tuple[Tensor, Tensor]]:
    """The same with hyper-connections: the embedding is added to every stream; hidden states of the contracted streams, and the streams.

    Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/multi_token_prediction.py` (_postprocess).
    """
    yield from contraction_params(c, f"{prefix}.")
    yield from norm_params(c, f"{prefix}.enorm.", c.hidden)
    yield from norm_params(c, f"{prefix}.hnorm.", c.hidden)
    e_proj = yield from linear_params(c, f"{prefix}.e_proj", c.hidden, c.hidden, "replicated", False)
    h_proj = yield from linear_params(c, f"{prefix}.h_proj", c.hidden, c.hidden, "replicated", False)
    embedded = yield from lookup(c, f"{prefix}.embedding", table, c.stream(f"{prefix}.embedding.output", c.hidden))

    def body() -> Module[Tensor]:
        e = yield from norm(c, f"{prefix}.enorm", embedded)
        h = yield from norm(c, f"{prefix}.hnorm", streams)
        one = yield from duplicated_linear(c, f"{prefix}.e_proj", e, e_proj)
        every = yield from duplicated_linear(c, f"{prefix}.h_proj", h, h_proj)
        x = c.residual(f"{prefix}.layer input")
        yield Op(f"{prefix}.add_to_streams", (one, every), (x,), passes=(every,))
        return (yield from layer(c, x))

    out = yield from recomputed(c.training.recomputes_layers(), f"{prefix}.checkpoint", body())
    single = yield from contracted(c, f"{prefix}.", out)
    yield from norm_params(c, f"{prefix}.final_layernorm.", c.hidden)
    return (yield from norm(c, f"{prefix}.final_layernorm", single)), out


def concatenated(c: Context, name: str, parts: tuple[Tensor, ...]) -> Module[Tensor]:
    """All depths behind the main hidden states, along the sequence."""
    depths = Dim("1+mtp_num_layers", len(parts))
    out = c.new(name, depths, *parts[0].shape)
    yield Op(f"{name}.concatenate", parts, (out,))
    return out
