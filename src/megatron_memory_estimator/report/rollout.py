"""The phases of a step of reinforcement learning as bars of device memory against the GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ..device.outside import outside_terms
from ..device.rollout import asleep
from ..device.terms import Term
from ..estimator import Estimate, Stage
from .bars import LEAST, MARKS, MOST, Mark, bar, legend_of
from .figures import gib
from .shares import SHARES, share_bytes

ENGINE = "engine"
ROLLOUT_MARKS = {**MARKS, ENGINE: Mark("\u259a", "E", "red")}
SHARE_OF = {
    "weights": "weights",
    "reference": "weights",
    "reference weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "forward without gradients": "activations",
}
"""What a term of a phase is drawn as; the others are "other"."""


class Drawn(NamedTuple):
    """A phase: its name, its device memory at least in bytes, and what it is made of in the order of the marks."""

    name: str
    low: int
    shares: tuple[int, ...]


def print_rollout(estimate: Estimate, console: Console) -> None:
    """A line for each phase of the stage that decides."""
    found = estimate.verdict()
    stage = estimate.stages[found.pp_rank]
    drawn = list(phases_drawn(stage))
    blocks = "utf" in console.encoding.lower()
    head = ("phase", "device GiB")
    cells = [head, *((one.name, gib(one.low, 1)) for one in drawn)]
    widths = [max(len(row[at]) for row in cells) for at in range(2)]
    room = max(min(console.width, MOST) - sum(widths) - 4, LEAST)
    scale = max(found.memory_bytes, *(one.low for one in drawn)) / (room - 1)
    edge = round(found.memory_bytes / scale)
    lines = [legend_of(ROLLOUT_MARKS, blocks=blocks)]
    lines += [bar(one.shares, scale, edge, blocks=blocks, marks=ROLLOUT_MARKS) for one in drawn]
    for (name, size), line in zip(cells, lines, strict=True):
        text = Text(f"{name:<{widths[0]}}  {size:>{widths[1]}}  ").append_text(line)
        console.print(text, highlight=False, no_wrap=True, crop=False)


def phases_drawn(stage: Stage) -> Iterator[Drawn]:
    """The phases of a step in their order, training where it is."""
    outside = sum(term.low for term in outside_terms(stage.job, stage.rank.context))
    for phase in stage.rollout:
        if phase.name == "weight_sync":
            yield _training(stage, outside)
        shares = _shares(phase.trainer, outside)
        yield Drawn(phase.name, sum(shares) + phase.beside.low, (*shares, phase.beside.low))
    if all(phase.name != "weight_sync" for phase in stage.rollout):
        yield _training(stage, outside)


def _training(stage: Stage, outside: int) -> Drawn:
    engine = asleep(stage.job)
    beside = engine.low if engine else 0
    *shares, other = share_bytes(stage)
    return Drawn("training", sum(shares) + other + outside + beside, (*shares, other + outside, beside))


def _shares(terms: tuple[Term, ...], outside: int) -> tuple[int, ...]:
    sizes = dict.fromkeys(SHARES, 0)
    for term in terms:
        sizes[SHARE_OF.get(term.name, "other")] += term.low
    sizes["other"] += outside
    return tuple(sizes.values())
