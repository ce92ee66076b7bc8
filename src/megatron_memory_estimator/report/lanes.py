"""The timelines of all stages as one document, in columns: a tenth of the length of a record for each moment.

The document of a moment: every tensor that is alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedError
from ..estimator import Estimate, Stage
from ..timeline.moments import CAPTURE, NONE, alive
from ..timeline.passes import MOST_PASSES, Shape, listing, shapes_of
from ..timeline.timeline import Timeline, record, timelines
from .document import TENSOR
from .quantities import document
from .speed import SPEED, speed

SCHEMA = "megatron-memory-lanes/1"
MOST_MOMENTS = 8_000
"""Moments of all stages: of longer steps the middle is left out."""
TOO_MANY = 100_000
"""Moments that are refused: a schedule of many stages and chunks needs so many until it repeats itself."""
COLUMNS = (
    "start_s", "end_s", "start_bytes", "highest_bytes", "end_bytes", "chunk", "microbatch", "beside_chunk", "beside_microbatch",
    "in_flight",
)  # fmt: skip
"""Columns that are those of a timeline's records."""


def lanes_document(estimate: Estimate) -> dict[str, Any]:
    """Schema `megatron-memory-lanes/1`, described in docs/reference/json.md. Raises UnsupportedError for more than TOO_MANY moments."""
    steps = timelines(estimate, _most_passes(estimate))
    events: dict[str, int] = {}
    labels: dict[str, int] = {}
    stages = [
        _stage(one, events, labels, shapes_of(stage.rank.plans))
        for one, stage in zip(steps, estimate.stages, strict=True)
    ]
    return {
        "schema": SCHEMA,
        "gpu": estimate.job.gpu.name,
        "gpu_memory_bytes": estimate.job.gpu.memory_bytes,
        "step_s": steps[0].step_s,
        "speed": document(SPEED, speed(estimate)),
        "timeline_s": steps[0].moments[-1].end_s,
        "events": list(events),
        "labels": list(labels),
        "stages": stages,
    }


def _most_passes(estimate: Estimate) -> int:
    """How many passes of a stage are listed."""
    stages, c = len(estimate.stages), estimate.declarer.context
    most = min(MOST_PASSES, max(MOST_MOMENTS // stages, 1))
    plan = listing(c, len(estimate.stages[0].rank.plans), estimate.job.num_microbatches, most)
    passes = plan.span(plan.listed)
    if passes * stages > TOO_MANY:
        raise UnsupportedError(
            f"lanes of {stages} stages with {passes:,} forwards and backwards each are more than {TOO_MANY:,}; look at the timeline of "
            "one stage"
        )
    return most


def _stage(
    step: Timeline, events: dict[str, int], labels: dict[str, int], shapes: Mapping[tuple[str, int], Shape]
) -> dict[str, Any]:
    """The lane of a stage; words that are new are added to `events` and `labels`, which number them.

    A pass has the number of its shape; of a forward beside a backward it is not known which of their ops meet.
    """
    places = [CAPTURE] if step.capture else []
    places += [step.index(place) for place in range(len(step.moments))]
    records = [record(None, moment) for moment in step.every]
    columns: dict[str, list[Any]] = {"index": places}
    columns["event"] = [events.setdefault(one["event"], len(events)) for one in records]
    columns.update({name: [one[name] for one in records] for name in COLUMNS})
    numbers = {key: number for number, key in enumerate(shapes)}
    columns["shape"] = [
        None if moment.beside != NONE else numbers.get((moment.event, moment.chunk)) for moment in step.every
    ]
    columns["label"] = [labels.setdefault(one["highest_event"], len(labels)) for one in records]
    return {
        "pp_rank": step.pp_rank,
        "steady_allocated_bytes": step.steady_allocated_bytes,
        "peak_allocated_bytes": step.peak.highest_bytes,
        "peak_moment": places[step.every.index(step.peak)],
        "left_out": step.left_out._asdict() if step.left_out else None,
        "shapes": [{"at": list(one.at), "below_bytes": list(one.below)} for one in shapes.values()],
        "columns": columns,
    }


MOMENT = "megatron-memory-moment/1"


def moment_document(stage: Stage, index: int) -> dict[str, Any]:
    """Schema `megatron-memory-moment/1`: the tensors at the highest of a moment of a step, which add up to its `highest_bytes`.

    Raises ConfigError for a moment that does not exist.
    """
    found = alive(stage.rank, index)
    return {
        "schema": MOMENT,
        "pp_rank": stage.pp_rank,
        "moment": index,
        "event": found.moment.label,
        "allocated_bytes": found.moment.highest_bytes,
        "tensors": [document(TENSOR, row) for row in found.rows],
    }
