"""`megatron-memory estimate MODEL`: what every pipeline stage holds and when it peaks."""

from __future__ import annotations

import click

from ..errors import ConfigError
from ..job.training_job import TrainingJob
from .options import job_command, json_option

HELP = """What every GPU of every pipeline stage holds, and when it peaks.

MODEL is a bundled model or Hub id, a directory, a config.json, or - for standard input; or a whole run: a YAML file, a launch
script (read, never run), or Megatron-LM arguments behind --. What is not given is decided and said. Options have Megatron's
names; --tp, --pp, --ep, --cp, --etp, --vpp and --num-gpus are short for the long ones.
"""

RECORDS = ("csv", "markdown")
"""Formats of one row for each stage."""


def run(job: TrainingJob, *, as_json: bool, form: str, verbose: bool, formulas: bool, all_gpus: bool) -> None:
    """Print the estimate."""
    if form in RECORDS and (as_json or formulas or verbose or all_gpus):
        raise ConfigError(
            f"--format {form} is a row for each stage; leave --json, --formulas, --verbose and --all-gpus out"
        )
    from ..estimator import estimate

    result = estimate(job)
    if form in RECORDS:
        from ..report.records import FORMATS, stage_records

        click.echo(FORMATS[form](stage_records(result)), nl=False)
        return
    as_json = as_json or form == "json"
    if as_json:
        import json

        document = result.to_dict()
        if formulas:
            from ..report.formulas import formulas_section

            document["formulas"] = formulas_section(job)
        click.echo(json.dumps(document, indent=1))
        return
    from ..report.text import print_estimate
    from .console import console

    terminal = console()
    print_estimate(result, terminal, verbose=verbose, all_gpus=all_gpus)
    if formulas:
        from ..report.formulas import print_formulas

        print_formulas(result, terminal)


command = job_command(
    "estimate",
    HELP,
    [
        json_option(),
        click.Option(
            ["--format", "form"],
            type=click.Choice(["table", "json", *RECORDS]),
            default="table",
            show_default=True,
            help="csv and markdown are a row for each stage, in bytes",
        ),
        click.Option(["--verbose", "-v"], is_flag=True, help="also print device-memory terms and chunks"),
        click.Option(
            ["--all-gpus"], is_flag=True, help="the verdict and head-room on every GPU of the catalogue, as a table"
        ),
        click.Option(
            ["--formulas"], is_flag=True, help="also print what Megatron-Bridge's and Megatron-LM's formulas say"
        ),
    ],
    run,
)
