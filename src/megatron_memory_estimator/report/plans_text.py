"""What `plan` prints: ideas, the front of memory against throughput, what was ruled out, launch arguments.

The front of memory against throughput as a chart of a terminal: the fastest plan for each amount of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ..planner.found import Found, Plan
from ..planner.launch import FORMS, environment, megatron_lm
from .plans import Row, nothing_fits, warnings
from .plans_table import apart_lines, plain, plan_lines, said_once
from .quantities import gib
from .verdict import room_text

RULES = 3
"""Rules that are named without `-v`."""
TITLES = {"megatron-lm": "Megatron-LM arguments", "yaml": "YAML", "bridge": "Megatron-Bridge overrides"}
FIRST = {"throughput": "the fastest", "memory": "the least peak", "head-room": "the most head-room"}
"""What the first plan of an objective is."""


def print_found(
    found: Found,
    rows: Sequence[Row],
    console: Console,
    *,
    said: Sequence[str],
    shown: int,
    form: str,
    verbose: bool = False,
) -> None:
    """The whole text report."""

    def say(line: str, *, whole: bool = False) -> None:
        console.print(line, highlight=False, soft_wrap=whole, markup=False)

    for line in headline(found, rows):
        console.print(line, highlight=False, markup=False)
    if rows:
        for line in plan_lines(found, rows, console.width):
            console.print(line, highlight=False, no_wrap=True)
        for line in apart_lines(found, rows, console.width):
            say(line)
        console.print()
        for line in front_chart(found, console.width, console.encoding):
            say(line)
    console.print(counts_table(found, verbose=verbose))
    for note in said:
        say(f"assumed: {note}")
    for warning in warnings(rows):
        say(f"warning: {warning}")
    if rows and form != "none":
        for line in launch_lines(rows[shown - 1].plan, shown, form):
            say(line, whole=True)  # to be copied


def headline(found: Found, rows: Sequence[Row]) -> Iterator[str]:
    """The answer in a sentence, or why there is none."""
    if found.interrupted:
        yield "interrupted: the best so far"
    if not rows:
        yield nothing_fits(found)
        return
    first = rows[0]
    if found.fewest_gpus is not None:
        words = plain(said_once([first.plan])[1][0])
        room = room_text(first.verdict.head_room)
        yield f"{found.fewest_gpus} GPUs hold it: {words}; {room} of {gib(found.limit, 1)}"
    memory = first.plan.job.gpu.memory_bytes
    kept = (
        f"{gib(memory - found.limit, 1)} GiB kept free"
        if found.limit < memory
        else "none kept free, --head-room keeps some"
    )
    yield f"{first.plan.job.gpu.name}, {gib(found.limit, 1)} GiB ({kept}): {FIRST[found.objective]} first"
    if first.verdict.not_counted:
        yield first.verdict.not_counted


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
    if variables := environment(plan.job):
        yield "in its environment: " + " ".join(f"{name}={value}" for name, value in variables.items())
    if form == "bridge":
        yield RECIPES
        if plan.job.training.peft != "none":
            yield "the recipe's peft section stays as it is"
    elif beside := megatron_lm(plan.job).beside:
        words = ", ".join(f"{name}={value}" for name, value in beside.items())
        yield f"without an argument in Megatron-LM: {words}"


def counts_table(found: Found, *, verbose: bool = False) -> Table:
    """How many layouts there are, and what became of them."""
    ruled_out = found.illegal.most_common()
    named = [(count, f"ruled out: {rule}") for rule, count in ruled_out[: None if verbose else RULES] if count]
    rest = sum(count for _, count in ruled_out[len(named) :])
    table = Table("layouts", "", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].justify, table.columns[0].no_wrap = "right", True
    table.columns[1].overflow = "fold"
    for count, what in (
        (found.fits, f"fit in {gib(found.limit)} GiB"),
        (found.tight, "are tight, or fit only without fragmentation"),
        (found.too_large, "do not fit"),
        *named,
        *([(rest, "ruled out by other rules (-v names them)")] if rest else []),
        (found.examined, "examined"),
    ):
        table.add_row(f"{count:,}", what)
    return table


ROWS, WIDEST = 6, 72
"""Rows of points, and columns that a chart takes at most."""


def front_chart(found: Found, width: int, encoding: str) -> Iterator[str]:
    """The lines of the chart; none for fewer than two plans."""
    points = [(plan.peak_allocated_bytes, plan.tokens_per_s_gpu) for plan in found.front]
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
    yield "tokens/s/GPU of the fastest plan for each amount of memory:"
    for number, row in enumerate(grid):
        side = high if number == 0 else low if number == ROWS - 1 else ""
        yield f"{side:>{label}} |{''.join(row)}".rstrip()
    yield f"{'':{label}} +{'-' * columns}"
    left, right = gib(least, 1), gib(most, 1)
    yield f"{'':{label}}  {left}{'GiB allocated at the peak':^{columns - len(left) - len(right)}}{right}"
