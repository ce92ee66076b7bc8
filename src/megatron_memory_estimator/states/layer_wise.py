"""The layer-wise distributed optimizer: which data-parallel rank owns which whole parameters (Muon).

Source: Megatron-LM `megatron/core/optimizer/layer_wise_optimizer.py`. In Megatron-Core 0.16 and 0.17, and later without a parameter
layout, all parameters of a rank are dealt in ping-pong order of their sizes (_shard_params_ping_pong), and the DDP buffers stay as
without a distributed optimizer. Since 0.18 the matrices of a buffer are packed, bucket by bucket, into one shard per rank
(_compute_per_buffer_param_layout), which pads the buffer to so many times its largest shard; everything else is in buffers of its own
that a DistributedOptimizer shards by elements (`megatron/core/optimizer/__init__.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapreplace
from math import lcm
from typing import NamedTuple

from ..job.layout import Layout
from ..tape.tensor import round_up
from .padding import ALIGNMENT, bucket_multiple

PADDING_FLOOR = 0.9
"""A bucket is continued until it has that much of the ranks times its largest parameter (layer_wise_optimizer.py, PADDING_FLOOR)."""


class Whole(NamedTuple):
    """A parameter that is dealt whole: its name, the run of its chunk (in registration order) and the copy of the run's unit that it is
    in, its elements.

    `group`: 0 of Muon's matrices, 1 of others with several dims, 2 of those with one: the order of the optimizer's groups, in which
    equal sizes are dealt (`optimizer/__init__.py` _get_param_groups). `alone`: a shared embedding, in a bucket of its own.
    """

    name: str
    run: int
    copy: int
    numel: int
    group: int
    alone: bool = False

    @property
    def state(self) -> int:
        """Bytes of its optimizer state: fp32 main parameter, and one momentum of Muon's or two moments of Adam's."""
        return (8 if self.group == 0 else 12) * self.numel


Dealt = tuple[tuple[Whole, ...], ...]
"""The parameters of each data-parallel rank."""


def ping_pong(items: Sequence[Whole], ranks: int) -> Dealt:
    """Smallest first, to ranks 0..n-1 and back again."""
    order = (*range(ranks), *reversed(range(ranks)))
    owned: list[list[Whole]] = [[] for _ in range(ranks)]
    for index, item in enumerate(sorted(items, key=lambda item: (item.numel, item.group))):
        owned[order[index % len(order)]].append(item)
    return tuple(map(tuple, owned))


def packed(items: Sequence[Whole], ranks: int, bucket_size: int | None, *, busbw: bool = False) -> tuple[int, Dealt]:
    """Elements of the buffer, and what is in the shard of each rank; `items` in registration order."""
    divisor = lcm(ALIGNMENT, bucket_multiple(ranks, busbw=busbw) // ranks)
    owned: list[list[Whole]] = [[] for _ in range(ranks)]
    numel = 0
    for bucket in _buckets(items, ranks, bucket_size):
        heap = [(0, rank) for rank in range(ranks)]
        for item in sorted(bucket, key=lambda item: -item.numel):
            end, rank = heap[0]
            owned[rank].append(item)
            heapreplace(heap, (round_up(end, ALIGNMENT) + item.numel, rank))
        numel += ranks * round_up(max(end for end, _ in heap), divisor)
    return numel, tuple(map(tuple, owned))


def _buckets(items: Sequence[Whole], ranks: int, bucket_size: int | None) -> Iterator[list[Whole]]:
    """Parameters of each bucket, the last registered first."""
    found: list[Whole] = []
    total = most = 0
    for item in reversed(items):
        if item.alone:
            yield from filter(None, (found, [item]))
            found, total, most = [], 0, 0
            continue
        found.append(item)
        total, most = total + item.numel, max(most, item.numel)
        if bucket_size is not None and total >= max(bucket_size, int(ranks * most * PADDING_FLOOR)):
            yield found
            found, total, most = [], 0, 0
    if found:
        yield found


def grid(layout: Layout) -> list[tuple[int, int]]:
    """(dense, expert) data-parallel ranks of the GPUs of a stage.

    The grid of dense parameters is tp, cp, dp, that of experts etp, ep, expert dp, the first fastest (`parallel_state.py`).
    """
    gpus = range(layout.tp * layout.cp * layout.dp)
    return list(dict.fromkeys((gpu // layout.tp, gpu // (layout.etp * layout.ep)) for gpu in gpus))
