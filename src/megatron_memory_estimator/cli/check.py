"""`megatron-memory check RUN`: whether a run may start, as an exit code and one line."""

from __future__ import annotations

import sys

import click

from ..job.training_job import TrainingJob
from .job_command import job_command
from .options import json_option

HELP = """Whether a run may start, for CI and job submission: one line of reason, and an exit code.

Exits with 0 where the run surely fits its GPU, 3 where it does not, 4 where that is tight, a file that the script sources is not
read, or it trains but cannot load its checkpoint, 5 where --max-increase is exceeded, 2 for a bad input. Takes the model or run
and the options of `estimate`.
"""


def run(
    job: TrainingJob,
    *,
    as_json: bool,
    max_increase: str | None,
    tolerance: str,
) -> None:
    """Print the reason, warnings on standard error, and exit with the code."""
    from ..estimator import estimate
    from ..report.check import checked, document, read_baseline, tolerance_of

    share = tolerance_of(tolerance, "--tolerance")
    baseline = read_baseline(max_increase) if max_increase is not None else None
    result = estimate(job)
    found = checked(result, baseline, share)
    if as_json:
        from .files import print_json

        print_json(document(result, found))
    else:
        click.echo(found.reason)
        for warning in job.warnings:
            click.echo(f"warning: {warning}", err=True)
    sys.stdout.flush()
    if found.code:
        sys.exit(found.code)


command = job_command(
    "check",
    HELP,
    [
        json_option(),
        click.Option(
            ["--max-increase"],
            metavar="BASELINE.json",
            help="no stage's peak may be above that of an earlier check --json or estimate --json",
        ),
        click.Option(["--tolerance"], metavar="%", default="0%", show_default=True, help="by how much it may be above"),
    ],
    run,
)
