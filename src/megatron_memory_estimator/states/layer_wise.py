"""The layer-wise distributed optimizer: whole parameters are dealt out to data-parallel ranks (Muon).

Source: Megatron-LM `megatron/core/optimizer/layer_wise_optimizer.py`. Until Megatron-Core 0.16 parameters are sorted by
size and dealt in ping-pong order, and the DDP buffers stay as without a distributed optimizer. Later they are packed into
one shard per rank, and both buffers grow to the number of ranks times the largest shard; the packing is modelled as
largest first onto the emptiest shard.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import lcm
from typing import NamedTuple

from ..tape.tensor import Param, round_up
from .padding import ALIGNMENT, BUCKET_MULTIPLE


class Deal(NamedTuple):
    """Elements of the buffer, and of the rank whose optimizer state is largest: all, and those of Muon matrices."""

    numel: int
    owned: int
    owned_matrices: int


def sizes(runs: list[tuple[list[Param], int]], muon_managed: set[str]) -> list[tuple[int, bool]]:
    """(elements, whether Muon updates it) of every parameter, largest first."""
    found = [
        (p.numel_each, p.name in muon_managed)
        for params, count in runs
        for p in params
        for _ in range(p.copies * count)
    ]
    return sorted(found, key=lambda item: -item[0])


def state_elements(total: int, matrices: int) -> int:
    """Optimizer-state elements besides the main parameter: one momentum for Muon, two moments for Adam."""
    return 2 * total - matrices


def ping_pong(items: list[tuple[int, bool]], ranks: int) -> Deal:
    """Smallest first, to ranks 0..n-1 and back again."""
    loads = [[0, 0] for _ in range(ranks)]
    order = [*range(ranks), *reversed(range(ranks))]
    for index, (numel, muon) in enumerate(reversed(items)):
        load = loads[order[index % len(order)]]
        load[0] += numel
        load[1] += numel if muon else 0
    top = max(loads, key=lambda load: load[0] + state_elements(*load))
    return Deal(sum(numel for numel, _ in items), top[0], top[1])


def packed(items: list[tuple[int, bool]], ranks: int) -> Deal:
    """Largest first onto the emptiest shard; every shard is as large as the largest."""
    heap = [(0, rank, 0) for rank in range(ranks)]
    heapify(heap)
    for numel, muon in items:
        load, rank, matrices = heap[0]
        heapreplace(heap, (load + round_up(numel, ALIGNMENT), rank, matrices + (numel if muon else 0)))
    largest = max(load for load, _, _ in heap)
    shard = round_up(largest, lcm(ALIGNMENT, lcm(ranks, BUCKET_MULTIPLE) // ranks))
    top = max(heap, key=lambda item: item[0] + state_elements(item[0], item[2]))
    return Deal(shard * ranks, top[0], top[2])
