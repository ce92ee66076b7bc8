"""The phases of a step of reinforcement learning as bars of device memory against the GPU's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..device.outside import outside_terms
from ..device.rollout import asleep
from ..device.terms import Range, Term
from ..estimator import Estimate, Stage
from .bars import LEAST, MARKS, MOST, Mark, bar, legend_of, marked_up
from .document import SHARES, share_bytes
from .markup import escape
from .quantities import bounds_text

if TYPE_CHECKING:
    from rich.console import Console

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
    """A phase of a stage: its device memory, and what it is made of at least in bytes, in the order of the marks."""

    name: str
    pp_rank: int
    device: Range
    shares: tuple[int, ...]


def print_rollout(estimate: Estimate, console: Console) -> None:
    """A line for each phase, of the stage where it takes most: the bar is what it takes at least."""
    memory = estimate.job.gpu.memory_bytes
    drawn = [most_of(several) for several in zip(*map(list, map(phases_drawn, estimate.stages)), strict=True)]
    if len(drawn) == 1:
        return
    blocks = "utf" in console.encoding.lower()
    cells: list[tuple[str, ...]] = [("phase", "stage", "needs GiB")]
    cells += [(one.name, str(one.pp_rank), bounds_text(one.device)) for one in drawn]
    if len(estimate.stages) == 1:
        cells = [(name, size) for name, _, size in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = max(min(console.width, MOST) - sum(widths) - 2 * len(widths), LEAST)
    scale = max(memory, *(sum(one.shares) for one in drawn)) / (room - 1)
    edge = round(memory / scale)
    legend = legend_of(ROLLOUT_MARKS, blocks=blocks)
    if sum(len(text) for text, _ in legend) > console.width - sum(widths) - 2 * len(widths):
        console.print(marked_up(legend), highlight=False)
        legend = []
    lines = [legend, *(bar(one.shares, scale, edge, blocks=blocks, marks=ROLLOUT_MARKS) for one in drawn)]
    for (name, *others), line in zip(cells, lines, strict=True):
        figures = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        text = escape("  ".join([f"{name:<{widths[0]}}", *figures, ""])) + marked_up(line)
        console.print(text, highlight=False, no_wrap=True, crop=False)


def most_of(several: Sequence[Drawn]) -> Drawn:
    """The stage where a phase takes most."""
    return max(several, key=lambda one: (one.device.high, one.device.low))


def phases_drawn(stage: Stage) -> Iterator[Drawn]:
    """The phases of a step that verdicts hold, in their order, training where it is."""
    outside = sum(term.low for term in outside_terms(stage.job, stage.rank.context))
    held = [phase for phase in stage.rollout if phase.name in stage.phase_ranges]
    for phase in held:
        if phase.name == "weight_sync":
            yield _training(stage, outside)
        shares = (*_shares(phase.trainer, outside), phase.beside.low)
        yield Drawn(phase.name, stage.pp_rank, stage.phase_ranges[phase.name], shares)
    if all(phase.name != "weight_sync" for phase in held):
        yield _training(stage, outside)


def _training(stage: Stage, outside: int) -> Drawn:
    engine = asleep(stage.job)
    beside = engine.low if engine else 0
    *shares, other = share_bytes(stage).values()
    return Drawn("training", stage.pp_rank, stage.phase_ranges["training"], (*shares, other + outside, beside))


def _shares(terms: tuple[Term, ...], outside: int) -> tuple[int, ...]:
    sizes = dict.fromkeys(SHARES, 0)
    for term in terms:
        sizes[SHARE_OF.get(term.name, "other")] += term.low
    sizes["other"] += outside
    return tuple(sizes.values())
