"""The pipeline schedules, event by event: 1F1B and its interleaved form.

Sources: Megatron-LM `megatron/core/pipeline_parallel/schedules.py` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_schedule_table), `combined_1f1b.py` (all-to-all overlap).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ..dataclass import dataclass

Direction = Literal["F", "B"]
"""A forward, or a backward."""


class Step(NamedTuple):
    """One forward ("F") or backward ("B") of a model chunk, behind so many forwards and backwards of all chunks.

    The forwards include the step's own, the backwards do not: its microbatch is in flight. `beside` is the chunk whose backward
    runs layer by layer at the same time (all-to-all overlap), or -1.
    """

    direction: Direction
    chunk: int
    forwards: int
    backwards: int
    beside: int = -1

    @property
    def in_flight(self) -> int:
        """Microbatches of all chunks that are in flight."""
        return self.forwards - self.backwards


class Stretch(NamedTuple):
    """Consecutive steps that each run a forward of one chunk and a backward of one chunk, -1 for none."""

    forward: int
    backward: int
    size: int


class Order(NamedTuple):
    """The order of forwards: each group of microbatches runs through chunk 0, then chunk 1, ...; backwards from the last chunk on."""

    vp: int
    num_microbatches: int
    group: int

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(chunk, how many forwards of it in a row)."""
        for start in range(0, self.num_microbatches, self.group):
            size = min(self.group, self.num_microbatches - start)
            for chunk in range(self.vp):
                yield chunk, size

    def passed(self, chunk: int, steps: int) -> int:
        """How many of the first steps are forwards of a chunk."""
        groups = min(steps // (self.group * self.vp), self.num_microbatches // self.group)
        size = min(self.group, self.num_microbatches - groups * self.group)
        inside = steps - groups * self.group * self.vp - chunk * size
        return groups * self.group + min(max(inside, 0), size)


@dataclass(frozen=True)
class Occupancy:
    """What a rank's schedule keeps in flight: the most at once, the most per chunk, and all steps as stretches."""

    num_warmup: int
    max_in_flight: int
    per_chunk: tuple[int, ...]
    stretches: tuple[Stretch, ...]
    order: Order
    before: int = 0
    """Forwards of chunk 0 before the first stretch."""
    together: bool = False
    """Whether the forward and the backward of a step run at the same time."""

    def in_flight(self, step: Step) -> tuple[int, ...]:
        """Microbatches of each chunk in flight at a step."""
        vp, passed = self.order.vp, self.order.passed
        return tuple(passed(i, step.forwards) - passed(vp - 1 - i, step.backwards) for i in range(vp))

    def held(self, sizes: Sequence[int], *, every: bool = False) -> Iterator[tuple[Step, int]]:
        """The first and last step of each stretch, and what the microbatches in flight keep at it, of so much for one of each chunk.

        Along a stretch that changes evenly, so no step between is above both ends. `every` gives those between too.
        """
        kept, forwards, backwards = self.before * sizes[0], self.before, 0
        for ahead, behind, size in self.stretches:
            more, less = (sizes[i] if i >= 0 else 0 for i in (ahead, behind))
            for at in range(0, size, 1 if every else max(size - 1, 1)):
                here = kept + (at + 1) * more - at * less
                done = forwards + (at + 1 if ahead >= 0 else 0), backwards + (at if behind >= 0 else 0)
                if ahead >= 0:
                    yield Step("F", ahead, *done, behind if self.together else -1), here
                if behind >= 0 and not (self.together and ahead >= 0):
                    yield Step("B", behind, *done), here
            kept += size * (more - less)
            forwards += size if ahead >= 0 else 0
            backwards += size if behind >= 0 else 0


def warmup_steps(pp: int, vp: int, rank: int, num_microbatches: int, group: int, *, a2a_overlap: bool = False) -> int:
    """Chunk forwards before the first backward may follow; all-to-all overlap needs one more to run beside it."""
    if vp == 1:
        return min(pp - rank - 1 + int(a2a_overlap), num_microbatches)
    return min(2 * (pp - rank - 1) + (vp - 1) * group + int(a2a_overlap), num_microbatches * vp)


def _stretches(order: Order, warmup: int) -> Iterator[Stretch]:
    """All steps: forwards only, then a forward and a backward in turn, then backwards only."""
    ahead, behind = ([[chunk, size] for chunk, size in order.blocks()] for _ in range(2))
    ahead.reverse()
    behind.reverse()
    alone = warmup
    while behind:
        chunk, size = ahead[-1] if ahead else (-1, behind[-1][1])
        back = -1 if alone else order.vp - 1 - behind[-1][0]
        size = min(size, alone or behind[-1][1])
        yield Stretch(chunk, back, size)
        alone = max(alone - size, 0)
        for blocks, moved in ((ahead, chunk >= 0), (behind, back >= 0)):
            if moved:
                blocks[-1][1] -= size
                if not blocks[-1][1]:
                    blocks.pop()


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
    """The steps of a rank. Without interleaving the fullest forward and backward cover all others."""
    warmup = warmup_steps(pp, vp, rank, num_microbatches, group, a2a_overlap=a2a_overlap)
    if vp == 1 and not a2a_overlap:
        most = min(warmup + 1, num_microbatches)
        return Occupancy(warmup, most, (most,), (Stretch(0, -1, 1), Stretch(-1, 0, 1)), Order(1, most, most), most - 1)
    enough = enough_microbatches(pp, vp, num_microbatches, group, a2a_overlap=a2a_overlap)
    return whole(pp, vp, rank, enough, group, a2a_overlap)


def whole(pp: int, vp: int, rank: int, num_microbatches: int, group: int, a2a_overlap: bool = False) -> Occupancy:
    """All steps of a rank with just so many microbatches."""
    warmup = warmup_steps(pp, vp, rank, num_microbatches, group, a2a_overlap=a2a_overlap)
    order = Order(vp, num_microbatches, group)
    stretches = tuple(_stretches(order, warmup))
    most, per_chunk = _fullest(stretches, vp)
    return Occupancy(warmup, most, per_chunk, stretches, order, together=a2a_overlap)


def every_step(pp: int, vp: int, rank: int, num_microbatches: int, group: int) -> Iterator[tuple[str, int, int]]:
    """Every step of a rank: forward ("F") or backward ("B"), the chunk, and which of its microbatches."""
    order = Order(vp, num_microbatches, group if vp > 1 else 1)
    done = {"F": [0] * vp, "B": [0] * vp}
    for ahead, behind, size in _stretches(order, warmup_steps(pp, vp, rank, num_microbatches, group)):
        for _ in range(size):
            for kind, chunk in (("F", ahead), ("B", behind)):
                if chunk >= 0:
                    yield kind, chunk, done[kind][chunk]
                    done[kind][chunk] += 1


def _fullest(stretches: Sequence[Stretch], vp: int) -> tuple[int, tuple[int, ...]]:
    """The most microbatches in flight at any forward, of all chunks and of each."""
    counts, per_chunk = [0] * vp, [0] * vp
    total = most = 0
    for ahead, behind, size in stretches:
        if ahead >= 0:  # a backward follows its forward: one more is in flight at the forward
            most = max(most, total + (1 if behind >= 0 else size))
            per_chunk[ahead] = max(per_chunk[ahead], counts[ahead] + (1 if behind == ahead else size))
            counts[ahead] += size
            total += size
        if behind >= 0:
            counts[behind] -= size
            total -= size
    return most, tuple(per_chunk)


def saturating_microbatches(pp: int, vp: int, group: int) -> int:
    """So many microbatches that more would change nothing: every rank reaches its steady state."""
    if vp == 1:
        return pp
    steps = 2 * (pp - 1) + (vp - 1) * group + 2
    groups = -(-steps // (group * vp)) + 2
    return groups * group
