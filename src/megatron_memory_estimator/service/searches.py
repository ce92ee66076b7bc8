"""The best legal layouts of a run that fit.

How far a search is, as JSON objects, some ten times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigError
from ..inputs.searched import AXES, FIXED
from ..inputs.setting_names import canonical, full_name
from ..job.training_job import TrainingJob
from ..planner.space.axes import axis_name
from .jobs import job_of
from .request import MOST_PLANS, Progress, Request, following

if TYPE_CHECKING:
    from ..planner.found import Found
    from ..report.plans import Row


def plans(request: Request) -> Any:
    """The plans as a document, or their summary."""
    from ..report.plans import found_document
    from ..report.summary import plan_summary

    full = request.full
    one = planned(request)
    if full:
        document = found_document(one.found, one.rows, one.said)
        return {**document, "plans": [{**plan, **following(request, plan["settings"])} for plan in document["plans"]]}
    return plan_summary(one.found, one.rows, one.said)


class Answered(NamedTuple):
    """A search, what it found, its plans with their estimates, and what was decided for it."""

    search: Search
    found: Found
    rows: list[Row]
    said: list[str]


def planned(request: Request) -> Answered:
    """The search of a request, done."""
    from ..planner.planning import plan
    from ..report.plans import rows_of

    search = search_of(request)
    fewest, said = bool(request.get("fewest_gpus")), list[str]()
    if not fewest and "num_gpus" not in search.axes:
        if search.job.layout.world_size == 1:
            raise ConfigError("num_gpus is needed, or fewest_gpus=true to find how many GPUs hold the model")
        said = [*said, f"num_gpus as the run has it: {search.job.layout.world_size}"]
    found, notes = plan(
        search.job,
        search.axes,
        global_batch_size=search.global_batch_size,
        objective=request.get("objective") or "throughput",
        top=min(max(int(request.get("top", 5)), 1), MOST_PLANS),
        fewest_gpus=fewest,
        progress=told(request.progress) if request.progress else None,
        stop=request.late,
    )
    return Answered(search, found, rows_of(found), [*said, *notes])


class Search(NamedTuple):
    """The job that is planned anew, the axes of its search, and the global batch where it is given."""

    job: TrainingJob
    axes: dict[str, str]
    global_batch_size: int | None


def search_of(request: Request) -> Search:
    """What a request of `plan` searches.

    Settings that are axes say which of their values are tried, as on the command line.
    """
    given = canonical(request.get("settings") or {}, full_name)
    for name in given:
        if name in FIXED:
            raise ConfigError(f"{name} is decided by the search; the axis split says which splits are tried")
    batch = given.pop("global_batch_size", None)
    axes = {axis_name(name): str(value) for name, value in (request.get("axes") or {}).items()}
    if request.get("num_gpus") is not None:
        axes.setdefault("num_gpus", str(request.get("num_gpus")))
    for name in [name for name in given if name in AXES]:
        value = given.pop(name)
        words = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if value is not None and axes.setdefault(axis_name(name), words) != words:
            raise ConfigError(f"{name} is given twice, as an axis and as a setting, with different values; give one")
    return Search(job_of(request.get("model"), request.get("text"), None, given, request.opened), axes, batch)


EVERY_S = 0.1
"""Seconds between two of them."""


def told(progress: Progress) -> Callable[[float, Found], None]:
    """What tells `progress` the share that is done, and the counts and the best layout so far."""
    last = -inf

    def tell(share: float, found: Found) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_S or share >= 1:
            last = now
            progress(so_far(share, found))

    return tell


def so_far(share: float, found: Found) -> dict[str, Any]:
    """The share of the legal layouts that are looked at, how many there are, how many were evaluated, the best so far (null: none yet)."""
    return {"share": min(share, 1.0), "legal": found.legal, "evaluated": found.evaluated, "best": best(found)}


def best(found: Found) -> dict[str, Any] | None:
    """The layout that would be first now."""
    from ..report.plan_words import layout_text

    if not found.plans:
        return None
    plan = found.plans[0]
    return {
        "num_gpus": plan.job.layout.world_size,
        "layout": layout_text(plan),
        "step_s": plan.step,
        "tokens_per_s_gpu": plan.tokens_per_s_gpu,
        "peak_allocated_bytes": plan.peak_allocated_bytes,
    }
