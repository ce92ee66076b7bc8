"""One training step of a stage, event by event: bytes from the schedule, seconds from the throughput model (docs/how-to/timeline.md)."""

from __future__ import annotations

from .timeline import Timeline

__all__ = ["Timeline"]
