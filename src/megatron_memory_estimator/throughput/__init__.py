"""How long a training step takes: an analytical model, good enough to rank layouts (docs/explanation/throughput.md)."""

from __future__ import annotations

from .step import Throughput, throughput

__all__ = ["Throughput", "throughput"]
