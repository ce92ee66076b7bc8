"""Hyper-connections (mHC): several residual streams around each sub-layer.

Source: Megatron-LM `megatron/core/transformer/hyper_connection.py`.

    streams [s, b, n*h] -> mappings -> aggregated input [s, b, h] -> norm, sub-layer -> expanded and mixed into new streams

Norm, mapping projection, aggregation and mixing share the streams' storage; the sub-layer's output is kept for the
gradient of its expansion.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UnsupportedError
from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, numel_of
from ..tape.work import Gemm, Streamed
from .context import Context
from .module import Module

STREAMS = 4
"""The number of streams for which the bytes of the mappings are known."""
MAPPING_BYTES = 190
"""Bytes per token of h_pre, h_post, h_res, their projections, the Sinkhorn start matrix and norms at four streams,
counted on Megatron-Core's class."""


def streams(c: Context, name: str) -> Tensor:
    """The residual streams of one position side by side."""
    if c.model.mhc_num_residual_streams != STREAMS:
        raise UnsupportedError(
            f"mhc_num_residual_streams={c.model.mhc_num_residual_streams} is not modelled; {STREAMS} is",
            f"mhc_num_residual_streams other than {STREAMS} is not modelled",
        )
    return c.stream(name, Dim("mhc_num_residual_streams", STREAMS), c.hidden)


def connected(
    c: Context, name: str, before: Tensor, sublayer: Callable[[Context, Tensor], Module[Tensor]]
) -> Module[Tensor]:
    """A sub-layer between aggregation and expansion; the new streams."""
    n = c.model.mhc_num_residual_streams
    width = Dim("streams*hidden_size", n * c.model.hidden_size)
    maps = Dim("streams^2+2*streams", n * n + 2 * n)
    yield Param(f"{name}.mapping_proj.weight", (maps, width))
    yield Param(f"{name}.mapping_proj.bias", (maps,), matrix=False)
    yield Param(f"{name}.scales", (Dim("three", 3),), matrix=False)
    mappings = c.new(f"{name}.mappings", c.seq_sp, c.batch, Dim("bytes", MAPPING_BYTES), dtype="uint8")
    x = c.stream(f"{name}.aggregated", c.hidden)
    work = (Gemm(numel_of(x.shape[:-1]), maps.size, width.size, counted=False), Streamed())
    yield Op(f"{name}.aggregate", (before,), (x, mappings), (before, mappings), part="streams", work=work)
    y = yield from sublayer(c, x)
    after = streams(c, f"{name}.streams")
    mask = (after.like(f"{name}.dropout_mask", "bool"),) if c.model.hidden_dropout > 0 else ()
    mixed = (after.like(f"{name}.mixed streams"),)
    yield Op(
        f"{name}.expand", (before, y, mappings), (after,), (before, y, mappings, *mask), mixed, mixed, part="streams"
    )
    return after


def expanded(c: Context, hidden: Tensor) -> Module[Tensor]:
    """The embedding output in every stream."""
    out = streams(c, "mhc.expanded")
    yield Op("mhc.expand", (hidden,), (out,), part="streams")
    return out


def contracted(c: Context, before: Tensor) -> Module[Tensor]:
    """The streams summed for the final norm."""
    out = c.stream("mhc.contracted", c.hidden)
    yield Op("mhc.contract", (before,), (out,), part="streams")
    return out
