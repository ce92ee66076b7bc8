"""`megatron-memory gpus`: the GPUs that estimates are judged against."""

from __future__ import annotations

import click

from ..job.hardware import GIB, GPUS
from .options import json_option
from .verb import Verb


def run(as_json: bool) -> None:
    """Print the GPU catalogue."""
    if as_json:
        import json

        found = [
            {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "aliases": list(gpu.aliases), "source": gpu.source}
            for gpu in GPUS
        ]
        click.echo(json.dumps(found, indent=1))
        return
    from rich import box
    from rich.table import Table

    from .console import console

    table = Table("GPU", "memory GiB", "also", "source of the memory figure", box=box.SIMPLE_HEAD, pad_edge=False)
    for gpu in GPUS:
        table.add_row(gpu.name, f"{gpu.memory_bytes / GIB:.2f}", ", ".join(gpu.aliases), gpu.source)
    console().print(table)


command = Verb("gpus", params=[json_option()], callback=run, help="The GPUs that estimates are judged against.")
