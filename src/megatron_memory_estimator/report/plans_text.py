"""What `plan` prints: the plans, memory against throughput as a chart, what was ruled out, launch arguments.

What all plans have in common is said once above their table, and below each row why it is slower.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..job.assumption import short_of, shorts_of
from ..job.hardware import GIB
from ..planner.found import Found, Plan
from ..planner.launch import FORMS, environment, megatron_lm, unsaid
from ..planner.paying import Worth
from ..wording import counted
from .markup import escape
from .plan_words import CHANGES, NARROWEST, listed, plain, said_once
from .plans import (
    Row,
    answer,
    apart_rows,
    beside_first,
    crossing,
    first_paying,
    first_worth,
    likely_text,
    own_text,
    plan_figures,
    warnings,
)
from .quantities import gib
from .screen import room
from .verdict import DOES, next_lines

TITLES = {
    "megatron-lm": "Megatron-LM arguments",
    "yaml": "YAML",
    "bridge": "Megatron-Bridge overrides",
    "script": "Launch script",
}
"""What the first plan of an objective is."""


class Asked(NamedTuple):
    """What is printed beside the plans: launch arguments of one in a form, everything, and the words of the command for the next one."""

    shown: int = 1
    form: str = "none"
    verbose: bool = False
    command: tuple[str, ...] = ()


def print_found(found: Found, rows: Sequence[Row], console: Console, said: Sequence[str], asked: Asked) -> None:
    """The whole text report: the answer, the plans, then two lines of counts and assumptions; with -v all of these."""
    head = list(answer(found, rows))
    tail = list(_below_plans(found, rows, said, asked, console.width))
    launch = (
        list(launch_lines(rows[asked.shown - 1].plan, asked.shown, asked.form)) if rows and asked.form != "none" else []
    )
    for line in head:
        console.print(line, highlight=False, markup=False)
    lines = sys.maxsize if asked.verbose or launch else room(console, *map(Text, (*head, *tail)))
    for line in plan_lines(rows, console.width, lines) if rows else ():
        console.print(line, highlight=False, no_wrap=True)
    if asked.verbose:
        console.print()
        for line in front_chart(found, console.width, console.encoding) if rows else ():
            console.print(line, highlight=False, markup=False)
        console.print(counts_line(found) if found.state is not None else counts_table(found))
    for line in tail:
        console.print(line, highlight=False, markup=False, soft_wrap=line.startswith(("Next:", "    ")))
    for line in launch:
        console.print(line, highlight=False, markup=False, soft_wrap=True)  # to be copied


def _below_plans(found: Found, rows: Sequence[Row], said: Sequence[str], asked: Asked, width: int) -> Iterator[str]:
    """What stands below the plans: tight ones that are better, counts, what was decided, warnings, and what to type next."""
    if rows:
        yield from wrapped(likely_text(rows[0]), width) if asked.verbose else ()
        yield from apart_lines(found, rows, width, verbose=asked.verbose)
        yield from (line for text in worth_texts(found, verbose=asked.verbose) for line in wrapped(text, width))
    if run := own_text(found, rows):
        yield from wrapped(run, width)
    if not asked.verbose:
        yield counts_line(found)
    yield from assumed_lines(said, verbose=asked.verbose)
    yield from (f"warning: {warning}" for warning in warnings(rows))
    if rows and asked.command and asked.form == "none":
        yield from next_lines("plan", asked.command, ["--show", "1"], "its launch arguments", width)


MOST_PAYING = 2
"""Features that would pay that are named without -v."""
LARGE = 0.01, GIB
"""The share of a step, and the bytes, from which on what a feature is worth is said."""


def worth_texts(found: Found, *, verbose: bool) -> Iterator[str]:
    """Which features that are not on would pay in the first plan; with -v also what each that is on is worth."""
    share, nbytes = LARGE
    for one in first_worth(found) if verbose else ():
        if abs(one.saves) >= share or abs(one.takes) >= nbytes:
            yield f"In plan 1, {_worth(one)} (of a step, of a GPU)."
    if more := first_paying(found):
        shown = more if verbose else more[:MOST_PAYING]
        yield f"Would pay in plan 1: {'; '.join(map(_worth, shown))} (--features takes names)."


def _worth(one: Worth) -> str:
    change = f"{-one.saves:+.1%}" if abs(one.saves) >= 0.0005 else ""
    room = f"{one.takes / GIB:+.1f} GiB" if abs(one.takes) >= GIB / 10 else ""
    return f"{one.about.says} {' and '.join(filter(None, (change, room)))}"


def counts_line(found: Found) -> str:
    """How many layouts there are, and what became of them."""
    if found.state is not None:
        return "No layout was looked at: none can fit."
    resumes = "; none surely resumes" if found.trains_only else ""
    was = "was" if found.evaluated == 1 else "were"
    others = "; no other is as fast with as little memory" if found.plans and found.objective == "throughput" else ""
    return (
        f"{found.legal:,} legal layouts: {found.too_large:,} cannot fit, {found.evaluated:,} {was} evaluated{others}{resumes}. "
        f"Rules exclude {found.illegal.total():,} more (-v)."
    )


def assumed_lines(said: Sequence[str], *, verbose: bool) -> Iterator[str]:
    """What was decided: in a few words each, where there are such, or in sentences."""
    if not verbose and (short := shorts_of(said)):
        yield f"Assumed: {', '.join(short)} (-v: in full)."
    for note in said:
        if verbose or not short_of(note):
            yield f"assumed: {note}"


OTHERS = (
    "(what memory and speed depend on; a model's other arguments, such as tokenizer, rotary base and scaling, norm epsilon and router "
    "scaling, are those of your script)"
)


RECIPES = (
    "(what they do not name, such as fusions, dtypes of gradients and vocabulary, stays the recipe's own and may take other memory: "
    "`megatron-memory estimate RECIPE OVERRIDES` says how much)"
)


def launch_lines(plan: Plan, shown: int, form: str) -> Iterator[str]:
    """Launch arguments of a plan."""
    yield f"\n{TITLES[form]} of plan {shown} ({plan.job.layout.world_size} GPUs):"
    yield FORMS[form](plan.job)
    if form != "bridge":
        yield OTHERS
    if form == "script":  # which says the rest itself
        return
    if variables := environment(plan.job):
        yield "in its environment: " + " ".join(f"{name}={value}" for name, value in variables.items())
    if form == "bridge":
        yield RECIPES
        if plan.job.training.peft != "none":
            yield "the recipe's peft section stays as it is"
    else:
        yield from unsaid(plan.job, megatron_lm(plan.job))


def counts_table(found: Found) -> Table:
    """How many layouts there are, what became of them, and every rule."""
    table = Table("layouts", "", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].justify, table.columns[0].no_wrap = "right", True
    table.columns[1].overflow = "fold"
    for count, what in (
        (found.legal, "are legal"),
        (found.too_large, f"cannot fit in {gib(found.limit)} GiB, whatever is recomputed"),
        (found.evaluated, "were evaluated: no other can be better than the plans"),
        (found.fits, "of these fit"),
        (found.tight, "of these are tight, or fit only without fragmentation"),
        *((count, f"ruled out: {rule}") for rule, count in found.illegal.most_common() if count),
        (found.examined, "layouts of the space"),
    ):
        table.add_row(f"{count:,}", what)
    return table


ROWS, WIDEST = 6, 72
"""Rows of points, and columns that a chart takes at most."""


def front_chart(found: Found, width: int, encoding: str) -> Iterator[str]:
    """The lines of the chart; none for fewer than two plans."""
    points = sorted((plan.peak_allocated_bytes, plan.tokens_per_s_gpu) for plan in found.plans)
    if len(points) < 2:
        return
    mark = "\u2022" if encoding.lower().startswith("utf") else "o"
    (least, most), (slowest, fastest) = ((min(values), max(values)) for values in zip(*points, strict=True))
    high, low = f"{fastest:,.0f}", f"{slowest:,.0f}"
    label = max(len(high), len(low)) + 1
    columns = min(width, WIDEST) - label - 2
    grid = [[" "] * columns for _ in range(ROWS)]
    for nbytes, rate in points:
        across = round((nbytes - least) / max(most - least, 1) * (columns - 1))
        up = round((rate - slowest) / max(fastest - slowest, 1e-9) * (ROWS - 1))
        grid[ROWS - 1 - up][across] = mark
    yield "tokens/s/GPU of the plans and their memory:"
    for number, row in enumerate(grid):
        side = high if number == 0 else low if number == ROWS - 1 else ""
        yield f"{side:>{label}} |{''.join(row)}".rstrip()
    yield f"{'':{label}} +{'-' * columns}"
    left, right = gib(least, 1), gib(most, 1)
    yield f"{'':{label}}  {left}{'GiB allocated at the peak':^{columns - len(left) - len(right)}}{right}"


BETTER = {"throughput": "Faster", "memory": "Smaller at the peak", "head-room": "With more head-room"}
"""What plans apart are, by objective."""
LEGEND = {
    "pipeline layout": "layers divided over stages one by one, as a pipeline_model_parallel_layout (--show N)",
    "borders in the pattern": "sub-layers divided over stages one by one, as | in hybrid_layer_pattern (--show N)",
    "uneven split": "other counts of layers on the first and the last stage: first/last",
}

ASKED, LEAST = 5, 2
"""Plans that are shown before what is said of each, and at least."""


class Lines(NamedTuple):
    """The lines of a plan in the table: its layout and figures, and what is said of it."""

    figures: list[str]
    note: list[str]


def plan_lines(rows: Sequence[Row], width: int, room: int = sys.maxsize) -> list[str]:
    """The lines of the plans, marked up, none wider than the terminal: of so many as there is room for.

    Five plans come before what is said of each, and of those there are at least two.
    """
    common, layouts = said_once([row.plan for row in rows])
    above = [*map(escape, wrapped(("All plans: " if len(rows) > 1 else "") + listed(common), width))]
    meanings = [
        f"{name}: {meaning}"
        for name, meaning in LEGEND.items()
        if any(name in plain(one) for one in (*layouts, *common))
    ]
    if any(CHANGES in one for one in (*layouts, *common)):
        meanings.append(f"{CHANGES} changes the numbers that are computed (--features safe has none that does)")
    if any(row.plan.precision != "bf16" for row in rows):
        meanings.append(f"MFU: of the dense bf16 peak of the {rows[0].plan.job.gpu.name}")
    below = [escape(line) for meaning in meanings for line in textwrap.wrap(meaning, width)]
    head, plans = _table([_figures(row) for row in rows], layouts, [_below(row) for row in rows], width)
    lines: list[str] = []
    for full, number in _choices(len(rows)):
        table = [line for plan in plans[:number] for line in (*plan.figures, *(plan.note if full else ()))]
        left = [f"{counted(len(rows) - number, 'more plan')}"] * (number < len(rows)) + ["what slows each"] * (not full)
        more = [f"[dim]{' and '.join(left)}: -v, or a taller terminal[/]"] if left else []
        lines = [*above, head, *table, *(below if full else ()), *more]
        if len(lines) <= room:
            break
    return lines


def _choices(rows: int) -> Iterator[tuple[bool, int]]:
    """What may be shown of so many plans, the best first: whether what is said of each, and how many plans."""
    yield from ((True, number) for number in range(rows, min(rows, ASKED) - 1, -1))
    yield from ((False, number) for number in range(rows, min(rows, LEAST) - 1, -1))


def apart_lines(found: Found, rows: Sequence[Row], width: int, *, verbose: bool) -> Iterator[str]:
    """Tight plans that are better than the first: how many, or in a line each."""
    tight = apart_rows(found)
    if not tight:
        return
    if not verbose:
        best = (
            f"{tight[0].plan.tokens_per_s_gpu:,.0f} tokens/s/GPU"
            if found.objective == "throughput"
            else "-v names them"
        )
        yield from wrapped(
            f"{BETTER[found.objective]}, but may not fit: {counted(len(tight), 'layout')} ({best}; --tight ranks them).",
            width,
        )
        return
    yield from wrapped(f"{BETTER[found.objective]}, but they may not fit (--tight ranks them with the others):", width)
    for row, words in zip(tight, said_once([*(row.plan for row in rows), *found.apart])[1][len(rows) :], strict=True):
        shown = _figures(row)
        text = (
            f"{words}: {shown['tokens/s/GPU']} tokens/s/GPU, peak {shown['peak GiB']} GiB, head-room {shown['head-room GiB']} GiB, "
            f"{row.verdict.word}"
        )
        for number, line in enumerate(wrapped(text, width - 3)):
            yield ("-  " if not number else "   ") + line


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text."""
    return [plain(line) for line in textwrap.wrap(text, width, break_on_hyphens=False)]


def _figures(row: Row) -> dict[str, str]:
    """The figures of a row by the heads of their columns."""
    return plan_figures(row, "terminal")


def _table(
    figures: Sequence[Mapping[str, str]], layouts: Sequence[str], below: Sequence[str], width: int
) -> tuple[str, list[Lines]]:
    """The line of heads, and the lines of each plan: its numbers, its layout beside or above them, and what is below it."""
    heads, numbers = list(figures[0]), [list(one.values()) for one in figures]
    margin = len(str(len(numbers))) + 2
    sizes = [max(map(len, column)) for column in zip(heads, *numbers, strict=True)]
    space = min(width - margin - sum(sizes) - 2 * len(sizes), max(map(len, layouts)))
    space = space if space >= min(NARROWEST, max(map(len, layouts))) else 0

    def line(left: str, values: Sequence[str]) -> str:
        return escape(left + "".join(f"  {value:>{size}}" for value, size in zip(values, sizes, strict=True)))

    def plan(at: int, values: Sequence[str], layout: str, note: str) -> Lines:
        start, aside = f"{at:<{margin}}", " " * margin
        first, *more = wrapped(layout, space or width - margin)
        own = [line(f"{start}{first:{space}}", values) if space else escape(start + first)]
        own += [escape(aside + one) for one in more]
        own += [] if space else [line(aside, values)]
        return Lines(own, [f"[dim]{escape(aside + one)}[/]" for one in wrapped(note, width - margin)])

    head = line(f"{'#':<{margin}}{'layout' if space else '':{space}}", heads)
    plans = [plan(*each) for each in zip(range(1, len(layouts) + 1), numbers, layouts, below, strict=True)]
    return f"[bold]{head}[/]", plans


def _below(row: Row) -> str:
    """Why a plan is slower than the first, what leaves an NVLink domain, and which phase decides its head-room."""
    parts = [beside_first(row), crossing(row)]
    if row.judged.phase != "training":
        parts.append(f"it needs most memory to {DOES[row.judged.phase].do}")
    if row.judged.word != "fits":
        parts.append(row.judged.word)
    return "; ".join(filter(None, parts))
