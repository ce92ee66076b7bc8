"""Hyper-connections (mHC): several residual streams around each sub-layer.

    streams [s, b, n, h] -> mappings -> aggregated input [s, b, h] -> norm, sub-layer -> mixed with the streams into new ones

The mappings of a token are n numbers to aggregate, n to spread the sub-layer's output and n^2 to mix (a Sinkhorn iteration of the
projected streams). Native, the projection reads an fp32 copy of the streams, which it keeps; fused (use_fused_mhc, on Blackwell)
it reads the streams. What compiled functions keep is what the min-cut partitioner chooses.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/hyper_connection.py`, `fusions/fused_mhc_kernels.py`,
`transformer/transformer_block.py` (postprocess_for_layer_schedule).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor, numel_of
from ..tape.work import Gemm, Streamed
from .context import Context
from .module import GROUP, Module, in_part, recomputed

KEPT = "fp32"
"""Dtype of its parameters and of the numbers that the mappings keep."""


class Mappings(NamedTuple):
    """Numbers of each token in the compute dtype: to aggregate, to spread and to mix."""

    pre: Tensor
    post: Tensor
    res: Tensor


def keeping_streams(c: Context) -> Context:
    """The context of MTP's layers, whose streams stay with recompute_modules mhc: the decoder's block hands its own layers the manager that
    drops them (`transformer_block.py`). No record names these tensors; their bytes, 4 n h T of a layer, are those that stay."""
    t = c.training
    if not t.recomputes("mhc"):
        return c
    modules = tuple(module for module in t.recomputed_modules if module != "mhc")
    return replace(c, training=replace(t, recompute_modules=modules))


def _dims(c: Context) -> tuple[Dim, Dim, Dim]:
    """Streams, the numbers of a token's mappings, and the width of the streams side by side."""
    n = c.streams.size
    return c.streams, Dim("n^2+2n", n * n + 2 * n), Dim("streams*hidden_size", n * c.model.hidden_size)


def connection_params(c: Context, name: str) -> Module[None]:
    """Parameters of one connection, in fp32; registered behind those of the layer."""
    one = Dim("one", 1)
    _, maps, width = _dims(c)
    for alpha in ("alpha_pre", "alpha_post", "alpha_res"):
        yield Param(f"{name}.{alpha}", (one,), matrix=False, dtype=KEPT)
    yield Param(f"{name}.bias", (maps,), matrix=False, dtype=KEPT)
    yield Param(f"{name}.mapping_proj.weight", (maps, width), dtype=KEPT)


def connected(
    c: Context, name: str, before: Tensor, sublayer: Callable[[Context, Tensor], Module[Tensor]]
) -> Module[Tensor]:
    """A sub-layer between aggregation and mixing; the new streams. With recompute_modules mhc what it aggregates and the new streams
    are dropped until the backward of the group of layers begins."""
    again = c.training.recomputes("mhc")
    maps = yield from in_part("streams", _mappings(c, name, before))
    aggregated = recomputed(again, f"{name}.aggregate.checkpoint", _aggregated(c, name, before, maps), GROUP)
    x = yield from in_part("streams", aggregated)
    y = yield from sublayer(c, x)
    mixed = recomputed(again, f"{name}.mix.checkpoint", _mixed(c, name, before, maps, y), GROUP)
    return (yield from in_part("streams", mixed))


def _mappings(c: Context, name: str, before: Tensor) -> Module[Mappings]:
    streams, maps, width = _dims(c)
    rows = before.shape[:2]
    square = Dim("n^2", streams.size * streams.size)
    made = Mappings(
        c.new(f"{name}.h_pre", *rows, streams),
        c.new(f"{name}.h_post", *rows, streams),
        c.new(f"{name}.h_res", *rows, square),
    )
    number = Dim("one", 1)
    shapes: dict[str, tuple[Dim, ...]] = {
        "projection": (*rows, maps),
        "norm": (*rows, number),
        "pre in fp32": (*rows, streams),
        "post in fp32": (*rows, streams),
        "sinkhorn": (*rows, square),
    }
    copied = not (c.training.use_fused_mhc and c.blackwell)
    if c.training.use_fused_mhc:
        shapes["res in fp32"] = (*rows, square)
    else:
        shapes |= {"scale": (*rows, number), "bias": (maps,)}
    kept = tuple(c.new(f"{name}.{what}", *shape, dtype=KEPT) for what, shape in shapes.items())
    wide: tuple[Tensor, ...] = (before.like(f"{name}.streams in fp32", KEPT),) if copied else (before,)
    if copied and c.training.use_fused_mhc:  # the fused aggregation keeps the streams themselves too
        wide = (*wide, before)
    grads = (before.like(f"{name}.streams grad in fp32", KEPT),) if copied else ()
    work = (Gemm(numel_of(rows), maps.size, width.size, counted=False), Streamed())
    yield Op(f"{name}.mappings", (before,), tuple(made), (*wide, *kept), backward=grads, work=work)
    return made


def _aggregated(c: Context, name: str, before: Tensor, maps: Mappings) -> Module[Tensor]:
    x = c.stream(f"{name}.aggregated", c.hidden)
    yield Op(f"{name}.aggregate", (before, maps.pre), (x,), (before, maps.pre))
    return x


def _mixed(c: Context, name: str, before: Tensor, maps: Mappings, y: Tensor) -> Module[Tensor]:
    after = c.residual(f"{name}.streams")
    reads = (before, maps.res, maps.post, y)
    yield Op(f"{name}.mix", reads, (after,), reads)
    return after


def expanded(c: Context, hidden: Tensor) -> Module[Tensor]:
    """The embedding output in every stream."""
    out = c.residual("mhc.expanded")
    yield Op("mhc.expand", (hidden,), (out,), part="streams")
    return out


def contraction_params(c: Context, name: str) -> Module[None]:
    """Parameters of a learned contraction of the streams, in fp32."""
    streams, _, width = _dims(c)
    yield Param(f"{name}hc_head_fn", (streams, width), dtype=KEPT)
    yield Param(f"{name}hc_head_base", (streams,), matrix=False, dtype=KEPT)
    yield Param(f"{name}hc_head_scale", (Dim("one", 1),), matrix=False, dtype=KEPT)


def contracted(c: Context, name: str, before: Tensor) -> Module[Tensor]:
    """The streams as one, weighted by numbers of each token; it keeps them in fp32."""
    streams, _, width = _dims(c)
    out = c.stream(f"{name}mhc.contracted", c.hidden)
    rows = before.shape[:2]
    kept = (
        before.like(f"{name}mhc.streams in fp32", KEPT),
        c.new(f"{name}mhc.rsqrt", *rows, Dim("one", 1), dtype=KEPT),
        c.new(f"{name}mhc.weights", *rows, streams, dtype=KEPT),
    )
    grads = (before.like(f"{name}mhc.streams grad in fp32", KEPT),)
    work = (Gemm(numel_of(rows), streams.size, width.size, counted=False), Streamed())
    yield Op(f"{name}mhc.contract", (before,), (out,), kept, backward=grads, part="streams", work=work)
    return out
