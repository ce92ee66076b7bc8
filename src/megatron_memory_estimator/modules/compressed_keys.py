"""The compressor of DeepSeek-V4: every r tokens become one key, weighted by a softmax over them (r = 4: over twice as many).

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/csa.py` (Compressor).

The indexer of DeepSeek-V4's CSA layers: it scores compressed keys of its own and picks those that a query attends to.

It reads detached inputs: no gradient of it reaches the rest of the model.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/csa.py` (CSAIndexer).
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UnsupportedError
from ..tape.ops import Item, Op, Recompute
from ..tape.tensor import Dim, Param, Tensor
from .context import Context
from .context_parallel import NAME as CORE
from .linear import duplicated_linear, linear_params
from .module import Module, T, changed
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


NAME = f"{CORE}.indexer"


class Indexer(NamedTuple):
    """Weights of an indexer."""

    wq_b: Param
    weights_proj: Param
    compressor: Compressor


class Index(NamedTuple):
    """What scores are made of: query [s, b, Hi, di], weights of its heads [s, b, Hi], compressed keys."""

    query: Tensor
    weights: Tensor
    keys: Compressed


def indexer_params(c: Context, rank: Dim) -> Module[Indexer]:
    """Query projection, head weights, and a compressor of its own. Raises UnsupportedError for sizes that are not given."""
    m = c.model
    if m.dsa_indexer_n_heads is None or m.dsa_indexer_head_dim is None or m.dsa_indexer_topk is None:
        raise UnsupportedError("CSA layers need dsa_indexer_n_heads, dsa_indexer_head_dim and dsa_indexer_topk")
    both = Dim("dsa_indexer_n_heads*head_dim", m.dsa_indexer_n_heads * m.dsa_indexer_head_dim)
    heads = Dim("dsa_indexer_n_heads", m.dsa_indexer_n_heads)
    wq_b = yield from linear_params(c, f"{NAME}.linear_wq_b", both, rank, "replicated", False)
    proj = yield from linear_params(c, f"{NAME}.linear_weights_proj", heads, c.hidden, "replicated", False)
    head = Dim("dsa_indexer_head_dim", m.dsa_indexer_head_dim)
    compressor = yield from compressor_params(c, f"{NAME}.compressor", head, OVERLAPS)
    assert compressor is not None
    return Indexer(wq_b, proj, compressor)


def index(c: Context, hidden: Tensor, q_latent: Tensor, weights: Indexer) -> Module[Index]:
    """Query, head weights and keys of the indexer."""
    m = c.model
    assert m.dsa_indexer_n_heads is not None and m.dsa_indexer_head_dim is not None
    heads, head = Dim("dsa_indexer_n_heads", m.dsa_indexer_n_heads), Dim("dsa_indexer_head_dim", m.dsa_indexer_head_dim)
    stop = {hidden.name, q_latent.name}

    def detached(module: Module[T]) -> Module[T]:
        return changed(module, lambda item: _stopping(item, stop))

    flat = yield from detached(duplicated_linear(c, f"{NAME}.linear_wq_b", q_latent, weights.wq_b))
    query = c.region(f"{NAME}.query", heads, head)
    yield Op(f"{NAME}.rotate_query", (flat,), (query,))  # RoPE and Hadamard
    keys = yield from detached(compressed(c, f"{NAME}.compressor", hidden, weights.compressor, shared=True))
    score = yield from detached(duplicated_linear(c, f"{NAME}.linear_weights_proj", hidden, weights.weights_proj))
    return Index(query, score, keys)


def _stopping(item: Item, names: set[str]) -> Item:
    """The item without gradients for some tensors."""
    if isinstance(item, Recompute):
        return item
    return item._replace(stops=(*item.stops, *(t for t in item.reads if t.name in names)))
