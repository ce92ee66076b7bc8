"""An account of a snapshot: what was alive at a moment, who made it, what torch held and could not give, and why memory ran out.

What was alive when: the bytes before a trace, its peak, and the tensors of a moment.

    at the start = at the dump - what was asked for in the trace + what was freed in it
    alive at a moment = blocks at the dump that the trace did not make, what the trace freed later without having made it, and what it
    made until then and had not freed yet

In an out-of-memory file the moment is that event: its observer runs before anything is unwound, so the blocks of the dump are alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal, NamedTuple

from ..dataclass import dataclass
from ..device.allocator import MIN_BLOCK
from ..tape.tensor import round_up
from .naming import Names, Site
from .snapshot import ACTIVE, ALLOC, DEFAULT_POOL, FREE, OOM, Event, Frames, Pool, Segment, Snapshot

# -- what was alive when -----------------------------------------------------------------------------------------------

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


Moment = Literal["peak", "oom", "end"]
BUFFERS, PARAMETERS = "param buffer or grad buffer of DDP", "param buffer of DDP"
STEP = "Optimizer.step#"
"""What begins the name of an annotation around an optimizer step (torch 2.5 and later)."""


class Group(NamedTuple):
    """Tensors that one line asked for: how many, their bytes, the largest of them, and the bytes of each."""

    site: Site
    blocks: int
    nbytes: int
    largest: int
    sizes: tuple[int, ...] = ()


class PoolUse(NamedTuple):
    """Segments that serve each other: of a pool, a stream, and a kind of size."""

    pool: Pool
    stream: int
    kind: str
    reserved: int
    allocated: int
    hole: int
    """The largest block that nothing is in."""

    @property
    def private(self) -> bool:
        """Whether it is of a CUDA graph or another pool of its own."""
        return self.pool != DEFAULT_POOL

    @property
    def unused(self) -> int:
        """Bytes that torch holds and nothing is in."""
        return self.reserved - self.allocated


class Step(NamedTuple):
    """A step between two optimizer steps: its most bytes, and those behind it."""

    peak: int
    end: int


class OutOfMemory(NamedTuple):
    """A request that was not served: what was asked for, what was free on the device, and inside torch."""

    asked: int
    free: int
    unused: int
    hole: int
    """The largest block of the shared pools that nothing is in."""
    private: int
    """Bytes that nothing is in, of private pools: they serve no other request."""

    @property
    def missing(self) -> int:
        """Bytes that are missing even without any fragmentation; 0 where all that is free together would do."""
        return max(self.asked - self.free - self.unused, 0)

    @property
    def fragmented(self) -> bool:
        """Whether what is free together would serve it, and no part of it does."""
        return not self.missing and self.asked > max(self.free, self.hole)


@dataclass(frozen=True)
class Account:
    """What a snapshot says."""

    snapshot: Snapshot
    replay: Replay
    moment: Moment
    nbytes: int
    """Bytes that were alive at the moment, as asked for."""
    groups: tuple[Group, ...]
    """Who made them, most bytes first."""
    pools: tuple[PoolUse, ...]
    steps: tuple[Step, ...]
    grown: tuple[Group, ...]
    """What the last step kept more than the one before it, most bytes first."""
    piled: tuple[Group, ...]
    """What pass after pass of the model leaves behind, most bytes first."""
    in_the_way: tuple[Group, ...]
    """Tensors in segments that are half empty, most bytes first."""
    oom: OutOfMemory | None

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part, most first."""
        found: dict[str, int] = {}
        for group in self.groups:
            found[group.site.part] = found.get(group.site.part, 0) + group.nbytes
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    @property
    def allocated(self) -> int:
        """Bytes that were alive at the moment, as torch rounds and counts them."""
        return sum(round_up(size, MIN_BLOCK) for group in self.groups for size in group.sizes)

    @property
    def named(self) -> float:
        """The share of the bytes whose tensors are known."""
        known = sum(group.nbytes for group in self.groups if group.site.part not in ("unknown", "not ours"))
        return known / self.nbytes if self.nbytes else 1.0

    @property
    def whole(self) -> bool:
        """Whether the trace begins with nothing alive, so that its peak is the run's."""
        return self.replay.start == 0 and bool(self.snapshot.events)


def account(snapshot: Snapshot, moment: Moment | None = None) -> Account:
    """What a snapshot says of a moment: without one, of its last OOM, or of the peak of its trace."""
    replay, names = Replay(snapshot), Names()
    last = len(snapshot.events) - 1
    moment = moment or ("oom" if replay.oom is not None else "peak" if snapshot.events else "end")
    alive = list(replay.alive(replay.peak_at if moment == "peak" else last))
    pools = tuple(_pools(snapshot))
    private = sum(one.unused for one in pools if one.private)
    shared = [one for one in pools if not one.private]
    oom = None
    if replay.oom is not None:
        unused, hole = sum(one.unused for one in shared), max((one.hole for one in shared), default=0)
        oom = OutOfMemory(replay.oom.size, replay.oom.free, unused, hole, private)
    steps, ends = _steps(replay)
    grown = _grown(replay, names, ends[-2], ends[-1]) if len(ends) > 1 else ()
    groups = tuple(_told_apart(_groups(alive, names)))
    in_the_way = tuple(_in_the_way(snapshot, names))
    nbytes = sum(one.nbytes for one in alive)
    piled = tuple(_piled(replay, names))
    return Account(snapshot, replay, moment, nbytes, groups, pools, steps, grown, piled, in_the_way, oom)


def _groups(alive: Iterable[Alive], names: Names) -> list[Group]:
    found: dict[Site, list[int]] = {}
    for one in alive:
        found.setdefault(names.of(one.frames), []).append(one.nbytes)
    groups = [Group(site, len(sizes), sum(sizes), max(sizes), tuple(sizes)) for site, sizes in found.items()]
    return sorted(groups, key=lambda group: (-group.nbytes, group.site))


def _told_apart(groups: list[Group]) -> Iterator[Group]:
    """Parameters and gradients of DDP, which one function allocates: parameters on the line above (`param_and_grad_buffer.py`)."""
    lines = sorted(group.site.line for group in groups if group.site.tensor == BUFFERS)
    for group in groups:
        if group.site.tensor == BUFFERS and len(lines) == 2:
            weights = group.site.line == lines[0]
            part, tensor = ("weights", PARAMETERS) if weights else ("gradients", "grad buffer of DDP")
            group = group._replace(site=group.site._replace(part=part, tensor=tensor))
        yield group


def _pools(snapshot: Snapshot) -> Iterator[PoolUse]:
    found: dict[tuple[Pool, int, str], list[Segment]] = {}
    for segment in snapshot.segments:
        found.setdefault((segment.pool, segment.stream, segment.kind), []).append(segment)
    for (pool, stream, kind), segments in sorted(found.items()):
        blocks = [block for segment in segments for block in segment.blocks]
        used = [block.size for block in blocks if block.held]
        hole = max((block.size for block in blocks if not block.held), default=0)
        yield PoolUse(pool, stream, kind, sum(segment.size for segment in segments), sum(used), hole)


def _in_the_way(snapshot: Snapshot, names: Names) -> list[Group]:
    """Tensors at the dump in segments that are half empty: what keeps the rest from the driver, and from larger requests."""
    alive = []
    for segment in snapshot.segments:
        held = [block for block in segment.blocks if block.held]
        if held and 2 * sum(block.size for block in held) <= segment.size and not segment.private:
            alive += [Alive(block.requested, block.frames, START) for block in held]
    return _groups(alive, names)


def _steps(replay: Replay) -> tuple[tuple[Step, ...], list[int]]:
    """Steps of a trace, each to the end of its optimizer step, and the last event of each."""
    ends = [time for name, stage, time in replay.snapshot.marks if name.startswith(STEP) and stage == "END"]
    steps: list[Step] = []
    places: list[int] = []
    now = peak = replay.start
    at = 0
    for end in ends:
        while at < len(replay.events) and replay.events[at].time <= end:
            event = replay.events[at]
            now += event.size if event.action == ALLOC else -event.size if event.action == FREE else 0
            peak = max(peak, now)
            at += 1
        if at and (not places or at - 1 > places[-1]):
            steps.append(Step(peak, now))
            places.append(at - 1)
            peak = now
    return tuple(steps), places


def _grown(replay: Replay, names: Names, before: int, behind: int) -> tuple[Group, ...]:
    """What was made between two moments and is alive at the later one, where that is more than what went."""
    then = {group.site: group for group in _groups(replay.alive(before), names)}
    found = []
    for group in _groups(replay.alive(behind), names):
        old = then.get(group.site)
        more = group.nbytes - (old.nbytes if old else 0)
        if more > 0:
            found.append(Group(group.site, group.blocks - (old.blocks if old else 0), more, group.largest))
    return tuple(sorted(found, key=lambda group: -group.nbytes))


FEWEST_PASSES = 4
"""Passes from which something that each leaves behind is no accident."""
LEFT_OPEN = 0.05
"""Share of a pass's bytes that may be alive at the dump, beside what piles up, where the pass is over."""


def _passes(replay: Replay) -> list[int]:
    """Where passes of the model begin: where the largest tensor is made that one line makes again and again and that goes each time."""
    made: dict[tuple[int, int], list[int]] = {}
    for at, event in enumerate(replay.events):
        if event.action == ALLOC:
            made.setdefault((id(event.frames), event.size), []).append(at)
    again = ((size, times) for (_, size), times in made.items() if len(times) > FEWEST_PASSES)
    return max((one for one in again if all(at in replay.freed for at in one[1][:-1])), default=(0, []))[1]


def _piled(replay: Replay, names: Names) -> Iterator[Group]:
    """Tensors of a line and a size of which passes that are over have left one behind, again and again: a list that keeps what it should
    not. Steps are not asked for: a trace without their marks, or of one step, shows it too."""
    begins = _passes(replay)
    sums = [0] * len(begins)
    left: dict[tuple[Site, int], list[tuple[int, int]]] = {}
    place = -1
    for at, event in enumerate(replay.events):
        while place + 1 < len(begins) and at >= begins[place + 1]:
            place += 1
        if place < 0 or event.action != ALLOC:
            continue
        sums[place] += event.size
        if at not in replay.freed:
            left.setdefault((names.of(event.frames), event.size), []).append((place, event.size))
    open_bytes = [0] * len(begins)
    for found in left.values():
        for one, size in found:
            open_bytes[one] += size
    groups = []
    for (site, size), found in left.items():
        own = {one: size * count for one, count in Counter(one for one, _ in found).items()}
        over = [one for one in own if open_bytes[one] - own[one] <= LEFT_OPEN * sums[one]]
        if len(over) >= FEWEST_PASSES and len(own) > (max(own) - min(own)) // 2:
            groups.append(Group(site, len(found), size * len(found), size, (size,) * len(found)))
    yield from sorted(groups, key=lambda group: (-group.nbytes, group.site))


def lines(found: Account, top: int) -> tuple[tuple[Group, ...], Group | None]:
    """The groups with most bytes, and all others as one."""
    shown, rest = found.groups[:top], found.groups[top:]
    if not rest:
        return shown, None
    site = Site("", f"{len(rest)} others", "", 0, "")
    return shown, Group(
        site, sum(one.blocks for one in rest), sum(one.nbytes for one in rest), max(one.largest for one in rest)
    )
