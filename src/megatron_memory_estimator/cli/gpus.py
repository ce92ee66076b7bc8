"""`megatron-memory gpus`: the GPUs that estimates are judged against."""

from __future__ import annotations

import click

from ..job.hardware import GIB
from .options import format_option, json_option, one_format
from .verb import Verb


def run(word: str | None, form: str, as_json: bool) -> None:
    """Print the GPU catalogue, or those with a word in their names."""
    form = one_format(form, as_json=as_json)
    from ..report.catalogue import gpu_facts

    found = gpu_facts(word or "")
    if form == "json":
        from .files import print_json

        print_json(found)
        return
    if form != "table":
        from ..report.records import FORMATS

        click.echo(
            FORMATS[form]([{**one, "aliases": ", ".join(one["aliases"])} for one in found]),
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
    for one in found:
        table.add_row(one["name"], f"{one['memory_bytes'] / GIB:.2f}", ", ".join(one["aliases"]), one["source"])
    console().print(table)


command = Verb(
    "gpus",
    params=[click.Argument(["word"], required=False), format_option("GPU"), json_option()],
    callback=run,
    help="The GPUs that estimates are judged against.",
)
