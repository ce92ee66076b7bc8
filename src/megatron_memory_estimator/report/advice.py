"""What `advise` prints: the run as it is, and changes of it with what they save and cost."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..job.training_job import TrainingJob
from ..planner.advise import Advice, Outcome, cost_of
from ..planner.changes import Change
from .document import bounds
from .figures import gib
from .verdict import bounds_text, verdict_text

SCHEMA = "megatron-memory-advice/1"


def print_advice(advice: Advice, console: Console) -> None:
    """The whole text report."""
    for line in headline(advice):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if advice.outcomes:
        console.print(advice_table(advice), soft_wrap=True)
        for note in notes(advice):
            console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
    for note in advice.assumptions:
        console.print(f"assumed: {note}", highlight=False, soft_wrap=True, markup=False)


def headline(advice: Advice) -> list[str]:
    """The verdict of the run, and what the table is about."""
    now = advice.now
    top = now.estimate.peak_stage
    found = now.verdict(advice.limit)
    first = (
        f"{found.gpu}: {verdict_text(found, now.estimate)}; {gib(top.peak_allocated_bytes)} GiB allocated at the peak; "
    )
    if not now.timed:
        first += "its step time is not modelled (the optimizer is in host memory)"
    else:
        first += f"a step takes {now.time.step:.3f} s ({now.time.tokens_per_s_gpu:,.0f} tokens/s/GPU)"
    if advice.faster and not now.timed:
        second = "it fits with room; what would make it faster is not modelled"
    elif advice.faster:
        second = (
            "changes that keep it within memory and make it faster:"
            if advice.outcomes
            else "nothing tried makes it faster"
        )
    elif any(one.device.high <= advice.limit for one in advice.outcomes):
        second = "the smallest changes that make it fit surely, the cheapest first:"
    elif advice.outcomes:
        second = "no change, and no two or three together, make it fit surely; what saves most:"
    else:
        second = "nothing tried saves memory; `megatron-memory plan` searches the whole space"
    return [first, second]


def advice_table(advice: Advice) -> Table:
    """A row for each change, or changes together."""
    table = Table(
        "change",
        "peak GiB",
        "saves GiB",
        "device GiB",
        "verdict",
        "step s",
        "step",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for one in advice.outcomes:
        table.add_row(
            name_of(one),
            gib(one.peak),
            gib(advice.now.peak - one.peak),
            bounds_text(one.device),
            str(one.verdict(advice.limit)),
            f"{one.time.step:.3f}" if one.timed else "not modelled",
            f"{cost(advice, one):+.1%}" if one.timed and advice.now.timed else "",
        )
    return table


def name_of(one: Outcome) -> str:
    """The changes of an outcome in one line."""
    return " + ".join(change.name for change in one.changes)


def cost(advice: Advice, one: Outcome) -> float:
    """How much longer a step takes on as many GPUs: GPU-seconds of a step, relative."""
    return cost_of(one) / cost_of(advice.now) - 1


def notes(advice: Advice) -> list[str]:
    """What goes with some of the changes."""
    found = {f"{change.name}: {change.note}": None for one in advice.outcomes for change in one.changes if change.note}
    for one in advice.outcomes:
        for change in one.changes:
            words = settings_text(change, advice.now.job)
            if words:
                found[f"{change.name}: {words}"] = None
    return [*found, "step: GPU-seconds of a step relative to now"]


def settings_text(change: Change, job: TrainingJob) -> str:
    """The settings of a change that its name does not say, and those of the run that it removes; nothing where it says all."""
    now = {**vars(job.layout), **vars(job.training), **vars(job.env)}
    values, nothing = change.values(), (None, False, ())
    removed = [name for name, v in values.items() if v in nothing and now.get(name) and name not in change.says]
    given = {name: v for name, v in values.items() if v not in nothing}
    if not removed and set(given) <= set(change.says):
        return ""
    set_to = [f"{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for name, v in given.items()]
    return "; ".join(part for part in (", ".join(set_to), f"without {', '.join(removed)}" if removed else "") if part)


def advice_records(advice: Advice) -> list[dict[str, Any]]:
    """The run as it is with an empty change, then one record for each change; None where a step time is not modelled."""
    return [_record(advice, one) for one in (advice.now, *advice.outcomes)]


def _record(advice: Advice, one: Outcome) -> dict[str, Any]:
    verdict = one.verdict(advice.limit)
    return {
        "change": name_of(one),
        "step_s": one.time.step if one.timed else None,
        "tokens_per_s_gpu": one.time.tokens_per_s_gpu if one.timed else None,
        "mfu": one.time.mfu if one.timed else None,
        "peak_allocated_bytes": one.peak,
        "saved_bytes": advice.now.peak - one.peak,
        "device_low_bytes": verdict.device.low,
        "device_high_bytes": verdict.device.high,
        "head_room_low_bytes": verdict.head_room.low,
        "head_room_high_bytes": verdict.head_room.high,
        "verdict": verdict.word,
        "phase": verdict.phase,
    }


def advice_document(advice: Advice) -> dict[str, Any]:
    """The JSON document."""

    def figures(one: Outcome) -> dict[str, Any]:
        return {
            "peak_allocated_bytes": one.peak,
            "device_bytes": bounds(one.device),
            "head_room_bytes": bounds(one.verdict(advice.limit).head_room),
            "verdict": str(one.verdict(advice.limit)),
            "phase": one.verdict(advice.limit).phase,
            "step_s": one.time.step if one.timed else None,
            "tokens_per_s_gpu": one.time.tokens_per_s_gpu if one.timed else None,
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
                "cost": cost(advice, one) if one.timed and advice.now.timed else None,
            }
            for one in advice.outcomes
        ],
    }
