"""The parts of every stage's peak as bars show them: figures in GiB, equal neighbours together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..estimator import Stage
from .document import layers_text, share_bytes
from .quantities import gib
from .stage_table import folded, spans

COLOURS = {
    "weights": "#0072b2", "gradients": "#e69f00", "optimizer": "#009e73", "activations": "#cc79a7", "other": "#999999",
}  # fmt: skip
"""The colours of Okabe and Ito that are told apart on white and on black, by colour-blind readers too."""


class Bar(NamedTuple):
    """One stage, or equal neighbours, in GiB as text: the shares of the peak in the order of SHARES, and the device range. `first` is
    the stage, or the first of them."""

    first: Stage
    stages: str
    layers: str
    shares: tuple[str, ...]
    peak: str
    low: str
    high: str


def bars(stages: Sequence[Stage]) -> list[Bar]:
    """A bar for each stage, equal neighbours as one."""
    rows = [
        [
            str(stage.pp_rank), layers_text(stage), *map(gib, share_bytes(stage).values()), gib(stage.peak_allocated_bytes),
            gib(stage.device.low, 1), gib(stage.device.high, 1),
        ]
        for stage in stages
    ]  # fmt: skip
    firsts = [stages[first] for first, _ in spans(rows)]
    return [
        Bar(first, row[0], row[1], tuple(row[2:-3]), *row[-3:]) for first, row in zip(firsts, folded(rows), strict=True)
    ]
