"""The schedule of a step as a trace that Perfetto and Chrome open: a process for each stage, with a counter of its memory.

Source of the format: the Trace Event Format of Chromium (`X` complete events, `C` counters, `M` metadata; microseconds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..throughput.step import Estimated
from .axis import seconds_of
from .moments import NONE, Moment
from .passes import Shape, shapes_of
from .timeline import Timeline, timelines

COUNTER = "allocated bytes"


def schedule_trace(estimate: Estimated) -> dict[str, Any]:
    """The trace of all stages of an estimate. What a timeline leaves out of a long step is a hole in it."""
    lanes = zip(timelines(estimate), estimate.stages, strict=True)
    found = [event for one, stage in lanes for event in _stage(one, shapes_of(stage.rank.plans))]
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _stage(step: Timeline, shapes: Mapping[tuple[str, int], Shape]) -> Iterator[dict[str, Any]]:
    stage = {"pid": step.pp_rank, "tid": 0}
    yield {"ph": "M", "name": "process_name", "args": {"name": f"stage {step.pp_rank}"}, **stage}
    yield {"ph": "M", "name": "process_sort_index", "args": {"sort_index": step.pp_rank}, **stage}
    for moment in step.moments:
        start, end = seconds_of(moment)
        if end > start:
            found = {
                "in_flight": moment.in_flight,
                "highest_bytes": moment.highest_bytes,
                "highest_event": moment.label,
            }
            span = {"ts": 1e6 * start, "dur": 1e6 * (end - start)}
            yield {"ph": "X", "name": _name(moment), "cat": moment.event, **span, "args": found, **stage}
        for at, nbytes in ((start, moment.start_bytes), *_inside(moment, shapes), (end, moment.end_bytes)):
            yield {"ph": "C", "name": COUNTER, "ts": 1e6 * at, "args": {"bytes": nbytes}, **stage}


def _inside(moment: Moment, shapes: Mapping[tuple[str, int], Shape]) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of the points of a moment: of each layer of a pass, and of anything else the highest, in the middle."""
    start, end = seconds_of(moment)
    shape = shapes.get((moment.event, moment.chunk)) if moment.beside == NONE else None
    points = zip(shape.at, shape.below, strict=True) if shape is not None else ((0.5, 0),)
    for at, below in points:
        yield start + (end - start) * at, moment.highest_bytes - below


def _name(moment: Moment) -> str:
    if moment.microbatch == NONE:
        return moment.event
    chunk = f" chunk {moment.chunk}" if moment.chunk else ""
    beside = f" beside backward of {moment.beside_microbatch}" if moment.beside != NONE else ""
    word = "forward" if beside else moment.event
    return f"{word} of microbatch {moment.microbatch}{chunk}{beside}"
