"""How much of a GPU's memory a run may use: options of every command that judges, and the bytes that they leave."""

from __future__ import annotations

import click

from ..errors import ConfigError
from ..job.hardware import GIB
from ..job.training_job import TrainingJob

LARGEST_GIB = 10**6


def limit_options() -> list[click.Option]:
    """What `memory_limit` is given."""
    return [
        click.Option(["--max-memory"], type=float, metavar="GIB", help="memory of a GPU, GiB (default: all of it)"),
        click.Option(["--head-room"], metavar="GIB|%", help="memory to leave free, such as 4 or 5%"),
    ]


def memory_limit(job: TrainingJob, max_memory: float | None, head_room: str | None) -> int:
    """Bytes of a GPU that a run may use."""
    limit = job.gpu.memory_bytes
    if max_memory is not None:
        if not 0 < max_memory < LARGEST_GIB:
            raise ConfigError(f"--max-memory {max_memory:g} must be more than 0 GiB, and a number")
        limit = int(max_memory * GIB)
    if head_room is not None:
        text = head_room.removesuffix("%")
        try:
            size = float(text)
        except ValueError:
            raise ConfigError(f"--head-room {head_room!r} must be GiB such as 4, or a percentage such as 5%") from None
        if not 0 <= size < LARGEST_GIB:
            raise ConfigError(f"--head-room {head_room} must not be negative, and a number")
        room = int(limit * size / 100) if head_room.endswith("%") else int(size * GIB)
        if room >= limit:
            raise ConfigError(f"--head-room {head_room} leaves nothing of {limit / GIB:.2f} GiB")
        limit -= room
    return limit
