"""`megatron-memory advise MODEL`: what makes a run fit, or faster."""

from __future__ import annotations

import click

from ..job.training_job import TrainingJob
from ..wording import counted
from .job_command import job_command, same_run
from .options import format_option, json_option, one_format

HELP = """What makes a run fit: the smallest changes, each with what it saves and what it costs. For a run that fits with room, what
makes it faster.

MODEL and the options are those of `estimate`.
"""


def run(
    job: TrainingJob,
    *,
    as_json: bool,
    form: str,
    top: int,
    calibrate: str | None,
) -> None:
    """Print the advice."""
    from ..planner.advise import advise
    from ..report.advice import advice_document, advice_records, print_advice
    from .estimate import telling
    from .plan import fitted

    form = one_format(form, as_json=as_json)
    efficiency = fitted(calibrate, quiet=form != "table")
    with telling() as tell:
        found = advise(
            job,
            most=top,
            efficiency=efficiency,
            progress=tell and (lambda tried: tell(f"{counted(tried, 'change')} tried")),
        )
    if form == "json":
        from .files import print_json

        print_json(advice_document(found))
    elif form == "table":
        from .console import console

        print_advice(found, console(), same_run())
    else:
        from ..report.records import FORMATS

        click.echo(FORMATS[form](advice_records(found)), nl=False)


command = job_command(
    "advise",
    HELP,
    [
        json_option(),
        format_option("change, beginning with the run as it is"),
        click.Option(["--top"], type=click.IntRange(1, 100), default=10, help="changes to show (default 10)"),
        click.Option(["--calibrate"], metavar="FILE", help="measured steps that the efficiencies are fitted to"),
    ],
    run,
)
