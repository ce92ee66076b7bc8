"""`megatron-memory snapshot FILE`: what a memory snapshot of torch says, in our words."""

from __future__ import annotations

import click

from ..errors import ConfigError
from ..wording import shown
from .options import json_option
from .verb import Verb

HELP = """What was alive at the peak of a memory snapshot of torch, and which lines made it.

FILE is what torch.cuda.memory._dump_snapshot writes, and Megatron's --record-memory-history, packed with gzip or not; nothing of it is
run. Of a run that ran out of memory: too large, or too broken up.
"""
TOP = 12


def run(file: str, device: int | None, at: str | None, top: int, as_json: bool) -> None:
    """Print the account of a snapshot."""
    from ..evidence.account import account
    from ..evidence.snapshot import read_snapshot
    from ..report.snapshot import print_snapshot, snapshot_document

    try:
        with open(file, "rb") as opened:
            data = opened.read()
    except OSError as error:
        raise ConfigError(f"{shown(file)} cannot be read: {error.strerror}") from None
    try:
        snapshot = read_snapshot(data, device)
    except ConfigError as error:
        raise ConfigError(f"{shown(file)}: {error}") from None
    if at == "oom" and not any(event.action == "oom" for event in snapshot.events):
        raise ConfigError(f"{shown(file)}: memory did not run out in its trace; --at peak or end")
    found = account(snapshot, at)  # type: ignore[arg-type]
    if as_json:
        from .files import print_json

        print_json(snapshot_document(found))
        return
    from .console import page

    print_snapshot(found, page(), top)


command = Verb(
    "snapshot",
    params=[
        click.Argument(["file"], required=True),
        click.Option(["--device"], type=click.IntRange(0), default=None, help="the device (default: that with the longest trace)"),
        click.Option(
            ["--at"], type=click.Choice(["peak", "oom", "end"]), default=None,
            help="the moment that is listed (default: oom where memory ran out, else peak)",
        ),
        click.Option(["--top"], type=click.IntRange(1, 10_000), default=TOP, help=f"lines that are listed (default {TOP})"),
        json_option(),
    ],
    callback=run,
    help=HELP,
)  # fmt: skip
