"""`megatron-memory check RUN`: whether a run may start, as an exit code and one line."""

from __future__ import annotations

import sys

import click

from ..job.training_job import TrainingJob
from .job_command import job_command
from .options import json_option

HELP = """Whether a run may start, for CI and job submission: one line of reason, and an exit code.

Exit codes: 0 the run surely fits; 2 bad input; 3 it does not fit; 4 it may not fit, trains but cannot load its checkpoint, has a
tower that is not counted, or sources a file that is not read; 5 --max-increase is exceeded. Takes the model or run and the options of
`estimate`.
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
