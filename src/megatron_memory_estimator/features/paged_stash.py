"""Paged stash: what experts keep leaves its oversized tensors for one paged buffer that is as large as balanced routing needs.

With `moe_expert_rank_capacity_factor` the tensors of experts have static rows, most of them unused. After the forward of a
layer the used rows are copied into pages of one buffer; before its backward they are copied back. The buffer is
`moe_paged_stash_buffer_size_factor_cuda` times what all microbatches in flight keep with balanced routing, and stays; a
second one in host memory takes what does not fit.

Source: Megatron-LM PR 4247.
"""

from __future__ import annotations

from ..modules.context import Context
from ..tape.events import Live, Trace
from ..tape.ops import Part
from ..tape.tensor import Dim, Tensor, tensor

PAGED: frozenset[Part] = frozenset(("expert_fc1", "moe_act", "experts", "experts_wgrads"))
"""Parts whose tensors are paged: the experts and their delayed weight gradients."""


def stashed(c: Context, found: Trace) -> tuple[Trace, tuple[Tensor, ...]]:
    """What a unit still keeps in tensors of its own, and what it keeps in the buffer, in rows of balanced routing."""
    gone = [live for live in found.saved if _pages(c, live)]
    if not gone:
        return found, ()
    stay = tuple(live for live in found.saved if live not in gone)
    total = found.saved_bytes - sum(live.tensor.nbytes for live in gone)
    rows = Dim("balanced expert rows", c.sent_rows.size * (c.layout.etp if c.etp_many else 1))
    kept = tuple(tensor(live.tensor.name, (rows, *live.tensor.shape[1:]), live.tensor.dtype) for live in gone)
    return found._replace(saved=stay, saved_bytes=total), kept


def _pages(c: Context, live: Live) -> bool:
    shape = live.tensor.shape
    own = bool(live.saved_by) and all(saver.part in PAGED for saver in live.saved_by)
    return own and bool(shape) and shape[0].name == c.padded_expert_rows.name
