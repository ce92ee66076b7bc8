"""The terminal: tables are as wide as they need when standard output is not one."""

from __future__ import annotations

import sys

from rich.console import Console

WIDE = 1000


def console() -> Console:
    """A rich console on standard output."""
    return Console(width=None if sys.stdout.isatty() else WIDE, soft_wrap=False)
