"""The allocations of a step as a snapshot of PyTorch's caching allocator, for its memory visualizer.

Source of the format: PyTorch `torch/cuda/_memory_viz.py` and `torch/cuda/memory.py` (_snapshot: TraceEntry, Frame).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

from ..rank.rank import Rank, Row
from ..throughput.step import Estimated
from .allocations import Instant, Key, events_of, instants
from .moments import Moment
from .passes import MOST_PASSES, listed_passes
from .timeline import timeline

MOST_EVENTS = 100_000
"""Events of a snapshot; of a longer step the middle is left out, as in the timeline. Each is about two allocations."""
PROTOCOL = 4
ALIGNED = 512
"""Addresses begin at multiples of it, as those of PyTorch's blocks do."""


def snapshot(estimate: Estimated, rank: Rank) -> dict[str, Any]:
    """A step of a rank: each tensor is an allocation whose first frame has its name, the second why it is alive, the third what ran.

    Sizes are the bytes of the tensors; no address is used twice. Raises UnsupportedError as `instants` does.
    """
    most = min(MOST_PASSES, MOST_EVENTS // max(events_of(rank), 1))
    own = listed_passes(estimate.declarer.context, rank, most)[1]
    moments = timeline(estimate, rank, most).moments
    return {"segments": [], "device_traces": [list(_entries(instants(rank, own), moments))], "allocator_settings": {}}


def pickled(found: dict[str, Any]) -> bytes:
    """The file that the visualizer opens."""
    return pickle.dumps(found, PROTOCOL)


def _entries(instants: Iterable[Instant], moments: tuple[Moment, ...]) -> Iterator[dict[str, Any]]:
    known: dict[Key, tuple[int, Row, list[dict[str, Any]]]] = {}
    address = ALIGNED
    for instant in instants:
        at = microseconds(instant, moments)
        for key in instant.freed:
            start, row, frames = known.pop(key)
            if row.nbytes:
                for action in ("free_requested", "free_completed"):
                    yield _entry(action, start, row.nbytes, frames, at)
        for key, row in instant.made:
            frames = _frames(row, instant.label)
            known[key] = address, row, frames
            if row.nbytes:
                yield _entry("alloc", address, row.nbytes, frames, at)
                address += -(-row.nbytes // ALIGNED) * ALIGNED


def _entry(action: str, address: int, size: int, frames: list[dict[str, Any]], at: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": at, "frames": frames}


def _frames(row: Row, label: str) -> list[dict[str, Any]]:
    shape = "x".join(map(str, row.local_shape)) or "sized by the library"
    words = (row.name, f"{shape} {row.dtype}"), (row.why, row.part), (label, "runs")
    return [{"name": name, "filename": where, "line": 0} for name, where in words]


def microseconds(instant: Instant, moments: tuple[Moment, ...]) -> int:
    """When an event is: those of a pass share its time evenly."""
    moment = moments[instant.moment]
    assert moment.start_s is not None and moment.end_s is not None
    done, total = instant.place
    return round(1e6 * (moment.start_s + (moment.end_s - moment.start_s) * done / max(total, 1)))
