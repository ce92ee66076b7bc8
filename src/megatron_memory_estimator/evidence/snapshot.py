"""A memory snapshot of torch: the segments of the caching allocator at the dump, and what it did before that.

Sizes of events are bytes as they were asked for, sizes of blocks are rounded; `memory_allocated` is the rounded one, and falls when a
free is asked for, not when it is done. A free has the frames of its allocation, so what was made before the trace began is named when it
goes. Source: torch `cuda/memory.py`, `cuda/_memory_viz.py`, `c10/cuda/CUDACachingAllocator.h` of 2.3 to 2.14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from ..errors import ConfigError
from ..wording import shown
from .reading import values_of

ALLOC, FREE, OOM = "alloc", "free_requested", "oom"
ACTIONS = frozenset(
    (ALLOC, FREE, OOM, "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "annotate")
)  # fmt: skip
ACTIVE = "active_allocated"
PENDING = ("active_pending_free", "active_awaiting_free")
LARGEST = 2**63
DEFAULT_POOL = (0, 0)
Frames = Sequence[Mapping[str, Any]]
Pool = tuple[int, int]


class Block(NamedTuple):
    """A piece of a segment: its bytes, those that were asked for, and who asked for them."""

    address: int
    size: int
    requested: int
    state: str
    frames: Frames

    @property
    def held(self) -> bool:
        """Whether something is in it, or waits for other streams."""
        return self.state in (ACTIVE, *PENDING)


class Segment(NamedTuple):
    """Memory that torch has of the driver. `private`: of a CUDA graph, or of another pool of its own."""

    device: int
    address: int
    size: int
    stream: int
    kind: str
    pool: Pool
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def private(self) -> bool:
        """Whether it serves one pool alone."""
        return self.pool != DEFAULT_POOL


class Event(NamedTuple):
    """Something that the allocator did: bytes that were asked for, where, when (microseconds) and by whom; of an OOM, what was free."""

    action: str
    address: int
    size: int
    time: int
    frames: Frames
    free: int = 0


class Snapshot(NamedTuple):
    """What a file says of one device."""

    device: int
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    marks: tuple[tuple[str, str, int], ...]
    """Names that were annotated, START or END, and when."""
    devices: int
    """Devices that the file has segments of."""
    notes: tuple[str, ...]
    """What was passed over."""

    def total(self, *states: str) -> int:
        """Bytes of the blocks in some states."""
        return sum(block.size for segment in self.segments for block in segment.blocks if block.state in states)

    @property
    def reserved(self) -> int:
        """Bytes that torch had of the driver."""
        return sum(segment.size for segment in self.segments)

    @property
    def allocated(self) -> int:
        """Bytes of tensors, as rounded."""
        return self.total(ACTIVE)

    @property
    def pending(self) -> int:
        """Bytes that wait for other streams before they are free."""
        return self.total(*PENDING)

    @property
    def requested(self) -> int:
        """Bytes of tensors, as asked for."""
        return sum(block.requested for segment in self.segments for block in segment.blocks if block.state == ACTIVE)

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest block that nothing is in."""
        return max((block.size for segment in self.segments for block in segment.blocks if not block.held), default=0)


def snapshot_of(path: str, device: int | None = None) -> Snapshot:
    """The same of a file by its path. Raises ConfigError for one that cannot be read, too."""
    try:
        with open(path, "rb") as file:
            return read_snapshot(file.read(), device)
    except OSError as error:
        raise ConfigError(f"{shown(path)} cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{shown(path)}: {error}") from None


def read_snapshot(data: bytes, device: int | None = None) -> Snapshot:
    """What a file says of a device: of the one with the longest trace where none is named. Raises ConfigError for what is no snapshot."""
    top = values_of(data)
    if isinstance(top, list):
        top = {"segments": top}
    if not isinstance(top, dict) or not isinstance(top.get("segments"), list):
        raise ConfigError("it is no memory snapshot: it has no list of segments")
    notes: list[str] = []
    segments = tuple(map(_segment, top["segments"]))
    traces = _lists(top.get("device_traces") or [], "device_traces")
    lengths = [len(_lists(trace, "a trace")) for trace in traces]
    known = sorted({segment.device for segment in segments} | {at for at, length in enumerate(lengths) if length})
    if device is None:
        device = max(known, key=lambda at: (lengths[at] if at < len(lengths) else 0, -at), default=0)
    elif device not in known:
        raise ConfigError(f"device {device} is not in it: it has {', '.join(map(str, known)) or 'none'}")
    events = tuple(_events(traces[device] if device < len(traces) else [], notes))
    marks = tuple(_marks(top.get("external_annotations") or [], device))
    mine = tuple(segment for segment in segments if segment.device == device)
    return Snapshot(device, mine, events, marks, len({segment.device for segment in segments}), tuple(notes))


def _lists(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"it is no memory snapshot: {name} is no list")
    return value


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < LARGEST


def _number(of: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = of.get(name, default)
    if not _is_size(value):
        raise ConfigError(f"it is no memory snapshot: a {name} is {_short(value)}")
    return value


def _short(value: Any) -> str:
    """What a value is, without writing it out: it may be a list of itself, or a number of a million digits."""
    if type(value) is int:
        return "negative" if value < 0 else f"above {LARGEST:,}"
    return "missing" if value is None else f"a {type(value).__name__}"


def _segment(value: Any) -> Segment:
    if not isinstance(value, dict):
        raise ConfigError(f"it is no memory snapshot: a segment is a {type(value).__name__}")
    address = _number(value, "address", 0)
    blocks = []
    at = address
    for block in _lists(value.get("blocks", []), "blocks"):
        if not isinstance(block, dict):
            raise ConfigError(f"it is no memory snapshot: a block is a {type(block).__name__}")
        size = _number(block, "size")
        blocks.append(
            Block(
                _number(block, "address", at),
                size,
                _number(block, "requested_size", size),
                str(block.get("state", ""))[:40],
                _frames(block),
            )
        )
        at += size
    pool = value.get("segment_pool_id")
    return Segment(
        _number(value, "device", 0), address, _number(value, "total_size"), _number(value, "stream", 0),
        "small" if value.get("segment_type") == "small" else "large",
        (pool[0], pool[1]) if isinstance(pool, tuple | list) and len(pool) == 2 and all(map(_is_size, pool)) else DEFAULT_POOL,
        value.get("is_expandable") is True, tuple(blocks),
    )  # fmt: skip


def _frames(value: Mapping[str, Any]) -> Frames:
    """Who asked for it, the innermost first; before torch 2.1 in a history of the block."""
    frames = value.get("frames")
    if (
        frames is None
        and isinstance(history := value.get("history"), list)
        and history
        and isinstance(history[0], dict)
    ):
        frames = history[0].get("frames")
    return frames if isinstance(frames, list) else ()


def _events(trace: list[Any], notes: list[str]) -> Iterator[Event]:
    unknown: dict[str, int] = {}
    for value in trace:
        if not isinstance(value, dict) or not isinstance(action := value.get("action"), str):
            raise ConfigError("it is no memory snapshot: an event of a trace has no action")
        if action not in ACTIONS:
            unknown[action] = unknown.get(action, 0) + 1
            continue
        size, address, time = value.get("size", 0), value.get("addr", 0), value.get("time_us", 0)
        if not (_is_size(size) and _is_size(time) and (action == OOM or _is_size(address))):
            raise ConfigError(
                f"it is no memory snapshot: the size, place or time of an event ({action[:40]}) is no number"
            )
        frames = value.get("frames")
        free = value.get("device_free", address) if action == OOM else 0
        yield Event(
            action,
            address if _is_size(address) else 0,
            size,
            time,
            frames if isinstance(frames, list) else (),
            free if _is_size(free) else 0,
        )
    notes += [f"{count} events {action[:40]!r} of a later release are passed over" for action, count in unknown.items()]


def _marks(values: Any, device: int) -> Iterator[tuple[str, str, int]]:
    for one in _lists(values, "external_annotations"):
        if isinstance(one, dict) and one.get("device", device) == device and _is_size(time := one.get("time_us")):
            name, stage = one.get("name"), one.get("stage")
            if isinstance(name, str) and isinstance(stage, str):
                yield name, stage, time
