"""What was alive when: the bytes before a trace, its peak, and the tensors of a moment.

    at the start = at the dump - what was asked for in the trace + what was freed in it
    alive at a moment = blocks at the dump that the trace did not make, what the trace freed later without having made it, and what it
    made until then and had not freed yet

In an out-of-memory file the moment is that event: its observer runs before anything is unwound, so the blocks of the dump are alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from .snapshot import ACTIVE, ALLOC, FREE, OOM, Event, Frames, Snapshot

START = -1
"""The moment before the first event."""


class Alive(NamedTuple):
    """A tensor that is alive at a moment: its bytes as asked for, who made it, and its event (START: before the trace)."""

    nbytes: int
    frames: Frames
    made: int


class Replay:
    """A trace from its beginning to the dump."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.events = snapshot, snapshot.events
        self.freed: dict[int, int] = {}
        """When what an event made was freed, by number of event."""
        self.unmatched: list[int] = []
        """Frees of what the trace did not make."""
        self.left: dict[int, int] = {}
        """The last event that made what is at an address, and is there at the dump."""
        change = peak = least = 0
        self.peak_at = START
        for at, event in enumerate(self.events):
            if event.action == ALLOC:
                self.left[event.address] = at
                change += event.size
                if change > peak:
                    peak, self.peak_at = change, at
            elif event.action == FREE:
                made = self.left.pop(event.address, None)
                if made is None:
                    self.unmatched.append(at)
                else:
                    self.freed[made] = at
                change -= event.size
                least = min(least, change)
        self.start = snapshot.requested - change if snapshot.segments else -least
        """Bytes that were alive before the first event; without the segments of the dump as many at least."""
        self.peak = self.start + peak
        """The most bytes that were alive at once."""

    @cached_property
    def oom(self) -> Event | None:
        """The last time that memory was not enough."""
        return next((event for event in reversed(self.events) if event.action == OOM), None)

    def alive(self, moment: int) -> Iterator[Alive]:
        """The tensors that were alive behind an event."""
        for segment in self.snapshot.segments:
            for block in segment.blocks:
                if block.state == ACTIVE and block.address not in self.left:
                    yield Alive(block.requested, block.frames, START)
        for at in self.unmatched:
            if at > moment:
                yield Alive(self.events[at].size, self.events[at].frames, START)
        for at, event in enumerate(self.events[: moment + 1]):
            if event.action == ALLOC and self.freed.get(at, len(self.events)) > moment:
                yield Alive(event.size, event.frames, at)
