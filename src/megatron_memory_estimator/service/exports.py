"""Tables of a run, of plans or of compared runs as a file."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..wording import shown
from .request import Request

Records = list[dict[str, Any]]
ENDINGS = {"csv": "csv", "markdown": "md"}
REPORT, TRACE, SNAPSHOT = "report", "trace", "snapshot"
"""The page frozen around a run, its schedule as Perfetto and Chrome read it, and every allocation of a stage as torch's memory visualizer
does, which are no tables."""


def exported(request: Request) -> Any:
    """`name` of the file, its `text`, and the text's `encoding`, utf-8: a row for each of `what`, as `csv` or `markdown`; a `report` is
    HTML, a `trace` JSON, a `snapshot` a pickle in base64."""
    from ..report.records import FORMATS

    what = request.get("what")
    if what not in (*TABLES, *FORMS):
        raise ConfigError(f"what={shown(what)} is not one of {', '.join((*TABLES, *FORMS))}")
    forms, form = ([FORMS[what]], FORMS[what]) if what in FORMS else (list(ENDINGS), "csv")
    form = request.get("format", form)
    if form not in forms:
        raise ConfigError(f"format={shown(form)} of {what} is not one of {', '.join(forms)}")
    if what in FORMS:
        name, content = OTHERS[what](request)
        encoding, text = (
            ("utf-8", content) if isinstance(content, str) else ("base64", base64.b64encode(content).decode())
        )
        return {"name": f"{name}.{form}", "text": text, "encoding": encoding}
    table = TABLES[what](request)
    if not table.records:
        raise ConfigError(f"there are no {what} to export")
    text = FORMATS[form](table.records)
    return {"name": f"{_file_name(table.of, table.name)}.{ENDINGS[form]}", "text": text, "encoding": "utf-8"}


def _file_name(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(part for part in parts if part)).strip("-.")


def _report(request: Request) -> tuple[str, str]:
    """The page of the run as one file."""
    from ..report.page import page_report

    found = request.estimate
    return _file_name(_model(found.job.name), "memory"), page_report(found)


def _trace(request: Request) -> tuple[str, str]:
    """The schedule of all stages with their memory, for ui.perfetto.dev and chrome://tracing."""
    from ..timeline.perfetto import schedule_trace

    found = request.estimate
    return _file_name(_model(found.job.name), "trace"), json.dumps(schedule_trace(found), separators=(",", ":"))


def _snapshot(request: Request) -> tuple[str, bytes]:
    """Every allocation of a stage in a step, for pytorch.org/memory_viz."""
    from ..timeline.snapshot import pickled

    found = request.estimate
    stage = found.stage(request.get("stage")).rank.pp_rank
    return _file_name(_model(found.job.name), f"stage {stage} snapshot"), pickled(found.memory_snapshot(stage))


def at_moment(request: Request) -> dict[str, Any]:
    """The tensors at the highest of a moment, as a document. Raises ConfigError without the number of one."""
    from ..report.lanes import moment_document

    index = request.get("moment")
    if index is None:
        raise ConfigError("moment is needed: the number of a moment, as `lanes` has them")
    return moment_document(request.estimate.stage(request.get("stage")), index)


class Table(NamedTuple):
    """The records of a file, the model they are of, and what they are called."""

    of: str
    name: str
    records: Records


def _stages(request: Request) -> Table:
    found = request.estimate
    return Table(_model(found.job.name), "stages", found.table())


def _moments(request: Request) -> Table:
    found = request.estimate.timeline(request.get("stage"))
    return Table(_model(found.name), f"stage {found.pp_rank} moments", found.table())


def _tensors(request: Request) -> Table:
    """Those of `explain`, or of a moment where one is given."""
    from ..report.document import explanation

    if request.get("moment") is not None:
        found, where = at_moment(request), f"moment {request.get('moment')}"
    else:
        found, where = (
            explanation(request.estimate, request.get("stage"), request.get("at", "peak")),
            request.get("at", "peak"),
        )
    rows = [{**row, "local_shape": "x".join(map(str, row["local_shape"]))} for row in found["tensors"]]
    return Table(_model(request.job.name), f"stage {found['pp_rank']} {where} tensors", rows)


def _plans(request: Request) -> Table:
    from ..report.plans import plan_records
    from .searches import planned

    found = planned(request)
    return Table(_model(found.search.job.name), "plans", plan_records(found.rows))


def _advice(request: Request) -> Table:
    from ..planner.advise import advise

    return Table(_model(request.job.name), "advice", advise(request.job).table())


def _cases(request: Request) -> Table:
    from ..report.comparison import records
    from .cases import cases_of

    return Table("", "compared", records(cases_of(request)))


def _model(name: str) -> str:
    """The last part of a model's name."""
    return name.rpartition("/")[2]


TABLES: dict[str, Callable[[Request], Table]] = {
    "stages": _stages, "moments": _moments, "tensors": _tensors, "plans": _plans, "advice": _advice, "cases": _cases,
}  # fmt: skip
"""What is exported."""
OTHERS: dict[str, Callable[[Request], tuple[str, str | bytes]]] = {REPORT: _report, TRACE: _trace, SNAPSHOT: _snapshot}
"""What is no table: the file's name without its ending, and its content."""
FORMS = {REPORT: "html", TRACE: "json", SNAPSHOT: "pickle"}
"""What is exported in one format alone."""
