"""Servers of the page for scripts that drive a browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("megatron-memory"))
SERVE = [COMMAND, "serve", "--port", "0"]
BROWSER = {"executable_path": "/usr/bin/chromium", "args": ["--no-sandbox", "--disable-gpu"]}
"""How Chromium is started."""


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """A server, and the address that its first line names."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        try:
            yield next(word for word in line.replace("(", " ").replace(")", " ").split() if word.startswith("http"))
        finally:
            server.terminate()
