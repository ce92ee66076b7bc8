"""Commands that need packages of an extra, and the time that their requests have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click

from ..errors import ConfigError


@contextmanager
def needed(command: str, what: str, extra: str, packages: Collection[str]) -> Iterator[None]:
    """Imports of packages that an extra installs. Raises ConfigError with what to install where one of them is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ConfigError(
            f"`megatron-memory {command}` needs {what}: pip install 'megatron-memory-estimator[{extra}]'"
        ) from None


def seconds_option() -> click.Option:
    """How long a request may take."""
    return click.Option(
        ["--seconds"],
        type=click.FloatRange(1, 3600),
        default=60.0,
        help="longest time of one request, in seconds (default 60)",
    )
