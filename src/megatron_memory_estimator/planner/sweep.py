"""sweep(jobs): the plans of many jobs, one after the other or wherever an executor runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, as_completed
from typing import Any

from ..errors import EstimatorError
from ..job.training_job import TrainingJob
from .planning import plan

Rows = list[dict[str, Any]]


def sweep(
    jobs: Mapping[str, TrainingJob] | Iterable[TrainingJob],
    axes: Mapping[str, str] | None = None,
    *,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
    **asked: Any,
) -> Rows:
    """The rows of `plan(job, axes, **asked).table()` of every job, in the order of the jobs.

    Each row begins with the name of its job (`job`), and `error`: empty, or why there is no plan, in the only row of such a job. Jobs
    without names are numbered. Each job is one task of the `executor` (any of `concurrent.futures`, or Dask's); without one they
    are planned here. `progress` is told how many jobs are done, and of how many.
    """
    named = dict(jobs) if isinstance(jobs, Mapping) else {str(at): job for at, job in enumerate(jobs)}
    words = dict(axes or {})
    found: dict[str, Rows] = {}

    def keep(name: str, rows: Rows) -> None:
        found[name] = rows
        if progress is not None:
            progress(len(found), len(named))

    if executor is None:
        for name, job in named.items():
            keep(name, planned_rows(name, job, words, asked))
    else:
        tasks = {executor.submit(planned_rows, name, job, words, asked): name for name, job in named.items()}
        for task in as_completed(tasks):
            keep(tasks[task], task.result())
    return [row for name in named for row in found[name]]


def planned_rows(name: str, job: TrainingJob, axes: Mapping[str, str], asked: Mapping[str, Any]) -> Rows:
    """The rows of one job: its plans, or why there is none."""
    try:
        found = plan(job, axes, **asked)
    except EstimatorError as error:
        return [{"job": name, "error": str(error)}]
    rows = [{"job": name, "error": "", **row} for row in found.table()]
    return rows or [{"job": name, "error": "no layout fits"}]
