"""Figures as reports write them."""

from __future__ import annotations

from ..estimator import Stage
from ..job.hardware import GIB


def gib(nbytes: int, digits: int = 2) -> str:
    """Bytes in GiB, without the unit."""
    return f"{nbytes / GIB:.{digits}f}"


def plural(count: int) -> str:
    """The plural s."""
    return "" if count == 1 else "s"


def layers_text(stage: Stage) -> str:
    """Layers of a stage, and E, M, L for embedding, MTP and loss."""
    plans = stage.rank.plans
    marks = "".join(
        mark for mark, has in (("E", any(p.chunk.embedding for p in plans)), ("M", any(p.chunk.mtp for p in plans)),
                               ("L", any(p.chunk.output for p in plans))) if has
    )  # fmt: skip
    return f"{sum(len(p.chunk.layers) for p in plans)}{' +' + marks if marks else ''}"
