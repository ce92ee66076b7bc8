"""The compressor of DeepSeek-V4: every r tokens become one key, weighted by a softmax over them (r = 4: over twice as many).

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/csa.py` (Compressor).
"""

from __future__ import annotations

from typing import NamedTuple

from ..tape.ops import Op
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .linear import duplicated_linear, linear_params
from .module import Module
from .norm import norm, norm_params

OVERLAPS = 4
"""The ratio at which groups overlap: double width, and groups of twice the tokens."""
BOUNDARY = 128
"""Tokens of the rank before that context parallelism hands on, for the window."""
SLACK = {4: 32, 128: 128}
"""Tokens by which a rank's compressor input is padded with context parallelism (`csa_utils/cp_utils.py`)."""


class Compressor(NamedTuple):
    """Weights of a compressor: its ratio, the width of a key, wkv and wgate."""

    ratio: int
    width: Dim
    wkv: Param
    wgate: Param


class Compressed(NamedTuple):
    """Compressed keys of this rank's tokens, and how many there are of the whole sequence."""

    keys: Tensor
    rows: Dim


def boundary_rows(c: Context) -> Dim:
    """Tokens of a rank with those of the rank before, under context parallelism."""
    return Dim("seq/cp+boundary", c.seq.local + BOUNDARY)


def rope_copies(c: Context, name: str, rows: tuple[Dim, ...]) -> tuple[Tensor, ...]:
    """What unfused RoPE keeps of the positions: cos and sin in the compute dtype."""
    if c.training.apply_rope_fusion:
        return ()
    rot = Dim("qk_pos_emb_head_dim", c.model.qk_pos_emb_head_dim)
    return tuple(c.new(f"{name}.rotary.{part}", *rows, rot) for part in ("cos", "sin"))


def compressor_params(c: Context, name: str, width: Dim, ratio: int) -> Module[Compressor | None]:
    """Position table in fp32, wkv, wgate and norm; a window layer has none."""
    if not ratio:
        return None
    twice = 2 if ratio == OVERLAPS else 1
    wide = Dim(f"{twice}*{width.name}", twice * width.size)
    yield Param(f"{name}.ape", (Dim("ratio", ratio), wide), dtype="fp32")
    wkv = yield from linear_params(c, f"{name}.linear_wkv", wide, c.hidden, "replicated", False)
    wgate = yield from linear_params(c, f"{name}.linear_wgate", wide, c.hidden, "replicated", False)
    yield from norm_params(c, f"{name}.norm.", width)
    return Compressor(ratio, width, wkv, wgate)


def compressed(
    c: Context, name: str, hidden: Tensor, weights: Compressor, *, shared: bool = False
) -> Module[Compressed]:
    """Keys of the hidden states. `shared`: under context parallelism its input was put together by another compressor.

    It keeps the fp32 softmax over each group, its cast, and the values.
    """
    ratio, width = weights.ratio, weights.width
    rows = c.seq.local // ratio
    count = Dim(f"seq/{ratio}", rows)
    source = hidden
    if c.cp_many:
        rows = (c.seq.local + SLACK[ratio]) // ratio
        count = Dim(f"(seq/cp+{SLACK[ratio]})/{ratio}", rows)
        source = c.new(f"{CP_INPUT} for {ratio}", Dim("seq/cp+slack", rows * ratio), c.batch, c.hidden)
        if not shared:
            yield Op(f"{name}.gather_input", (hidden,), (source,))
    kv = yield from duplicated_linear(c, f"{name}.linear_wkv", source, weights.wkv)
    gate = yield from duplicated_linear(c, f"{name}.linear_wgate", source, weights.wgate)
    group = Dim("tokens of a group", ratio * (2 if ratio == OVERLAPS else 1))
    shape = (count, group, c.batch, width)
    softmax = c.new(f"{name}.softmax", *shape, dtype="fp32")
    kept = (softmax, c.new(f"{name}.softmax cast", *shape), c.new(f"{name}.values", *shape))
    scores = (softmax.like(f"{name}.scores", "fp32"),)
    out = c.new(f"{name}.output", count, c.batch, width)
    yield Op(f"{name}.pool", (kv, gate), (out,), kept, scores, scores)
    keys = yield from norm(c, f"{name}.norm", out)
    copies = rope_copies(c, name, (count,))
    if copies:
        rotated = keys.like(f"{name}.rotated")
        yield Op(f"{name}.rotary", (keys,), (rotated,), copies)
        keys = rotated
    total = Dim(f"{count.name}*cp", rows * c.layout.cp) if c.cp_many else count
    return Compressed(keys, total)


CP_INPUT = "self_attention.core_attention.compressor input"
