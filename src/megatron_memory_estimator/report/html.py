"""Results as small fragments of HTML for notebooks: no script, inline styles only, the colours of the text are the page's own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..colours import COLOURS as PART_COLOURS
from ..colours import OTHER
from ..estimator import Estimate
from .bars import Bar, bars
from .document import SHARES
from .quantities import gib
from .verdict import sentences

WORDS = {
    "fits": "#009e73", "fits only without fragmentation": "#e69f00", "tight": "#e69f00", "does not fit": "#d55e00",
}  # fmt: skip
"""The colour of the edge beside a verdict (Okabe and Ito)."""
CELL = "padding:1px 8px;text-align:{};white-space:nowrap;background:transparent"
BAR = "GiB at the peak"
EMPTY, WIDE, TALL = "rgba(128,128,128,.2)", 260, 14
"""The background of a bar, which is seen on white and on black, and its pixels."""


def fragment(parts: Sequence[str]) -> str:
    """Pieces of HTML as one."""
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def sentence(text: str, colour: str = "") -> str:
    """A line of text, with a coloured edge where there is a colour."""
    edge = f"border-left:4px solid {colour};padding-left:8px;font-weight:bold" if colour else "opacity:.8"
    return f'<div style="{edge};margin:2px 0">{escape(text)}</div>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> str:
    """A table of cells that are HTML already; columns stand on the right but those named in `left`."""
    styles = [CELL.format("left" if name in left else "right") for name in header]
    head = "".join(f'<th style="{style}">{escape(name)}</th>' for name, style in zip(header, styles, strict=True))
    lines = (
        "".join(f'<td style="{style}">{cell}</td>' for cell, style in zip(row, styles, strict=True)) for row in rows
    )
    body = "".join(f'<tr style="background:transparent">{line}</tr>' for line in lines)
    return f'<table style="border-collapse:collapse;margin:4px 0"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def estimate_html(estimate: Estimate) -> str:
    """The verdict, a legend, and a bar for each stage against the GPU's memory."""
    found, job = estimate.verdict(), estimate.job
    drawn, memory = bars(estimate.stages), float(gib(found.memory_bytes, 1))
    whole = max(memory, *(float(one.high) for one in drawn), *(float(one.peak) for one in drawn))
    gpus = f"{job.layout.world_size} {job.gpu.name}"
    rows = [
        [*map(escape, (one.stages, one.layers)), _bar(one, memory, whole), *map(escape, (*one.shares, one.peak, _device(one)))]
        for one in drawn
    ]  # fmt: skip
    header = ["stage", "layers", BAR, *SHARES, "peak", "needs"]
    return fragment(
        [
            *(sentence(one.text, WORDS[one.word]) for one in sentences(found, estimate)),
            sentence(f"{job.name or 'model'} on {gpus} ({job.layout.degrees})"),
            _legend(found.gpu, memory),
            table(header, rows, left=(BAR,)),
            *phases_table(estimate),
        ]
    )


def phases_table(estimate: Estimate) -> list[str]:
    """The device memory of each phase of a step of reinforcement learning, of its fullest stage."""
    if not any(stage.rollout for stage in estimate.stages):
        return []
    rows = [(escape(name), gib(found.low, 1), gib(found.high, 1)) for name, found in estimate.phases.items()]
    return [table(("phase", "needs GiB at least", "at most"), rows, left=("phase",))]


def _device(bar: Bar) -> str:
    return f"{bar.low} to {bar.high}"


def _bar(bar: Bar, memory: float, whole: float) -> str:
    """Shares side by side, the range on the device as a line through them, and the memory of the GPU as a mark."""
    shares = "".join(
        f'<span title="{name} {size} GiB" style="width:{float(size) / whole:.2%};background:{COLOURS[name]}"></span>'
        for name, size in zip(SHARES, bar.shares, strict=True)
        if float(size)
    )
    low, high = float(bar.low) / whole, float(bar.high) / whole
    return (
        f'<div style="width:{WIDE}px"><div style="position:relative;display:flex;height:{TALL}px;background:{EMPTY}">{shares}'
        f'<span title="device {_device(bar)} GiB" style="position:absolute;left:{low:.2%};width:{high - low:.2%};'
        f'top:{TALL // 2 - 1}px;border-top:2px solid currentColor"></span>'
        f'<span title="memory {memory:.1f} GiB" style="position:absolute;left:{memory / whole:.2%};top:-2px;'
        f'height:{TALL + 4}px;border-left:2px dashed currentColor"></span></div></div>'
    )


def _legend(gpu: str, memory: float) -> str:
    swatches = "".join(
        f'<span style="margin-right:12px"><span style="display:inline-block;width:10px;height:10px;background:{colour}">'
        f"</span> {name}</span>"
        for name, colour in COLOURS.items()
    )
    lines = f"&#9473; device, low to high &nbsp; &#9482; {escape(gpu)}, {memory:.1f} GiB"
    return f'<div style="margin:2px 0">{swatches}{lines}</div>'


COLOURS = {name: PART_COLOURS.get(name, OTHER) for name in SHARES}
"""By share of the peak."""
