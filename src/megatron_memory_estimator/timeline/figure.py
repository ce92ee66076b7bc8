"""A timeline as a figure of matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..colours import COLOURS
from ..errors import ConfigError
from ..job.hardware import GIB
from ..wording import shown
from .axis import STATE, Axis, Stretch, state_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INCHES = (10.0, 4.5)
ROOM = 1.05
"""Height of the figure relative to the highest thing in it."""
REST = "activations, transient, pipeline"
FORMATS = ("png", "svg", "pdf")


def blank() -> Figure:
    """An empty figure, which a notebook shows. Raises ConfigError where matplotlib is not installed."""
    try:
        from .notebook_figure import NotebookFigure
    except ImportError:
        raise ConfigError("a figure needs matplotlib: pip install 'megatron-memory-estimator[plot]'") from None

    return NotebookFigure(figsize=INCHES, layout="constrained")


def memory_line(line: Callable[..., Any], gpu: str, nbytes: int) -> None:
    """The memory of a GPU across a plot, by its method for lines of that direction."""
    line(nbytes / GIB, color="black", linestyle="--", linewidth=1, label=f"{gpu}, {nbytes / GIB:.1f} GiB")


def figure(
    along: Sequence[Stretch], axis: Axis, title: str, peak: tuple[float | None, int], gpu: tuple[str, int]
) -> Figure:
    """Areas of state and of what comes and goes; `peak` is (place, bytes) and `gpu` (name, memory bytes)."""
    if axis not in ("seconds", "events"):
        raise ConfigError(f"axis={axis!r} is not one of seconds, events")
    found = blank()
    plot = found.subplots()
    _areas(plot, [one for one in along if one.end > one.start])
    memory, highest = gpu[1] / GIB, peak[1] / GIB
    memory_line(plot.axhline, *gpu)
    if peak[0] is not None:
        plot.plot([peak[0]], [highest], marker="v", color="black", linestyle="none", label="peak")
    plot.set_title(title, fontsize="medium")
    plot.set_ylim(0, ROOM * max(highest, memory))
    plot.set_xlabel(axis)
    plot.set_ylabel("GiB allocated")
    found.legend(loc="outside right upper", fontsize="small")
    return found


def _areas(plot: Any, along: Sequence[Stretch]) -> None:
    edges = [along[0].start, *(one.end for one in along)]
    below = [0.0] * len(along)
    state = [state_bytes(one.moment) for one in along]
    for name in (*STATE, REST):
        sizes = [of.get(name, one.nbytes - sum(of.values())) for one, of in zip(along, state, strict=True)]
        above = [low + size / GIB for low, size in zip(below, sizes, strict=True)]
        colour = COLOURS["activations" if name == REST else name]
        plot.stairs(above, edges, baseline=below, fill=True, label=name, color=colour)
        below = above
    plot.set_xlim(edges[0], edges[-1])


def save(found: Figure, path: str | IO[bytes], form: str = "") -> None:
    """Write a figure to a file, once it is drawn, in the format of its name. Raises ConfigError for a format that is none of FORMATS."""
    form = form or Path(str(path)).suffix.lower().lstrip(".")
    if form not in FORMATS:
        raise ConfigError(f"{path!r} must end in one of {', '.join('.' + name for name in FORMATS)}")
    page = BytesIO()
    found.savefig(page, format=form, metadata={"Date": None} if form == "svg" else None)
    if not isinstance(path, str):
        path.write(page.getvalue())
        return
    try:
        Path(path).write_bytes(page.getvalue())
    except OSError as error:
        raise ConfigError(f"cannot write {shown(path)}: {error.strerror}") from None
