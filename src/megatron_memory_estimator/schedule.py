"""The pipeline schedules, event by event: 1F1B and its interleaved form.

Sources: Megatron-LM `megatron/core/pipeline_parallel/schedules.py` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_schedule_table), `combined_1f1b.py` (all-to-all overlap).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Step(NamedTuple):
    """One forward ("F") or backward ("B") of a model chunk, with the microbatches of each chunk that are in flight.

    The counts include the microbatch that the step itself works on. `beside` is the chunk whose backward runs layer by layer
    at the same time (all-to-all overlap), or -1.
    """

    kind: str
    chunk: int
    in_flight: tuple[int, ...]
    beside: int = -1


class Occupancy(NamedTuple):
    """What a rank's schedule keeps in flight: the most at once, the most per chunk, and the distinct steps."""

    num_warmup: int
    max_in_flight: int
    per_chunk: tuple[int, ...]
    steps: tuple[Step, ...]


def warmup_steps(pp: int, vp: int, rank: int, num_microbatches: int, group: int, *, a2a_overlap: bool = False) -> int:
    """Chunk forwards before the first backward may follow; all-to-all overlap needs one more to run beside it."""
    if vp == 1:
        return min(pp - rank - 1 + int(a2a_overlap), num_microbatches)
    return min(2 * (pp - rank - 1) + (vp - 1) * group + int(a2a_overlap), num_microbatches * vp)


def chunk_order(vp: int, num_microbatches: int, group: int) -> list[int]:
    """The chunk of each forward step: each group of microbatches runs through chunk 0, then chunk 1, ..."""
    order: list[int] = []
    for start in range(0, num_microbatches, group):
        size = min(group, num_microbatches - start)
        for chunk in range(vp):
            order.extend([chunk] * size)
    return order


def _events(
    pp: int, vp: int, rank: int, num_microbatches: int, group: int, a2a_overlap: bool
) -> Iterator[tuple[int, int]]:
    """(chunk of the forward, chunk of the backward) of each step in order, -1 for none; both at once with a2a_overlap."""
    order = chunk_order(vp, num_microbatches, group)
    total = len(order)
    warmup = warmup_steps(pp, vp, rank, num_microbatches, group, a2a_overlap=a2a_overlap)
    for step in range(warmup):
        yield order[step], -1
    for step in range(total - warmup):
        backward = vp - 1 - order[step]
        if a2a_overlap:
            yield order[warmup + step], backward
        else:
            yield order[warmup + step], -1
            yield -1, backward
    for step in range(total - warmup, total):
        yield -1, vp - 1 - order[step]


def enough_microbatches(pp: int, vp: int, num_microbatches: int, group: int, *, a2a_overlap: bool = False) -> int:
    """So few microbatches that the schedule still passes through every step of the real one.

    Beyond saturation whole groups repeat; what is left over after the last whole group stays.
    """
    if vp == 1:
        return min(num_microbatches, pp + int(a2a_overlap))
    most = saturating_microbatches(pp, vp, group)
    return num_microbatches if num_microbatches <= most else most + (num_microbatches - most) % group


@lru_cache(maxsize=4096)
def occupancy(pp: int, vp: int, rank: int, num_microbatches: int, group: int, a2a_overlap: bool = False) -> Occupancy:
    """The distinct steps of a rank. Without interleaving the fullest forward and backward cover all others."""
    warmup = warmup_steps(pp, vp, rank, num_microbatches, group, a2a_overlap=a2a_overlap)
    if vp == 1 and not a2a_overlap:
        most = min(warmup + 1, num_microbatches)
        return Occupancy(warmup, most, (most,), (Step("F", 0, (most,)), Step("B", 0, (most,))))
    counts = [0] * vp
    per_chunk = [0] * vp
    most = 0
    seen: dict[Step, None] = {}
    enough = enough_microbatches(pp, vp, num_microbatches, group, a2a_overlap=a2a_overlap)
    for forward, backward in _events(pp, vp, rank, enough, group, a2a_overlap):
        if forward >= 0:
            counts[forward] += 1
            most = max(most, sum(counts))
            per_chunk[forward] = max(per_chunk[forward], counts[forward])
            seen[Step("F", forward, tuple(counts), backward)] = None
        else:
            seen[Step("B", backward, tuple(counts))] = None
        if backward >= 0:
            counts[backward] -= 1
    return Occupancy(warmup, most, tuple(per_chunk), tuple(seen))


def saturating_microbatches(pp: int, vp: int, group: int) -> int:
    """So many microbatches that more would change nothing: every rank reaches its steady state."""
    if vp == 1:
        return pp
    steps = 2 * (pp - 1) + (vp - 1) * group + 2
    groups = -(-steps // (group * vp)) + 2
    return groups * group
