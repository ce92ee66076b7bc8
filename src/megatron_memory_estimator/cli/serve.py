"""`megatron-memory serve`: the page and the API on this machine."""

from __future__ import annotations

import signal
import socket
import threading

import click

from ..errors import ConfigError
from ..wording import shown
from .extras import needed, seconds_option
from .verb import Verb

PORT = 8000
HELP = """Serve the page and its API on this machine: everything in a browser tab, and JSON for programs.

Nothing leaves the machine: no file is opened, and names are looked up on the Hugging Face Hub only with --allow-hub.
"""


def run(host: str, port: int, open_page: bool, allow_host: tuple[str, ...], allow_hub: bool, seconds: float) -> None:
    """Serve until Ctrl-C."""
    with needed("serve", "fastapi and uvicorn", "web", ("fastapi", "pydantic", "starlette", "uvicorn", "anyio")):
        import uvicorn

        from ..service.pool import Workers
        from ..web.app import server
        from ..web.protocol import TimedProtocol
    listening = listener(host, port)
    port = listening.getsockname()[1]
    app = server(Workers(None, seconds, hub=allow_hub), host=host, port=port, allowed=allow_host)
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        ws="none",
    )
    running = uvicorn.Server(config)
    # also before it runs: who reads the address may press Ctrl-C at once
    signal.signal(signal.SIGINT, running.handle_exit)
    announce(address(host, port), open_page=open_page)
    running.run(sockets=[listening])


def announce(url: str, *, open_page: bool) -> None:
    """Say where the page is, and open it; the socket listens already, so that a browser waits until it is served."""
    print(f"{url} (Ctrl-C ends it)", flush=True)
    if open_page:
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ConfigError where that is not possible.

    It names its protocol: asyncio sends the end of an answer without waiting for the other side only then (TCP_NODELAY).
    """
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, port), family=kind, backlog=2048)
        return socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP, found.detach())
    except OSError as error:
        why = (
            "another program listens there; give another --port, or --port 0 for any"
            if _taken(error)
            else error.strerror
        )
        raise ConfigError(f"cannot listen at {shown(host)} port {port}: {why}") from None


def _taken(error: OSError) -> bool:
    import errno

    return error.errno == errno.EADDRINUSE


def address(host: str, port: int) -> str:
    """The URL of the page, as this machine's browsers have it."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"


command = Verb(
    "serve",
    params=[
        click.Option(
            ["--host"], default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine only)"
        ),
        click.Option(
            ["--port"], type=click.IntRange(0, 65535), default=PORT, help=f"port (default {PORT}; 0: any that is free)"
        ),
        click.Option(["--open", "open_page"], is_flag=True, help="open the page in a browser"),
        click.Option(
            ["--allow-host"],
            metavar="NAME",
            multiple=True,
            help="another name that browsers know this server by; may be repeated",
        ),
        click.Option(
            ["--allow-hub"], is_flag=True, help="look names of models up in the local cache and the Hugging Face Hub"
        ),
        seconds_option(),
    ],
    callback=run,
    help=HELP,
)
