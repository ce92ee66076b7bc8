"""`megatron-memory snapshot FILE [MODEL]`: what a memory snapshot of torch says, in our words, and beside the run that made it."""

from __future__ import annotations

from typing import Any

import click

from ..errors import ConfigError
from ..wording import shown
from .given import job_from_options
from .job_command import JobCommand
from .options import json_option, model_argument, setting_fields, special_options

HELP = """What was alive at the peak of a memory snapshot of torch, which lines made it, and how much of it a run explains.

FILE is what torch.cuda.memory._dump_snapshot writes, and Megatron's --record-memory-history, packed with gzip or not; nothing of it is
run. Of a run that ran out of memory it says whether it is too large, or too broken up. MODEL is the run that made it, as `estimate` takes
it: then what agrees, what stands alone on either side, and the setting that would close the gap.
"""
TOP = 12


def callback(
    file: str, device: int | None, at: str | None, top: int, html: str | None, as_json: bool, **values: Any
) -> None:
    """Print the account of a snapshot."""
    if html is not None and not html.lower().endswith((".html", ".htm")):
        raise ConfigError(f"--html {shown(html)} must end in .html")
    from ..evidence.account import account
    from ..evidence.snapshot import snapshot_of
    from ..report.snapshot import print_snapshot, ran, snapshot_document

    job = job_from_options(values) if values.get("model") else None
    snapshot = snapshot_of(file, device)
    if at == "oom" and not any(event.action == "oom" for event in snapshot.events):
        raise ConfigError(f"{shown(file)}: memory did not run out in its trace; --at peak or end")
    found = account(snapshot, at)  # type: ignore[arg-type]
    run = None if job is None else ran(found, job)
    if html is not None:
        from ..report.snapshot_page import snapshot_page
        from .files import write

        write(html, snapshot_page(file.rsplit("/", 1)[-1], found, run).encode(), "--html")
    if as_json:
        from .files import print_json

        print_json(snapshot_document(found, run))
        return
    from .console import page

    print_snapshot(found, page(), top, run)


OWN: list[click.Parameter] = [
    click.Option(["--device"], type=click.IntRange(0), default=None, help="the device (default: that with the longest trace)"),
    click.Option(
        ["--at"], type=click.Choice(["peak", "oom", "end"]), default=None,
        help="the moment that is listed (default: oom where memory ran out, else peak)",
    ),
    click.Option(["--top"], type=click.IntRange(1, 10_000), default=TOP, help=f"lines that are listed (default {TOP})"),
    click.Option(["--html"], metavar="FILE", default=None, help="also write the report as one HTML file"),
    json_option(),
]  # fmt: skip
command = JobCommand(
    "snapshot",
    setting_fields(),
    OWN,
    params=[click.Argument(["file"]), model_argument(required=False, metavar="[MODEL]"), *OWN, *special_options()],
    callback=callback,
    help=HELP,
)
