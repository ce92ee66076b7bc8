"""`megatron-memory explain MODEL`: the named tensors behind a figure."""

from __future__ import annotations

import click

from ..errors import ConfigError
from ..estimator import Stage, estimate
from ..job import TrainingJob
from .options import job_command, json_option

HELP = """Every tensor alive at a stage's peak, or between two steps: shape, dtype, count, bytes, and why it is alive.

Without --stage, the stage with the highest peak. Takes the model and options of `estimate`.
"""


def run(job: TrainingJob, *, as_json: bool, stage: int | None, at: str) -> None:
    """Print the tensors of one stage."""
    result = estimate(job)
    chosen: Stage = result.peak_stage
    if stage is not None:
        if not 0 <= stage < len(result.stages):
            raise ConfigError(f"--stage {stage} does not exist; the stages are 0 to {len(result.stages) - 1}")
        chosen = result.stages[stage]
    rows = chosen.rows if at == "peak" else chosen.steady_rows
    total = chosen.peak_allocated_bytes if at == "peak" else chosen.steady_allocated_bytes
    title = f"peak: {chosen.peak.candidate.label}" if at == "peak" else "between two steps"
    if as_json:
        import json

        from ..report.document import row_section

        document = {
            "schema": "megatron-memory-explain/1",
            "pp_rank": chosen.pp_rank,
            "at": at,
            "event": title,
            "allocated_bytes": total,
            "tensors": [row_section(row) for row in rows],
        }
        click.echo(json.dumps(document, indent=1))
        return
    from ..report.tree import print_rows
    from .console import console

    print_rows(result, chosen, rows, total, title, console())


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
