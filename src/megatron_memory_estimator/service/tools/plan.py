"""The best legal layouts of a run that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ConfigError
from ...inputs.searched import AXES, FIXED
from ...inputs.setting_names import canonical, full_name
from ...job.training_job import TrainingJob
from ...planner.space.axes import axis_name
from ..following import following
from ..jobs import job_of
from ..request import MOST_PLANS, Request
from ..telling import told

if TYPE_CHECKING:
    from ...planner.found import Found
    from ...report.plans import Row


def answer(request: Request) -> Any:
    """The plans as a document, or their summary."""
    from ...report.plans import found_document
    from ...report.summary_plans import plan_summary

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
    from ...planner.planning import plan
    from ...report.plans import rows_of

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
    return Search(job_of(request.get("model"), request.get("text"), None, given, request.files), axes, batch)
