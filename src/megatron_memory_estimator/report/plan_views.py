"""What the result of a search shows of itself in Python."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..colours import COLOURS
from ..job.hardware import GIB
from ..planner.found import Found, Plan
from ..wording import counted
from .html import fragment, sentence, table
from .plans import answer, plan_figures, plan_records, rows_of
from .quantities import gib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def records(found: Found) -> list[dict[str, Any]]:
    """One record per plan, the best first."""
    return plan_records(found)


def html(found: Found, assumptions: Sequence[str] = ()) -> str:
    """How many layouts fit, and a table of the best."""
    plans = rows_of(found)
    rows = [plan_figures(row, "notebook") for row in plans]
    cells = [[str(number), *map(escape, row.values())] for number, row in enumerate(rows, 1)]
    return fragment(
        [
            *map(sentence, answer(found, plans)),
            sentence(summary(found)),
            table(["#", *rows[0]], cells, left=("layout",)) if rows else "",
            *(sentence(f"assumed: {said}") for said in assumptions),
        ]
    )


def summary(found: Found) -> str:
    """How many plans there are of how many layouts, and in how much memory."""
    return f"{counted(len(found.plans), 'plan')} of {found.legal:,} legal layouts in {gib(found.limit)} GiB, by {found.objective}"


def figure(found: Found, path: str | None) -> Figure:
    """Plans by what they need at most and speed, and the memory that they may take."""
    from ..timeline.figure import blank, memory_line, save

    drawn = blank()
    plot = drawn.subplots()
    plans = sorted(found.plans, key=lambda one: one.needed.high)
    plot.plot(*_points(plans), color=COLOURS["weights"], marker="o", drawstyle="steps-post", label="the best plans")
    memory_line(plot.axvline, "memory limit", found.limit)
    plot.set_title(summary(found), fontsize="medium")
    plot.set_xlabel("GiB of a GPU that the plan needs at most")
    plot.set_ylabel("tokens/s/GPU")
    plot.set_xlim(left=0)
    plot.set_ylim(bottom=0)
    drawn.legend(loc="outside right upper", fontsize="small")
    if path is not None:
        save(drawn, path)
    return drawn


def _points(plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
    return [one.needed.high / GIB for one in plans], [one.tokens_per_s_gpu for one in plans]
