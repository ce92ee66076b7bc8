"""What the result of a search shows of itself in Python."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..colours import COLOURS, OTHER
from ..job.hardware import GIB
from ..planner.found import Found, Plan
from .html import fragment, sentence, table
from .plans import PLAN, answer, plan_records, rows_of
from .quantities import gib, labelled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def records(found: Found) -> list[dict[str, Any]]:
    """One record per plan, the best first."""
    return plan_records(found)


def html(found: Found, assumptions: Sequence[str] = ()) -> str:
    """How many layouts fit, and a table of the best."""
    plans = rows_of(found)
    rows = [labelled(PLAN, row, "notebook") for row in plans]
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
    """How many layouts fit in how much memory, and how many of them are shown."""
    fits = f"{found.fits:,} of {found.legal:,} legal layouts fit in {gib(found.limit)} GiB"
    return f"{fits}; the best {len(found.plans)} by {found.objective}" if found.plans else fits


def figure(found: Found, path: str | None) -> Figure:
    """Plans by what they need at most and speed, with the front of the fastest for each GiB, and the memory that they may take."""
    from ..timeline.figure import blank, memory_line, save

    drawn = blank()
    plot = drawn.subplots()
    plot.plot(*_points(found.front), color=OTHER, marker=".", drawstyle="steps-post", label="the fastest for each GiB")
    plot.plot(*_points(found.plans), color=COLOURS["weights"], marker="o", linestyle="none", label="the best plans")
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
