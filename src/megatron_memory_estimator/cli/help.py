"""`megatron-memory help [COMMAND]`: what a command does, on one screen."""

from __future__ import annotations

import click

from . import completion
from .verb import Verb


@click.pass_context
def run(ctx: click.Context, name: str | None) -> None:
    """Print the help of a command, or of all."""
    group = ctx.parent
    assert group is not None and isinstance(group.command, click.Group)
    if name is None:
        click.echo(group.get_help())
        return
    _, found, _ = group.command.resolve_command(group, [name])
    assert found is not None
    click.echo(found.get_help(click.Context(found, parent=group, info_name=name)))


command = Verb(
    "help",
    params=[click.Argument(["name"], required=False, metavar="[COMMAND]", shell_complete=completion.verbs)],
    callback=run,
    help="The help of a command, or of all; the same as COMMAND --help.",
)
