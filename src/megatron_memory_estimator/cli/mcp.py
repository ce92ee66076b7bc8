"""`megatron-memory mcp`: the verbs as tools of an MCP server on standard input and output."""

from __future__ import annotations

import click

from ..errors import ConfigError


def run() -> None:
    """Serve until standard input ends."""
    try:
        from ..mcp_server import server
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "pydantic", "anyio"):
            raise
        raise ConfigError(
            "`megatron-memory mcp` needs the mcp package: pip install 'megatron-memory-estimator[mcp]'"
        ) from None
    server().run("stdio")


command = click.Command(
    "mcp",
    callback=run,
    help="Serve estimate, explain, compare and models as an MCP server over standard input and output.",
)
