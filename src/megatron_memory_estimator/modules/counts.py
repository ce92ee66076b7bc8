"""Parameters of a whole model, from the same declarations as its memory: every degree 1, vocabulary unpadded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from ..job.layout import Layout
from ..job.model import LOOKED_UP, Model
from ..job.training import Training
from .context import Context
from .flash_next import NGRAM_TABLE
from .layers import Declaration, embedding_unit, final_norm_unit, layer_unit, mtp_unit, output_unit, towers_unit

PUBLISHED_SHAPES = "0.16"
"""Later Megatron-Core versions add a norm that published MLA models without query compression do not have."""


class Count(NamedTuple):
    """Parameters of a model without MTP, those that one token uses, and those of the MTP layers."""

    total: int
    """All parameters, without those of MTP layers."""
    active: int
    """Those that one token uses."""
    mtp: int
    """Those of the MTP layers."""


def count_parameters(model: Model) -> Count:
    """The published counts: tied weights once, vocabulary unpadded, router bias buffers not counted."""
    plain = replace(model, padded_vocab_size=model.vocab_size or model.padded_vocab_size)
    c = Context(plain, Layout(), Training(seq_length=16, megatron_core_version=PUBLISHED_SHAPES), "cudnn")
    total = active = 0
    for kind, count in Counter(model.kinds).items():
        layer, used = _sums(c, layer_unit(c, kind))
        total, active = total + layer * count, active + used * count
    tied = model.share_embeddings_and_output_weights
    outside = (embedding_unit(c, alone=True), final_norm_unit(c), output_unit(c, owns_weight=not tied, shared=False))
    for unit in (*outside, towers_unit(c)):
        size, _ = _sums(c, unit)
        total, active = total + size, active + size
    extra = sum(n for _, n in model.foreign_layers)
    asleep = sum(n for name, n in model.foreign_layers if name.startswith(LOOKED_UP))
    mtp = _sums(c, mtp_unit(c, owns_embedding=False))[0] if model.mtp else 0
    if mtp and model.several_streams:  # the norm in front of it is not its own
        mtp -= _sums(c, final_norm_unit(c))[0]
    return Count(total + extra, active + extra - asleep, mtp)


def _sums(c: Context, unit: Declaration) -> tuple[int, int]:
    """(all parameters, those that one token uses) of a unit."""
    total = sum(p.numel for p in unit.params)
    shared = [p for p in unit.params if p.split == "expert"]  # by expert-parallel ranks
    asleep = sum(p.numel for p in shared if p.name == NGRAM_TABLE)  # of which a token looks up a few rows
    experts = [p for p in shared if p.name != NGRAM_TABLE]
    routed = sum(p.numel for p in experts)
    used = 0
    if experts:
        assert c.model.num_moe_experts is not None
        used = routed // c.model.num_moe_experts * c.model.moe_router_topk
    return total, total - asleep - routed + used
