"""`megatron-memory why --measured 85.3GiB MODEL`: what would make a figure what it is."""

from __future__ import annotations

import click

from ..evidence import KINDS
from ..job.training_job import TrainingJob
from .job_command import job_command
from .options import json_option

HELP = """Which quantity a measured figure is, what the run is expected to have of it, and what would make it so.

The figure is of one GPU: 85.3GiB, 87347MiB (as nvidia-smi and Megatron-LM print), 91.6GB (10^9 bytes, as Megatron-Bridge prints). Without
--kind it is taken for the quantity that it is nearest to.
"""


def run(job: TrainingJob, *, measured: str, kind: str | None, as_json: bool) -> None:
    """Print why a figure is what it is."""
    from ..evidence.why import bytes_of, why
    from ..report.why import why_document, why_lines

    found = why(job, bytes_of(measured, "--measured"), kind)  # type: ignore[arg-type]
    if as_json:
        from .files import print_json

        print_json(why_document(found))
        return
    from .console import page

    screen = page()
    for line in why_lines(found):
        screen.print(line, highlight=False, markup=False, soft_wrap=True)


command = job_command(
    "why",
    HELP,
    [
        click.Option(["--measured"], metavar="FIGURE", required=True, help="the figure with its unit, such as 85.3GiB"),
        click.Option(
            ["--kind"],
            type=click.Choice(KINDS),
            default=None,
            help="the quantity that it is",
        ),
        json_option(),
    ],
    run,
)
