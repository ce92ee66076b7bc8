"""`megatron-memory explain MODEL`: the named tensors behind a figure."""

from __future__ import annotations

import click

from ..errors import ConfigError
from ..job.choices import WAYS, By
from ..job.training_job import TrainingJob
from .job_command import job_command
from .options import json_option

HELP = """Every tensor alive at a stage's peak, or between two steps: shape, dtype, count, bytes, and why it is alive.

--by says what is largest: parameters with their gradients and optimizer state, modules, layers or tensors. Without --stage, the stage
with the highest peak. Takes the model and options of `estimate`.
"""


def run(
    job: TrainingJob, *, as_json: bool, form: str, stage: int | None, at: str, by: By | None, top: int | None
) -> None:
    """Print the tensors of one stage, or what is largest in it."""
    if as_json and form == "csv":
        raise ConfigError("--json and --format csv exclude each other; give one")
    if as_json and by:
        raise ConfigError("--json has every tensor; leave --by out, or give --format csv")
    if top is not None and not by and form == "text":
        raise ConfigError("--top limits the rows of --by; give --by too")
    from ..estimator import estimate

    result = estimate(job)
    if form == "csv":
        from ..report.largest import largest
        from ..report.records import as_csv

        chosen = result.stage(stage)
        click.echo(as_csv([one.record() for one in largest(chosen, at, by or "tensor")[:top]]), nl=False)
        return
    if as_json:
        from ..report.document import explanation
        from .files import print_json

        print_json(explanation(result, stage, at))
        return
    from ..report.tree import print_largest, print_rows
    from .console import console

    if by:
        print_largest(result.stage(stage), at, by, top, console())
    else:
        print_rows(result, result.stage(stage), at, console())


command = job_command(
    "explain",
    HELP,
    [
        json_option(),
        click.Option(
            ["--format", "form"],
            type=click.Choice(["text", "csv"]),
            default="text",
            show_default=True,
            help="csv has a row for each tensor, in bytes",
        ),
        click.Option(
            ["--by"],
            type=click.Choice(WAYS),
            default=None,
            help="list the largest tensors, parameters, modules or layers, one a line",
        ),
        click.Option(
            ["--top"],
            type=click.IntRange(1),
            default=None,
            help="rows of --by to list (default: all, or as many as the terminal has room for)",
        ),
        click.Option(
            ["--stage"], type=click.INT, default=None, help="pipeline stage (default: the one with the highest peak)"
        ),
        click.Option(
            ["--at"], type=click.Choice(["peak", "steady"]), default="peak", help="the peak, or between two steps"
        ),
    ],
    run,
)
