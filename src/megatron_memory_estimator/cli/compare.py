"""`megatron-memory compare A B ...`: several models, files and layouts side by side."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError, EstimatorError, LayoutError, UnsupportedError
from ..inputs.loaded_model import LONGEST_NAME
from ..wording import plain
from .files import write
from .given import job_from_options
from .job_command import JobCommand
from .options import json_option, model_argument, one_format, setting_fields, special_options

if TYPE_CHECKING:
    from rich.console import Console

    from ..report.comparison import Columns

HELP = """Several models, YAML files and layouts side by side: what differs, the peak and the verdict; --all shows the rest.

Every MODEL is estimated with every --layout; the other options hold for all of them. For a layout that Megatron-Core refuses, the
column says why. A layout is name=value pairs with the
short names of degrees or Megatron's names: --layout "tp=4,pp=4,ep=8" --layout "tp=8,pp=2,recompute_granularity=full".
"""


def callback(
    models: tuple[str, ...],
    layouts: tuple[str, ...],
    form: str,
    output: str | None,
    as_json: bool,
    every: bool,
    **values: Any,
) -> None:
    """Print or write the comparison."""
    from ..report.comparison import notes, short_notes

    form = one_format(form, as_json=as_json)
    cases = comparison(models, layouts, values)
    if form == "table" and output is None:
        from .console import console

        screen = console()
        said = notes(cases) if every else short_notes(cases, screen.width)
        click.echo(in_table(cases, screen, every=every, below_it=said), nl=False)
        for note in said:
            screen.print(note, highlight=False, markup=False)
        return
    text = printed(cases, form, every=every)
    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text)
    for note in notes(cases) if form != "json" else ():
        click.echo(note, err=True)


def printed(cases: Columns, form: str, *, every: bool) -> str:
    """The comparison in a format; a table as wide as it needs."""
    from ..report.comparison import TEXT, as_json, records

    if form == "json":
        from .files import json_text

        return json_text(as_json(cases)) + "\n"
    if form == "csv":
        from ..report.records import as_csv

        return as_csv(records(cases))
    if form in TEXT:
        return TEXT[form](cases, every=every)
    from rich.console import Console

    from .console import WIDE

    return in_table(cases, Console(width=WIDE, file=io.StringIO()), every=every)


def in_table(cases: Columns, target: Console, *, every: bool, below_it: Sequence[str] = ()) -> str:
    """The sentences and the table, as wide as the terminal; `below_it` are lines that need room there too."""
    from rich.text import Text

    from ..report.comparison import answers, as_tables, below, changes
    from ..report.screen import room

    said = (*answers(cases), *changes(cases))
    same = () if target.is_terminal else tuple(below(cases, every=every))  # the notes of a terminal say --all too
    left = sys.maxsize if every else room(target, *map(Text, (*said, *below_it)))
    with target.capture() as page:
        for line in said:
            target.print(line, highlight=False, markup=False)
        for table in as_tables(cases, target, every=every, lines=left):
            target.print(table)
    lines = [line.rstrip() for line in page.get().splitlines()]
    return "\n".join((*lines, *same)) + "\n"


def comparison(models: tuple[str, ...], layouts: tuple[str, ...], values: dict[str, Any]) -> Columns:
    """A case for every model and layout. Raises the reason of the first where all are refused, ConfigError for words that make no sense."""
    from ..estimator import estimate
    from ..inputs.hf.load import standard_input
    from ..inputs.layouts import parse_layout_words
    from ..report.comparison import Case, Refused

    pairs = [(model, layout) for model in models for layout in layouts or ("",)]
    if len(pairs) < 2:
        raise ConfigError("compare needs at least two cases: several models or files, or several --layout")
    given_config = standard_input() if "-" in models else None  # once for all cases
    cases: list[Case | Refused] = []
    refused: list[EstimatorError] = []
    for model, layout in pairs:
        words = parse_layout_words(layout) if layout else {}
        given = {**values, **words, "model": given_config if model == "-" else model}
        label = plain(" ".join(part for part in (model if len(models) > 1 else "", layout) if part), LONGEST_NAME)
        label = label or plain(model, LONGEST_NAME)
        try:
            cases.append(Case(label, estimate(job_from_options(given))))
        except (LayoutError, UnsupportedError) as error:
            refused.append(error)
            cases.append(Refused(label, str(error)))
        except EstimatorError as error:
            raise ConfigError(f"{label}: {error}") from None
    if len(refused) == len(cases):
        raise refused[0]
    return cases


command = JobCommand(
    "compare",
    setting_fields(),
    params=[
        model_argument("models", "MODEL..."),
        click.Option(["--layout", "layouts"], multiple=True, metavar="WORDS", help="a layout, such as tp=4,pp=4,ep=8"),
        click.Option(
            ["--format", "form"], type=click.Choice(["table", "json", "csv", "markdown", "latex"]), default="table",
            help="csv has a row for each case",
        ),
        click.Option(["--all", "every"], is_flag=True, help="also what is the same in all cases; what differs is marked"),
        click.Option(["--output"], metavar="FILE", help="write to a file instead of standard output"),
        json_option(),
        *special_options(),
    ],
    callback=callback,
    help=HELP,
)  # fmt: skip
