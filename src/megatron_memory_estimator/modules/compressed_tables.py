"""Tables that DeepSeek-V4's layers keep over microbatches: cos and sin of every layer, and indices of the keys of a window.

Source: Megatron-LM `dev` (2f2f8ebae) `megatron/core/transformer/experimental_attention_variant/deepseek_v4_hybrid_attention.py`, `csa.py`
(get_window_topk_idxs, get_compress_topk_idxs: cached by process); `models/common/embeddings/yarn_rotary_pos_embedding.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from ..tape.tensor import Dim, Tensor
from .context import Context
from .kinds import KINDS, kinds_in, layers_with

ROPE = "yarn_rotary_pos_embedding.py: cos and sin per layer"
INDICES = "experimental_attention_variant/csa.py: cached by process"


def tables(c: Context, counts: dict[str, int]) -> Iterator[tuple[Tensor, str]]:
    """Tables of a rank that has so many layers of each kind, each with its source."""
    m = c.model
    present = {kind.name for kind in kinds_in(counts) if kind.compressed}
    if not present:
        return
    layers = layers_with(counts, attrgetter("compressed"))
    rot, two = Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim), Dim("two", 2)
    if c.training.apply_rope_fusion:  # replaces the tables of the construction in the first forward
        yield c.new("rotary cos and sin", Dim("layers", layers), two, c.full_seq, rot), ROPE
    else:
        yield c.new("rotary angles", Dim("layers", layers), c.full_seq, rot, dtype="fp32"), ROPE
        yield from built_tables(c, counts)
    if c.cp_many:  # packed sequences have indices of their own
        return
    yield c.new("window indices", c.seq, Dim("csa_window_size", m.csa_window_size), dtype="int64"), INDICES
    for kind, ratio in (("csa", 4), ("hca", 128)):
        if kind in present and (kind == "hca" or m.csa_dense_mode):
            keys = Dim(f"seq/{ratio}", c.training.seq_length // ratio)
            yield c.new(f"indices of compressed keys of {kind}", c.seq, keys, dtype="int64"), INDICES


def built_tables(c: Context, counts: dict[str, int]) -> Iterator[tuple[Tensor, str]]:
    """Tables that layers with compressed keys are built with: there until the first forward, with apply_rope_fusion."""
    m = c.model
    compressed = [kind for kind in kinds_in(counts) if kind.compressed and kind is not KINDS["window"]]
    if compressed:
        layers = layers_with(counts, compressed.__contains__)
        rows, rot = (
            Dim("positions", m.original_max_position_embeddings),
            Dim("qk_pos_emb_head_dim", m.qk_pos_emb_head_dim),
        )
        yield c.new("rotary cos and sin of YaRN", Dim("layers", layers), Dim("two", 2), rows, rot), ROPE
