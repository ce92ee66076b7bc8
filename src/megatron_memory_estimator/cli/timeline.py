"""`megatron-memory timeline MODEL`: what a stage has allocated along one training step."""

from __future__ import annotations

import io
import json

import click

from ..errors import ConfigError
from ..estimator import Estimate, estimate
from ..job.training_job import TrainingJob
from ..timeline.axis import Axis
from ..timeline.timeline import Timeline
from ..wording import shown
from .files import write
from .job_command import job_command
from .options import json_option

HELP = """What a stage has allocated along one training step, forward by forward and backward by backward, and what runs at the peak.

Without --stage, the stage with the highest peak. Seconds are those of the throughput model. Takes the model and options of `estimate`.
"""
RECORDS = ("csv", "markdown")
"""Formats of one row for each moment."""
TRACES = (".pickle", ".json")
"""A snapshot of the stage's allocations for PyTorch's memory visualizer, and a trace of all stages for Perfetto."""
PIPED = 80
"""Columns where standard output is no terminal and COLUMNS is not set."""


def run(
    job: TrainingJob,
    *,
    as_json: bool,
    as_csv: bool,
    form: str,
    stage: int | None,
    axis: Axis,
    png: str | None,
    svg: str | None,
    trace: tuple[str, ...],
) -> None:
    """Print the timeline of one stage; write its figures."""
    forms = [name for name, given in (("json", as_json), ("csv", as_csv), (form, form != "chart")) if given]
    if len(set(forms)) > 1:
        raise ConfigError("--json, --csv and --format exclude each other; give one")
    for target in trace:
        if not target.lower().endswith(tuple(TRACES)):
            raise ConfigError(f"--trace {shown(target)} must end in {' or '.join(TRACES)}")
    result = estimate(job)
    found = result.timeline(stage)
    for target in trace:
        write(target, traced(result, stage, target), "--trace")
    for kind, path in (("png", png), ("svg", svg)):
        if path is not None:
            if not path.lower().endswith(f".{kind}"):
                raise ConfigError(f"--{kind} {shown(path)} must end in .{kind}")
            write(path, drawn(found, axis, kind), f"--{kind}")
    if not forms:
        from rich.text import Text

        from ..report.timeline import print_timeline
        from ..report.verdict import verdict_line
        from .console import WIDE, console

        terminal = console()
        if terminal.width == WIDE:
            terminal.width = PIPED
        print_timeline(found, Text.from_markup(verdict_line(result)), axis, terminal)
    elif forms[0] == "json":
        from .files import print_json

        print_json(found.to_dict())
    else:
        from ..report.records import FORMATS

        click.echo(FORMATS[forms[0]](found.table()), nl=False)


def traced(result: Estimate, stage: int | None, path: str) -> bytes:
    """A trace in the format of its name."""
    if path.lower().endswith(".json"):
        from ..timeline.perfetto import schedule_trace

        return json.dumps(schedule_trace(result), separators=(",", ":")).encode()
    from ..timeline.snapshot import pickled

    return pickled(result.memory_snapshot(stage))


def drawn(timeline: Timeline, axis: Axis, form: str) -> bytes:
    """The figure in a format."""
    found = timeline.plot(axis=axis)
    from ..timeline.figure import save

    page = io.BytesIO()
    save(found, page, form)
    return page.getvalue()


command = job_command(
    "timeline",
    HELP,
    [
        json_option(),
        click.Option(["--csv", "as_csv"], is_flag=True, help="print a row for each moment, as --format csv"),
        click.Option(
            ["--format", "form"], type=click.Choice(["chart", "json", *RECORDS]), default="chart", show_default=True,
            help="csv and markdown are a row for each moment, in bytes and seconds",
        ),
        click.Option(
            ["--stage"], type=click.INT, default=None, help="pipeline stage (default: the one with the highest peak)"
        ),
        click.Option(
            ["--axis"], type=click.Choice(["seconds", "events"]), default="seconds", show_default=True,
            help="what the chart runs along",
        ),
        click.Option(
            ["--trace"], metavar="FILE", multiple=True,
            help="also write FILE.pickle, every allocation of the stage for PyTorch's memory visualizer (pytorch.org/memory_viz), or "
            "FILE.json, the schedule of all stages with their memory for Perfetto (ui.perfetto.dev) or Chrome",
        ),
        click.Option(["--png"], metavar="FILE", help="also write the chart as a PNG; needs the extra `plot`"),
        click.Option(["--svg"], metavar="FILE", help="also write the chart as an SVG; needs the extra `plot`"),
    ],
    run,
)  # fmt: skip
