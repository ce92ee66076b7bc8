"""The allocations of a step as a snapshot of PyTorch's caching allocator, for its memory visualizer.

Source of the format: PyTorch `torch/cuda/_memory_viz.py` and `torch/cuda/memory.py` (_snapshot: TraceEntry, Frame).

Every allocation of a rank along one training step: which tensors come and go at each event of each forward and backward.

The events are those that `rank/peak.py` takes the maximum of; what is alive at one is what `explain` lists of it, so that the bytes
alive are the estimate's at every event.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..device.allocator import MIN_BLOCK
from ..errors import UnsupportedError
from ..rank.boundary import pipeline_tensors, resting_tensors
from ..rank.chunks import ChunkPlan, Run
from ..rank.peak import closing
from ..rank.rank import Rank, Row
from ..rank.rows import (
    beside_rows,
    boundary_rows,
    held_rows,
    input_rows,
    layer_prefix,
    left_rows,
    live_row,
    rows_at_rest,
    state_rows,
    uncut_rows,
)
from ..rank.schedule import Direction
from ..tape.events import Event, Live
from ..tape.simulate import alive_through
from ..tape.tensor import round_up
from ..throughput.step import Estimated
from .moments import Moment
from .passes import MOST_PASSES, Pass, listed_passes
from .timeline import timeline

MOST_EVENTS = 100_000
"""Events of a snapshot; of a longer step the middle is left out, as in the timeline. Each is about two allocations."""
PROTOCOL = 4


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
    address = MIN_BLOCK
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
                address += round_up(row.nbytes, MIN_BLOCK)


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


Key = Hashable
Rows = Mapping[Key, Row]
BESIDE, INPUTS, HELD, LEFT, PIPE, OUTSIDE = "beside", "inputs", "held", "left", "pipeline", "outside"
"""Groups of tensors that are replaced as a whole, beside those of each unit of each microbatch."""
WORDS: dict[Direction, str] = {"F": "forward", "B": "backward"}


class Instant(NamedTuple):
    """An event of the step: what runs, which moment of the timeline it is in, its place among that one's events, and what changes.

    Tensors are freed first; `nbytes` is what is alive then.
    """

    label: str
    moment: int
    place: tuple[int, int]
    freed: tuple[Key, ...]
    made: tuple[tuple[Key, Row], ...]
    nbytes: int


class Ledger:
    """What is alive, by group; a change of groups becomes an instant."""

    def __init__(self) -> None:
        self.groups: dict[Key, Rows] = {}
        self.nbytes = 0

    def change(self, label: str, moment: int, groups: Mapping[Key, Rows], place: tuple[int, int] = (0, 1)) -> Instant:
        """Replace groups; a tensor that stays has the same key before and after, in whatever group."""
        before: dict[Key, Row] = {}
        after: dict[Key, Row] = {}
        for name, rows in groups.items():
            before.update(self.groups.get(name, {}))
            after.update(rows)
            self.groups[name] = rows
        freed = tuple(key for key in before if key not in after)
        made = tuple((key, row) for key, row in after.items() if key not in before)
        self.nbytes += sum(row.nbytes for _, row in made) - sum(before[key].nbytes for key in freed)
        return Instant(label, moment, place, freed, made, self.nbytes)


def instants(rank: Rank, passes: Sequence[Pass]) -> Iterator[Instant]:
    """The events of a step whose forwards and backwards are these, from what rests before it to what rests behind it.

    Raises UnsupportedError where a forward runs beside a backward: which of their ops meet is not known.
    """
    if any(one.step.beside >= 0 for one in passes):
        raise UnsupportedError(
            "a trace of allocations with overlap_moe_expert_parallel_comm is not modelled: which ops of the forward and the backward "
            "meet on their streams is not known; turn it off"
        )
    ledger = Ledger()
    rest = keyed(OUTSIDE, rows_at_rest(rank))
    yield ledger.change("between two steps", 0, {OUTSIDE: rest})
    state = keyed(OUTSIDE, state_rows(rank, ("setup", "first step")))
    units: dict[int, Played] = {}
    edges: dict[Direction, Rows] = {
        way: keyed(PIPE, boundary_rows(pipeline_tensors(rank, way), "boundary of the pipeline stage")) for way in WORDS
    }
    resting = keyed(PIPE, boundary_rows(resting_tensors(rank), "kept between steps"))
    yield ledger.change("the first forward is next", 0, {OUTSIDE: state, PIPE: edges["F"]}, (1, 1))
    following = [edges[one.step.direction] for one in passes[1:]]
    for moment, (one, after) in enumerate(zip(passes, [*following, resting], strict=True), 1):
        way = one.step.direction
        for label, place, groups in _events(rank.plans[one.step.chunk], way, one, units):
            yield ledger.change(label, moment, groups, place)
        ended = f"end of the {WORDS[way]} of microbatch {one.microbatch}"
        yield ledger.change(ended, moment, {PIPE: after, BESIDE: {}, INPUTS: {}, LEFT: {}}, (1, 1))
    last = closing(rank)
    for moment, found in enumerate(last.values(), 1 + len(passes)):
        rows = {**state, **keyed(OUTSIDE, found.extras)}
        yield ledger.change(found.label, moment, {OUTSIDE: rows, PIPE: resting})
    yield ledger.change("between two steps", 1 + len(passes) + len(last), {OUTSIDE: rest, PIPE: {}})


class Played(NamedTuple):
    """What is alive of a unit at each of its events, and between its forward and its backward."""

    events: tuple[tuple[Live, ...], ...]
    saved: tuple[Live, ...]


def _events(
    plan: ChunkPlan, way: Direction, one: Pass, units: dict[int, Played]
) -> Iterator[tuple[str, tuple[int, int], dict[Key, Rows]]]:
    """The events of one forward or backward of a chunk: label, place among them, and the groups that change."""
    copies = [(index, copy) for index, run in enumerate(plan.runs) for copy in range(run.copies)]
    if way == "B":
        copies.reverse()
    total = sum(len(_of(way, plan.runs[index])) for index, _ in copies)
    inputs = keyed((INPUTS, one.step.chunk), input_rows(plan))
    held = (HELD, one.step.chunk, one.microbatch)
    first: dict[Key, Rows] = {held: keyed(held, held_rows(plan))} if way == "F" else {}
    if way == "F" and plan.uncut:
        whole = keyed((INPUTS, "uncut"), uncut_rows(plan))
        label = f"get_batch_on_this_cp_rank, microbatch {one.microbatch}"
        yield label, (0, total), {INPUTS: {**whole, **inputs}, **first}
    done = 0
    for index, copy in copies:
        run = plan.runs[index]
        if id(run.trace) not in units:
            units[id(run.trace)] = Played(alive_through(run.unit), run.trace.saved)
        played = units[id(run.trace)]
        group = (one.step.chunk, one.microbatch, index, copy)
        prefix = layer_prefix(run, copy)
        shift = 0 if way == "F" else len(run.trace.forward)
        beside = keyed((BESIDE, one.step.chunk, index, way), beside_rows(run, way))
        extra: dict[Key, Rows] = {BESIDE: beside, INPUTS: inputs if way == "F" else {}, **first}
        extra[LEFT] = keyed(LEFT, left_rows(plan, index, copy)) if way == "B" else {}
        for place, event in enumerate(_of(way, run)):
            rows = _rows(group, prefix, played.events[shift + place], place)
            label = f"{event.phase} of {run.place(event.op, copy)}, microbatch {one.microbatch}"
            yield label, (done + place, total), {group: rows, **extra}
            extra, first = {}, {}
        done += len(_of(way, run))
        left: dict[Key, Rows] = {group: _rows(group, prefix, played.saved, -1) if way == "F" else {}}
        if way == "B" and (index, copy) == (plan.holder, 0):
            left[held] = {}
        yield f"end of {run.place(f'the {WORDS[way]}', copy)}, microbatch {one.microbatch}", (done, total), left


def events_of(rank: Rank) -> int:
    """Events of a forward or backward of one microbatch, of the chunk that has most."""
    ways: tuple[Direction, Direction] = ("F", "B")
    return max(sum(len(_of(way, run)) * run.copies for run in plan.runs) for plan in rank.plans for way in ways)


def _of(way: Direction, run: Run) -> tuple[Event, ...]:
    return run.trace.forward if way == "F" else run.trace.backward


def _rows(group: Key, prefix: str, alive: Sequence[Live], place: int) -> dict[Key, Row]:
    """The rows of a unit's tensors; scratch is of one event alone."""
    found: dict[Key, Row] = {}
    for number, live in enumerate(alive):
        key = (group, place, number) if live.role == "scratch" else (group, live.tensor.storage)
        row = live_row(live)
        found[key] = row._replace(name=prefix + row.name)
    return found


def keyed(group: Key, rows: Iterable[Row]) -> dict[Key, Row]:
    """Rows by their part, name and place among equal ones."""
    found: dict[Key, Row] = {}
    equal: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[group, row.part, row.name, equal[row.part, row.name]] = row
        equal[row.part, row.name] += 1
    return found
