"""`megatron-memory models [MODEL]`: the bundled models, or the parameters of one."""

from __future__ import annotations

import click

from .options import json_option
from .verb import Verb


def run(model: str | None, as_json: bool) -> None:
    """Print the catalogue, or one model's parameters; models whose memory is refused have parameters too."""
    from ..inputs.catalog import entries
    from ..report.catalogue import model_facts

    names = [model] if model else list(entries())
    found = [model_facts(name) for name in names]
    if as_json:
        import json

        click.echo(json.dumps(found[0] if model else found, indent=1))
        return
    from rich import box
    from rich.table import Table

    from .console import console

    table = Table("model", "type", "parameters", "active", "MTP", "memory", box=box.SIMPLE_HEAD, pad_edge=False)
    for facts in found:
        count = facts["num_parameters"]
        memory = facts["refused"] or "estimated"
        shown = [f"{count[key]:,}" if count else "-" for key in ("total", "active", "mtp")]
        table.add_row(str(facts["name"]), str(facts["model_type"]), *shown, str(memory))
    console().print(table)


command = Verb(
    "models",
    params=[click.Argument(["model"], required=False), json_option()],
    callback=run,
    help="The bundled models; with MODEL, its parameters (of models whose memory is refused as well).",
)
