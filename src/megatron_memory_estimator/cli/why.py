"""`megatron-memory why --measured 85.3GiB MODEL`: what would make a figure what it is."""

from __future__ import annotations

import re

import click

from ..errors import ConfigError
from ..evidence import KINDS
from ..job.training_job import TrainingJob
from .job_command import job_command
from .options import json_option

HELP = """Which quantity a measured figure is, what the run is expected to have of it, and what would make it so.

The figure is of one GPU: 85.3GiB, 87347MiB (as nvidia-smi and Megatron-LM print), 91.6GB (10^9 bytes, as Megatron-Bridge prints). Without
--kind it is taken for the quantity that it is nearest to.
"""
UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
FIGURE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def bytes_of(text: str) -> int:
    """The bytes of a figure with its unit. Raises ConfigError."""
    match = FIGURE.fullmatch(text)
    if match is None or match[2].lower() not in UNITS or (not match[2] and "." in match[1]):
        raise ConfigError(f"--measured {text!r} must be a number with its unit, such as 85.3GiB, 87347MiB or 91.6GB")
    return int(float(match[1]) * UNITS[match[2].lower()])


def run(job: TrainingJob, *, measured: str, kind: str | None, as_json: bool) -> None:
    """Print why a figure is what it is."""
    from ..evidence.why import why
    from ..report.why import why_document, why_lines

    found = why(job, bytes_of(measured), kind)  # type: ignore[arg-type]
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
