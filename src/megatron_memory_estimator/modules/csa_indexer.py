"""The indexer of DeepSeek-V4's CSA layers: it scores compressed keys of its own and picks those that a query attends to.

It reads detached inputs: no gradient of it reaches the rest of the model.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/csa.py` (CSAIndexer).
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UnsupportedError
from ..tape.ops import Item, Op, Recompute
from ..tape.tensor import Dim, Param, Tensor
from .compressed_keys import OVERLAPS, Compressed, Compressor, compressed, compressor_params
from .context import Context
from .context_parallel import NAME as CORE
from .linear import duplicated_linear, linear_params
from .module import Module, T, changed

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
