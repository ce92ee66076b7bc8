"""The table of plans: what all have in common is said once above it, and below each row why it is slower and what is like it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich.markup import escape

from ..planner.found import Found, Plan
from ..planner.places import NEAR
from .plans import PLAN, Row, apart_rows, beside_first, optimizer_text
from .quantities import labelled
from .verdict import WHILE

BOUND = "\u00a0"
"""A space at which no line ends."""
NARROWEST = 26
"""Columns that a layout needs beside the numbers; where there are fewer, it stands on lines of its own."""
BETTER = {"throughput": "Faster", "memory": "Smaller at the peak", "head-room": "With more head-room"}
"""What plans apart are, by objective."""
LEGEND = {
    "generated split": "a pipeline_model_parallel_layout, which the launch arguments spell out (--show N)",
    "uneven split": "other counts of layers on the first and the last stage: first/last",
}

Word = Callable[[Plan], str]


def _split(plan: Plan) -> str:
    if plan.job.layout.pipeline_model_parallel_layout:
        return "generated split"
    text = plan.split
    return "even split" if text == "even" else f"uneven split {text}"


def _context(plan: Plan) -> str:
    layout = plan.job.layout
    return f"cp {layout.cp} {layout.cp_comm_type[0]}" if layout.cp > 1 else "cp 1"


def _experts(name: str) -> Word:
    return lambda plan: f"{name} {getattr(plan.job.layout, name)}" if plan.job.model.num_moe_experts else ""


def _sequence_parallel(plan: Plan) -> str:
    layout = plan.job.layout
    return "no sequence parallelism" if layout.tp > 1 and not layout.sequence_parallel else ""


OF_THE_RUN: tuple[Word, ...] = (
    lambda plan: f"{plan.job.layout.world_size} GPUs",
    _experts("etp"),
    _sequence_parallel,
    lambda plan: plan.precision,
    optimizer_text,
    lambda plan: f"sequence {plan.job.training.seq_length}",
    lambda plan: f"global batch {plan.job.training.global_batch_size}",
)
"""What is usually the same in all plans."""
OF_A_PLAN: tuple[Word, ...] = (
    lambda plan: f"tp {plan.job.layout.tp}",
    _context,
    lambda plan: f"pp {plan.job.layout.pp}",
    lambda plan: f"vpp {plan.virtual}",
    _split,
    _experts("ep"),
    lambda plan: f"micro batch {plan.job.training.micro_batch_size}",
    lambda plan: f"recompute {plan.recompute}",
)
"""What is usually searched."""


def plan_lines(found: Found, rows: Sequence[Row], width: int) -> Iterator[str]:
    """The lines of the table, marked up, none wider than the terminal."""
    common, words = said_once([row.plan for row in rows])
    yield from map(escape, wrapped(("all plans: " if len(rows) > 1 else "") + listed(common), width))
    yield ""
    yield from _table([_figures(row) for row in rows], words, [_below(row) for row in rows], width)
    for name, meaning in LEGEND.items():
        if any(name in plain(one) for one in (*words, *common)):
            yield ""
            yield from map(escape, textwrap.wrap(f"{name}: {meaning}", width))


def apart_lines(found: Found, rows: Sequence[Row], width: int) -> Iterator[str]:
    """Tight plans that are better than the first, in a line each."""
    tight = apart_rows(found)
    if not tight:
        return
    yield ""
    yield from wrapped(f"{BETTER[found.objective]}, but they may not fit (--tight ranks them with the others):", width)
    for row, words in zip(tight, said_once([*(row.plan for row in rows), *found.apart])[1][len(rows) :], strict=True):
        shown = _figures(row)
        text = (
            f"{words}: {shown['tokens/s/GPU']} tokens/s/GPU, peak {shown['peak GiB']} GiB, head-room {shown['head-room GiB']} GiB, "
            f"{row.verdict.word}"
        )
        for number, line in enumerate(wrapped(text, width - 3)):
            yield ("-  " if not number else "   ") + line


def listed(words: Iterable[str]) -> str:
    """Words of a layout with commas; what belongs together and is short is not torn apart at the end of a line."""
    return ", ".join(word.replace(" ", BOUND) if len(word) <= NARROWEST else word for word in words)


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text."""
    return [plain(line) for line in textwrap.wrap(text, width, break_on_hyphens=False)]


def plain(text: str) -> str:
    """The text as it is printed."""
    return text.replace(BOUND, " ")


def said_once(plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
    """What all plans have in common, and for each plan the rest of its layout in words."""
    common = [words[0] for words in _each(plans, OF_THE_RUN) if len(set(words)) == 1]
    rest = [words for words in _each(plans, OF_THE_RUN) if len(set(words)) > 1]
    for words in _each(plans, OF_A_PLAN):
        if len(plans) > 1 and len(set(words)) == 1:
            common.append(words[0])
        else:
            rest.append(words)
    each = zip(*rest, strict=True) if rest else iter([()] * len(plans))
    silent = ("", "even split", "vpp 1")
    return [word for word in common if word not in ("", "even split")], [
        listed(word for word in words if word not in silent) for words in each
    ]


def _each(plans: Sequence[Plan], words: Sequence[Word]) -> list[list[str]]:
    return [[word(plan) for plan in plans] for word in words]


def _figures(row: Row) -> dict[str, str]:
    """The figures of a row by the heads of their columns."""
    return labelled(PLAN, row, "terminal")


def _table(
    figures: Sequence[Mapping[str, str]], layouts: Sequence[str], below: Sequence[str], width: int
) -> Iterator[str]:
    """A line of numbers for each plan, its layout beside or above them, and what is below it."""
    heads, numbers = list(figures[0]), [list(one.values()) for one in figures]
    margin = len(str(len(numbers))) + 2
    sizes = [max(map(len, column)) for column in zip(heads, *numbers, strict=True)]
    space = min(width - margin - sum(sizes) - 2 * len(sizes), max(map(len, layouts)))
    space = space if space >= min(NARROWEST, max(map(len, layouts))) else 0

    def line(left: str, values: Sequence[str]) -> str:
        return escape(left + "".join(f"  {value:>{size}}" for value, size in zip(values, sizes, strict=True)))

    head = f"{'#':<{margin}}{'layout' if space else '':{space}}"
    yield f"[bold]{line(head, heads)}[/]"
    for at, (values, layout, note) in enumerate(zip(numbers, layouts, below, strict=True), 1):
        start = f"{at:<{margin}}"
        first, *more = wrapped(layout, space or width - margin)
        if space:
            yield line(f"{start}{first:{space}}", values)
        else:
            yield escape(start + first)
        yield from (escape(" " * margin + one) for one in more)
        if not space:
            yield line(" " * margin, values)
        for one in wrapped(note, width - margin):
            yield f"[dim]{escape(' ' * margin + one)}[/]"


def _below(row: Row) -> str:
    """Why a plan is slower than the first, which phase decides its head-room, and what is like it."""
    parts = [beside_first(row)]
    if row.verdict.phase != "training":
        parts.append(f"its head-room is that {WHILE[row.verdict.phase]}")
    if not row.verdict.fits:
        parts.append(row.verdict.word)
    if row.plan.alike:
        parts.append(like_it(row.plan))
    return "; ".join(filter(None, parts))


def like_it(plan: Plan) -> str:
    """How many plans of its idea are nearly as good, and in what they differ."""
    others: list[tuple[str, Callable[[Plan], int]]] = [
        ("vpp", lambda one: one.virtual),
        ("cp", lambda one: one.job.layout.cp),
        ("micro batch", lambda one: one.job.training.micro_batch_size),
    ]
    said = []
    for name, value in others:
        found = {value(one) for one in plan.alike} - {value(plan)}
        if found:
            said.append(f"{name} {_values(found)}")
    ways = {_context(one).split()[-1] for one in plan.alike if one.job.layout.cp == plan.job.layout.cp > 1}
    said += sorted(ways - {_context(plan).split()[-1]})
    said += sorted({_split(one) for one in plan.alike} - {_split(plan)})
    modules = {one.recompute for one in plan.alike} - {plan.recompute}
    if modules:
        said.append(f"recompute {' or '.join(sorted(modules)) if len(modules) < 3 else f'{len(modules)} other sets'}")
    fastest = max(one.tokens_per_s_gpu for one in plan.alike) / plan.tokens_per_s_gpu - 1
    faster = f", up to {fastest:.1%} faster" if fastest >= 0.0005 else ""
    text = ", ".join(said) or "other shapes"
    return f"+ {len(plan.alike)} like it within {NEAR - 1:.0%}{faster}: {text}"


def _values(values: Iterable[int]) -> str:
    """Numbers in few words."""
    found = sorted(values)
    return " or ".join(map(str, found)) if len(found) < 3 else f"{found[0]} to {found[-1]}"
