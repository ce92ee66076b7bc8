"""What an estimate shows of itself in Python. Each view loads what it needs, when it is asked for."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..estimator import Estimate

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
    from .drawings import estimate_figure

    found = estimate_figure(estimate)
    if path is not None:
        save(found, path)
    return found
