"""The pipeline schedules, event by event: 1F1B and its interleaved form.

Sources: Megatron-LM `megatron/core/pipeline_parallel/schedules.py` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_schedule_table).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Step(NamedTuple):
    """One forward ("F") or backward ("B") of a model chunk, with the microbatches of each chunk that are in flight.

    The counts include the microbatch that the step itself works on.
    """

    kind: str
    chunk: int
    in_flight: tuple[int, ...]


class Occupancy(NamedTuple):
    """What a rank's schedule keeps in flight: the most at once, the most per chunk, and the distinct steps."""

    num_warmup: int
    max_in_flight: int
    per_chunk: tuple[int, ...]
    steps: tuple[Step, ...]


def warmup_steps(pp: int, vp: int, rank: int, num_microbatches: int, group: int, *, a2a_overlap: bool = False) -> int:
    """Chunk forwards before the first backward may follow."""
    if vp == 1:
        return min(pp - rank - 1, num_microbatches)
    return min(2 * (pp - rank - 1) + (vp - 1) * group + int(a2a_overlap), num_microbatches * vp)


def chunk_order(vp: int, num_microbatches: int, group: int) -> list[int]:
    """The chunk of each forward step: each group of microbatches runs through chunk 0, then chunk 1, ..."""
    order: list[int] = []
    for start in range(0, num_microbatches, group):
        size = min(group, num_microbatches - start)
        for chunk in range(vp):
            order.extend([chunk] * size)
    return order


def _events(pp: int, vp: int, rank: int, num_microbatches: int, group: int) -> Iterator[tuple[str, int]]:
    order = chunk_order(vp, num_microbatches, group)
    total = len(order)
    warmup = warmup_steps(pp, vp, rank, num_microbatches, group)
    for step in range(warmup):
        yield "F", order[step]
    for step in range(total - warmup):
        yield "F", order[warmup + step]
        yield "B", vp - 1 - order[step]
    for step in range(total - warmup, total):
        yield "B", vp - 1 - order[step]


@lru_cache(maxsize=4096)
def occupancy(pp: int, vp: int, rank: int, num_microbatches: int, group: int) -> Occupancy:
    """The distinct steps of a rank; of steps of the same kind and chunk those that another one covers are dropped."""
    counts = [0] * vp
    per_chunk = [0] * vp
    most = 0
    seen: dict[Step, None] = {}
    for kind, chunk in _events(pp, vp, rank, num_microbatches, group):
        if kind == "F":
            counts[chunk] += 1
            most = max(most, sum(counts))
            per_chunk[chunk] = max(per_chunk[chunk], counts[chunk])
        seen[Step(kind, chunk, tuple(counts))] = None
        if kind == "B":
            counts[chunk] -= 1
    steps = [step for step in seen if not any(_covers(other, step) for other in seen)]
    return Occupancy(warmup_steps(pp, vp, rank, num_microbatches, group), most, tuple(per_chunk), tuple(steps))


def _covers(other: Step, step: Step) -> bool:
    return (
        other != step
        and other.kind == step.kind
        and other.chunk == step.chunk
        and all(a >= b for a, b in zip(other.in_flight, step.in_flight, strict=True))
    )


def saturating_microbatches(pp: int, vp: int, group: int) -> int:
    """So many microbatches that more would change nothing: every rank reaches its steady state."""
    if vp == 1:
        return pp
    steps = 2 * (pp - 1) + (vp - 1) * group + 1
    groups = -(-steps // (group * vp)) + 2
    return groups * group
