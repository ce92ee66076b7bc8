"""`megatron-memory compare A B ...`: several models, files and layouts side by side."""

from __future__ import annotations

import io
from typing import Any

import click

from ..errors import ConfigError, EstimatorError, LayoutError, UnsupportedError
from ..inputs.loaded_model import LONGEST_NAME
from ..wording import plain
from .files import write
from .options import JobCommand, job_from_options, json_option, model_argument, setting_options, special_options

HELP = """Several models, YAML files and layouts side by side, with what differs marked.

Every MODEL is estimated with every --layout; the other options hold for all of them. A layout is name=value pairs with the
short names of degrees or Megatron's names: --layout "tp=4,pp=4,ep=8" --layout "tp=8,pp=2,recompute_granularity=full".
"""


def callback(
    models: tuple[str, ...], layouts: tuple[str, ...], form: str, output: str | None, as_json: bool, **values: Any
) -> None:
    """Print or write the comparison."""
    from ..report.comparison import TEXT, as_table, notes

    if as_json and form != "table":
        raise ConfigError("--json and --format exclude each other; give one")
    cases = comparison(models, layouts, values)
    if as_json:
        import json

        from ..report.comparison import as_json as document

        text = json.dumps(document(cases), indent=1) + "\n"
    elif form in TEXT:
        text = TEXT[form](cases)
    elif output is None:
        from .console import console

        console().print(as_table(cases))
        for note in notes(cases):
            click.echo(note)
        return
    else:
        from rich.console import Console

        from .console import WIDE

        page = io.StringIO()
        Console(width=WIDE, file=page).print(as_table(cases))
        text = "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text)
    if not as_json:
        for note in notes(cases):
            click.echo(note, err=True)


def comparison(models: tuple[str, ...], layouts: tuple[str, ...], values: dict[str, Any]) -> list[Any]:
    """A case for every model and layout. Raises ConfigError that names the case that is refused."""
    from ..estimator import estimate
    from ..inputs.hf.load import standard_input
    from ..inputs.layouts import parse_layout_words
    from ..report.comparison import Case

    pairs = [(model, layout) for model in models for layout in layouts or ("",)]
    if len(pairs) < 2:
        raise ConfigError("compare needs at least two cases: several models or files, or several --layout")
    given_config = standard_input() if "-" in models else None  # once for all cases
    cases = []
    for model, layout in pairs:
        words = parse_layout_words(layout) if layout else {}
        given = {**values, **words, "model": given_config if model == "-" else model}
        label = plain(" ".join(part for part in (model if len(models) > 1 else "", layout) if part), LONGEST_NAME)
        try:
            cases.append(Case(label or plain(model, LONGEST_NAME), estimate(job_from_options(given))))
        except LayoutError as error:
            raise LayoutError(tuple(f"{label}: {reason}" for reason in error.reasons)) from None
        except UnsupportedError as error:
            raise UnsupportedError(f"{label}: {error}") from None
        except EstimatorError as error:
            raise ConfigError(f"{label}: {error}") from None
    return cases


command = JobCommand(
    "compare",
    params=[
        model_argument("models", "MODEL..."),
        click.Option(["--layout", "layouts"], multiple=True, metavar="WORDS", help="a layout, such as tp=4,pp=4,ep=8"),
        click.Option(
            ["--format", "form"], type=click.Choice(["table", "markdown", "csv", "latex"]), default="table",
            help="how to print it (default table)",
        ),
        click.Option(["--output"], metavar="FILE", help="write to a file instead of standard output"),
        json_option(),
        *special_options(),
        *setting_options(),
    ],
    callback=callback,
    help=HELP,
)  # fmt: skip
