"""`megatron-memory gpus`: the GPUs that estimates are judged against."""

from __future__ import annotations

import click

from ..errors import ConfigError
from ..job.hardware import GIB, GPUS
from ..wording import plain
from .options import format_option, json_option, one_format
from .verb import Verb


def run(word: str | None, form: str, as_json: bool) -> None:
    """Print the GPU catalogue, or those with a word in their names."""
    form = one_format(form, as_json=as_json)
    shown = [gpu for gpu in GPUS if any((word or "").lower() in name.lower() for name in (gpu.name, *gpu.aliases))]
    if not shown:
        raise ConfigError(f'no GPU has "{plain(word or "")}" in its name; `megatron-memory gpus` lists them')
    found = [
        {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "aliases": list(gpu.aliases), "source": gpu.source}
        for gpu in shown
    ]
    if form == "json":
        from .documents import print_json

        print_json(found)
        return
    if form != "table":
        from ..report.records import FORMATS

        click.echo(
            FORMATS[form]([{**one, "aliases": ", ".join(gpu.aliases)} for one, gpu in zip(found, shown, strict=True)]),
            nl=False,
        )
        return
    from rich import box
    from rich.table import Table

    from .console import console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU", no_wrap=True)
    table.add_column("memory (GiB)", justify="right", no_wrap=True)
    for name in ("also", "source of the memory figure"):
        table.add_column(name, overflow="fold")
    for one in shown:
        table.add_row(one.name, f"{one.memory_bytes / GIB:.2f}", ", ".join(one.aliases), one.source)
    console().print(table)


command = Verb(
    "gpus",
    params=[click.Argument(["word"], required=False), format_option("GPU"), json_option()],
    callback=run,
    help="The GPUs that estimates are judged against.",
)
