"""How far a search is, as JSON objects, some ten times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from .request import Progress

if TYPE_CHECKING:
    from ..planner.found import Found

EVERY_S = 0.1
"""Seconds between two of them."""


def told(progress: Progress) -> Callable[[float, Found], None]:
    """What tells `progress` the share that is done, and the counts and the best layout so far."""
    last = -inf

    def tell(share: float, found: Found) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_S or share >= 1:
            last = now
            progress(so_far(share, found))

    return tell


def so_far(share: float, found: Found) -> dict[str, Any]:
    """The share of the legal layouts that are evaluated, how many there are, how many fit, and the best of them (null: none yet)."""
    return {"share": min(share, 1.0), "legal": found.legal, "fits": found.fits, "best": best(found)}


def best(found: Found) -> dict[str, Any] | None:
    """The layout that would be first now."""
    from ..report.plans import layout_text

    if not found.plans:
        return None
    plan = found.plans[0]
    return {
        "num_gpus": plan.job.layout.world_size,
        "layout": layout_text(plan),
        "step_s": plan.step,
        "tokens_per_s_gpu": plan.tokens_per_s_gpu,
        "peak_allocated_bytes": plan.peak_allocated_bytes,
    }
