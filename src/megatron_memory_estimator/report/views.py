"""An estimate as records, text, HTML and a figure of matplotlib. Each view loads what it needs, when it is asked for."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from ..estimator import Estimate
from ..job.hardware import GIB
from .document import share_bytes
from .html import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 100
"""How wide the text of an estimate is."""


def records(estimate: Estimate) -> list[dict[str, Any]]:
    """One record per stage."""
    from .records import stage_records

    return stage_records(estimate)


def html(estimate: Estimate) -> str:
    """The verdict and a bar for each stage."""
    from .html import estimate_html

    return estimate_html(estimate)


def text(estimate: Estimate) -> str:
    """What the command prints, without colours."""
    from rich.console import Console

    from .text import print_estimate

    page = StringIO()
    console = Console(file=page, width=COLUMNS, color_system=None, force_terminal=False, force_jupyter=False)
    print_estimate(estimate, console)
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip().split("\n"))


def figure(estimate: Estimate, path: str | None) -> Figure:
    """A bar for each stage, also written to a file."""
    from ..timeline.figure import save

    found = estimate_figure(estimate)
    if path is not None:
        save(found, path)
    return found


def estimate_figure(estimate: Estimate) -> Figure:
    """Stacked bars of every stage's peak, the range on the device, and the memory of the GPU."""
    from ..timeline.figure import ROOM, blank, memory_line

    found, (verdict, stages) = blank(), (estimate.verdict(), estimate.stages)
    plot, places = found.subplots(), [stage.pp_rank for stage in stages]
    below = [0.0] * len(stages)
    for name, sizes in zip(COLOURS, zip(*(share_bytes(stage).values() for stage in stages), strict=True), strict=True):
        heights = [size / GIB for size in sizes]
        plot.bar(places, heights, bottom=below, color=COLOURS[name], label=name)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    ranges = [stage.device for stage in stages]
    lows, highs = [one.low / GIB for one in ranges], [one.high / GIB for one in ranges]
    plot.vlines(places, lows, highs, color="black", linewidth=2, label="device, low to high")
    memory_line(plot.axhline, verdict.gpu, verdict.memory_bytes)
    job = estimate.job
    plot.set_title(f"{job.name or 'model'} ({job.layout.degrees}): {verdict.word}", fontsize="medium")
    plot.set_ylim(0, ROOM * max(*highs, *below, verdict.memory_bytes / GIB))
    plot.locator_params(axis="x", integer=True)
    plot.set_xlabel("pipeline stage")
    plot.set_ylabel("GiB")
    found.legend(loc="outside right upper", fontsize="small")
    return found
