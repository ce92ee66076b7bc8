"""`megatron-memory explain MODEL`: the named tensors behind a figure."""

from __future__ import annotations

import click

from ..job.training_job import TrainingJob
from .job_command import job_command
from .options import json_option

HELP = """Every tensor alive at a stage's peak, or between two steps: shape, dtype, count, bytes, and why it is alive.

Without --stage, the stage with the highest peak. Takes the model and options of `estimate`.
"""


def run(job: TrainingJob, *, as_json: bool, stage: int | None, at: str) -> None:
    """Print the tensors of one stage."""
    from ..estimator import estimate

    result = estimate(job)
    if as_json:
        from ..report.document import explanation
        from .files import print_json

        print_json(explanation(result, stage, at))
        return
    from ..report.tree import print_rows
    from .console import console

    print_rows(result, result.stage(stage), at, console())


command = job_command(
    "explain",
    HELP,
    [
        json_option(),
        click.Option(
            ["--stage"], type=click.INT, default=None, help="pipeline stage (default: the one with the highest peak)"
        ),
        click.Option(
            ["--at"], type=click.Choice(["peak", "steady"]), default="peak", help="the peak, or between two steps"
        ),
    ],
    run,
)
