"""What `advise` prints: the run as it is, and changes of it with what they save and cost; and both as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..device.phases import lower_load
from ..device.verdict import Verdict
from ..job.training_job import TrainingJob
from ..planner.advise import Advice
from ..planner.changed_run import Outcome, cost_of
from ..planner.launch import off_flag
from ..wording import dashed
from .document import bounds
from .figures import gib
from .records import Record, verdict_record
from .verdict import ALLOCATOR, bounds_text, training_alone, verdict_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA = "megatron-memory-advice/1"
FEWEST = "`megatron-memory plan MODEL --min-num-gpus` finds how many GPUs hold it"
LEGEND = {
    "device GiB": "what the run takes of a GPU",
    "saves": "what its high end loses",
    "GPU time": "seconds of a step times GPUs, beside the run as it is",
}
NARROW = 80
"""Columns below which a column is left out."""


def print_advice(advice: Advice, console: Console) -> None:
    """The whole text report."""
    for line in (*now_lines(advice), *loading(advice), headline(advice)[1]):
        console.print(line, highlight=False, markup=False)
    if advice.outcomes:
        console.print(advice_table(advice, console.width))
        console.print("; ".join(f"{name}: {what}" for name, what in LEGEND.items()), highlight=False)
        console.print()
        for line in how(advice):
            console.print(line, highlight=False, markup=False)
    for note in advice.assumptions:
        console.print(f"assumed: {note}", highlight=False, markup=False)


def headline(advice: Advice) -> tuple[str, str]:
    """The verdict of the run with the time of its step, and what the changes are."""
    return ". ".join(now_lines(advice)).rstrip("."), about(advice, advice.now.verdict(advice.limit))


def now_lines(advice: Advice) -> tuple[str, str]:
    """The verdict of the run, and the time of its step."""
    now = advice.now
    found = now.verdict(advice.limit)
    verdict = f"{found.gpu}: {verdict_text(found, now.estimate)}"
    return verdict, f"A step takes {now.time.step:.3f} s ({now.time.tokens_per_s_gpu:,.0f} tokens/s/GPU)."


def loading(advice: Advice) -> Iterator[str]:
    """What training alone takes where another phase decides, and what would make a load smaller."""
    now = advice.now
    found = now.verdict(advice.limit)
    yield from training_alone(found, now.estimate)
    lower = lower_load(now.estimate.stages[found.pp_rank].rank) if found.phase == "load" else ""
    if lower and found.word != "fits":
        yield f"Loading takes less with: {lower}."


def about(advice: Advice, found: Verdict) -> str:
    """What the changes are, or that there are none."""
    if advice.faster:
        return (
            "Changes that keep it within memory and make it faster:"
            if advice.outcomes
            else "Nothing tried makes it faster."
        )
    if found.fits:
        return (
            "It fits; changes that leave more room, the cheapest first:"
            if advice.outcomes
            else "Nothing tried saves memory."
        )
    if any(one.device.high <= advice.limit for one in advice.outcomes):
        return "The smallest changes that make it fit surely, the cheapest first:"
    if advice.outcomes:
        return f"No change, and none of those tried together (two to four), makes it fit surely; {FEWEST}. What saves most:"
    return f"Nothing tried saves memory; {FEWEST}."


def advice_table(advice: Advice, width: int) -> Table:
    """A row for each change, or changes together; in a narrow terminal without what they save."""
    from rich import box
    from rich.table import Table

    verdicts = [str(one.verdict(advice.limit)) for one in advice.outcomes]
    each = len(set(verdicts)) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("#")
    table.add_column("change", overflow="fold")
    heads = ("device GiB", "saves\nGiB", "step s", "GPU time\nper step")
    saves = [gib(advice.now.device.high - one.device.high, 1) for one in advice.outcomes]
    for name in heads if width >= NARROW else (heads[0], *heads[2:]):
        table.add_column(name, justify="right", no_wrap=True)
    if each:
        table.add_column("verdict", overflow="fold")
    for number, (one, saved, verdict) in enumerate(zip(advice.outcomes, saves, verdicts, strict=True), 1):
        table.add_row(
            str(number),
            name_of(one),
            bounds_text(one.device),
            *([saved] if width >= NARROW else []),
            f"{one.time.step:.3f}",
            f"{round(cost(advice, one), 3) + 0.0:+.1%}",
            *([verdict] if each else []),
        )
    return table


def name_of(one: Outcome) -> str:
    """The changes of an outcome in one line."""
    return " + ".join(change.name for change in one.changes)


def cost(advice: Advice, one: Outcome) -> float:
    """How much longer a step takes on as many GPUs: GPU-seconds of a step, relative."""
    return cost_of(one) / cost_of(advice.now) - 1


def how(advice: Advice) -> Iterator[str]:
    """The options of each row, and what else is to know of its changes."""
    for number, one in enumerate(advice.outcomes, 1):
        yield f"{number}: {' '.join(option_words(one, advice.now.job))}"
    for note in dict.fromkeys(
        f"{change.name}: {change.note}" for one in advice.outcomes for change in one.changes if change.note
    ):
        yield f"note: {note}"


def option_words(one: Outcome, job: TrainingJob) -> Iterator[str]:
    """The settings of a changed run that differ from those of the run, as options; those that no option turns off behind `without`."""
    now = {**vars(job.layout), **vars(job.training), **vars(job.rollout), **vars(job.env)}
    given = {name: value for change in one.changes for name, value in change.settings if value != now[name]}
    if given.pop("expandable_segments", False):
        yield ALLOCATOR
    off = {name: flag for name, value in given.items() if value is False and (flag := off_flag(name))}
    gone = [name for name, value in given.items() if value in (None, False, ()) and name not in off]
    for name, value in given.items():
        if name not in gone:
            yield off.get(name) or _option(name, value)
    if gone := [name for name in gone if now[name]]:
        yield "without " + " ".join(_option(name, True) for name in gone)


def _option(name: str, value: Any) -> str:
    word = "--num-gpus" if name == "world_size" else dashed(name)
    if value is True:
        return word
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{word} '{text}'" if "|" in text else f"{word} {text}"


def advice_records(advice: Advice) -> list[Record]:
    """The run as it is with an empty change, then one record for each change or changes together."""
    return [_record(advice, one) for one in (advice.now, *advice.outcomes)]


def _record(advice: Advice, one: Outcome) -> Record:
    found = one.verdict(advice.limit)
    return {
        "change": name_of(one),
        "options": " ".join(option_words(one, advice.now.job)),
        "num_gpus": one.job.layout.world_size,
        "step_s": one.time.step,
        "tokens_per_s_gpu": one.time.tokens_per_s_gpu,
        "mfu": one.time.mfu,
        "gpu_time_change": cost(advice, one),
        "peak_allocated_bytes": one.peak,
        "saved_bytes": advice.now.peak - one.peak,
        **verdict_record(found),
        "pp_rank": found.pp_rank,
        "changes_numerics": "numerics" in one.asks,
    }


def advice_document(advice: Advice) -> dict[str, Any]:
    """The JSON document."""

    def figures(one: Outcome) -> dict[str, Any]:
        found = one.verdict(advice.limit)
        return {
            "peak_allocated_bytes": one.peak,
            "device_bytes": bounds(one.device),
            "head_room_bytes": bounds(found.head_room),
            "verdict": found.word,
            "phase": found.phase,
            "step_s": one.time.step,
            "tokens_per_s_gpu": one.time.tokens_per_s_gpu,
        }

    return {
        "schema": SCHEMA,
        "limit_bytes": advice.limit,
        "assumptions": list(advice.assumptions),
        "now": {**figures(advice.now), "peak_stage": advice.now.estimate.peak_stage.pp_rank},
        "purpose": "faster" if advice.faster else "fit",
        "advice": [
            {
                "changes": [
                    {"name": change.name, "settings": change.values(), **({"note": change.note} if change.note else {})}
                    for change in one.changes
                ],
                **figures(one),
                "saved_bytes": advice.now.peak - one.peak,
                "cost": cost(advice, one),
            }
            for one in advice.outcomes
        ],
    }
