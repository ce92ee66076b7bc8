"""`megatron-memory record --log train.log RUN`: a measured run as lines that `validate --against` reads."""

from __future__ import annotations

import json
import sys

import click

from ..errors import ConfigError
from ..job.training_job import TrainingJob
from ..wording import shown
from .job_command import job_command

HELP = """A measured run as lines of JSON: its arguments and what was measured, neither names nor paths.

Of --log, Megatron's own memory lines, each rank gives a line. Of --snapshot, a memory snapshot of torch that has the peak of --rank, there
is one. `validate --against` reads them, and they can be sent as they are (docs/how-to/validation.md).
"""


def run(job: TrainingJob, *, log: str | None, snapshot: str | None, rank: int | None) -> None:
    """Print the lines."""
    if (log is None) == (snapshot is None):
        raise ConfigError("give one of --log train.log and --snapshot snapshot.pickle")
    if (snapshot is None) != (rank is None):
        raise ConfigError("--rank goes with --snapshot: the rank whose snapshot it is")
    from ..estimator import estimate
    from ..inputs.text_files import read_text
    from ..planner.record import record, records_of_log

    estimate(job)
    if log is not None:
        found = records_of_log(job, read_text(log, script=True))
    else:
        assert snapshot is not None and rank is not None
        from ..validation.replay import pp_rank_of

        pp_rank_of(job, rank)
        found = [record(job, rank, {"max_allocated_bytes": peak_of(snapshot)})]
    sys.stdout.write("".join(json.dumps(one) + "\n" for one in found))


def peak_of(path: str) -> int:
    """The most that was allocated in a snapshot's trace. Raises ConfigError for a file that is none, or without a trace."""
    from ..evidence.account import account
    from ..evidence.snapshot import snapshot_of

    found = snapshot_of(path)
    if not found.events:
        raise ConfigError(f"{shown(path)} has no trace, so it does not say how much was allocated at the peak")
    return account(found, "peak").allocated


command = job_command(
    "record",
    HELP,
    [
        click.Option(["--log"], metavar="FILE", default=None, help="a training log with Megatron's memory lines"),
        click.Option(["--snapshot"], metavar="FILE", default=None, help="a memory snapshot of torch"),
        click.Option(["--rank"], type=click.IntRange(0), default=None, help="the rank whose snapshot it is"),
    ],
    run,
)
