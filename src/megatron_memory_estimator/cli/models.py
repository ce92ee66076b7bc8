"""`megatron-memory models [WORD]`: the bundled models, those that a word is part of, or the parameters of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..wording import plain
from .options import format_option, json_option, model_argument, one_format
from .verb import Verb

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEAST = len("parameters only")
"""Characters of the last column, of which more says why."""
NARROW = 100
"""Columns of a terminal below which the list has the fewest columns."""
HELP = """The bundled models: all, those whose name or type has WORD in it, or the parameters of one.

One model is a name, a config.json or a directory, or a Hub id; parameters are counted even for models whose memory is not modelled.
"""


def run(word: str | None, form: str, as_json: bool) -> None:
    """Print the catalogue, a part of it, or one model's parameters."""
    from ..inputs.catalog import entries
    from ..report.catalogue import chosen, model_facts, model_record

    names = list(entries()) if word is None else chosen(word)
    found = [model_facts(name) for name in names or [str(word)]]
    form = one_format(form, as_json=as_json)
    if form == "json":
        from .files import print_json

        print_json(found if names else found[0])
    elif form != "table":
        from ..report.records import FORMATS

        click.echo(FORMATS[form]([model_record(facts) for facts in found]), nl=False)
    elif not names:
        print_model(model_record(found[0]), str(found[0]["source"]))
    else:
        from .console import console

        terminal = console()
        terminal.print(models_table([model_record(facts) for facts in found], terminal))


def print_model(record: dict[str, Any], source: str) -> None:
    """One model in words."""
    click.echo(f"{record['name']}  {record['model_type']}  ({plain(source)})")
    for kind, what in (("total", "parameters"), ("active", "active"), ("mtp", "of MTP layers")):
        number = record[f"num_parameters_{kind}"]
        click.echo(f"  {what:14}{'-' if number is None else format(number, ',')}")
    click.echo(f"  {'memory':14}{said(record)}")


def said(record: dict[str, Any]) -> str:
    """Whether memory is modelled, and without what; or why not."""
    if not record["supported"]:
        return f"{record['memory']}: {record['reason']}"
    return f"modelled; {record['not_counted']}" if record["not_counted"] else "modelled"


def models_table(records: Sequence[dict[str, Any]], console: Console) -> Table:
    """A line for each model, in billions of parameters; what is cut is the reason of a refusal, never a number."""
    kinds = ("total",) if console.width < NARROW else ("total", "active", "mtp")
    from ..report.stage_table import needed

    room = console.width - needed(_table(records, kinds, 0), console).maximum
    return _table(records, kinds, max(room, 0))


def _table(records: Sequence[dict[str, Any]], kinds: tuple[str, ...], room: int) -> Table:
    """The table with so many characters for reasons, beyond the heading's."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    for kind in kinds:
        table.add_column("MTP (B)" if kind == "mtp" else f"{kind} (B)", justify="right", no_wrap=True)
    table.add_column("memory", no_wrap=True, min_width=LEAST)
    for record in records:
        numbers = [billions(record[f"num_parameters_{kind}"]) for kind in kinds]
        text, most = said(record), LEAST + room
        cut = plain(text, most) if most > 2 * LEAST else record["memory"]
        table.add_row(record["name"], *numbers, text if len(text) <= most else cut)
    return table


def billions(number: int | None) -> str:
    """A count of parameters in billions, to three digits behind the point."""
    return "-" if number is None else f"{number / 1e9:.3f}"


command = Verb(
    "models",
    params=[model_argument("word", "[WORD|MODEL]", required=False, nargs=1), format_option("model"), json_option()],
    callback=run,
    help=HELP,
)
