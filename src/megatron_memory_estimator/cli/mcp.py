"""`megatron-memory mcp`: the verbs as tools of an MCP server on standard input and output."""

from __future__ import annotations

import os

import click

from ..errors import ConfigError
from ..wording import shown
from .extras import needed, seconds_option
from .verb import Verb


def run(folder: str | None, seconds: float) -> None:
    """Serve until standard input ends."""
    if folder is not None and not os.path.isdir(os.path.expanduser(folder)):
        raise ConfigError(f"--folder {shown(folder)} is not a folder")
    with needed("mcp", "the mcp package", "mcp", ("mcp", "pydantic", "anyio")):
        from ..mcp_server import server
    server(None if folder is None else os.path.expanduser(folder), seconds).run("stdio")


command = Verb(
    "mcp",
    params=[
        click.Option(
            ["--folder"], metavar="DIR", help="open files below this folder, and nowhere else (default: no files)"
        ),
        seconds_option(),
    ],
    callback=run,
    help="Serve estimate, plan, advise, explain, compare and models as an MCP server over standard input and output.",
)
