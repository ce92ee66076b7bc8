"""Short answers of `plan` and `advise` for agents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from ..job.layout import SHORT
from ..job.training_job import TrainingJob
from ..planner.advise import Advice
from ..planner.changed_run import Outcome
from ..planner.found import Found
from ..planner.launch import megatron_lm
from ..wording import counted
from .advice import cost, headline, name_of
from .document import verdict_section
from .figures import gib
from .plans import Row, apart_rows, layout_text, nothing_fits, plan_settings, warnings
from .short import Document, in_gib, shortened
from .summary import notes_section

MOST_RULES = 5
SHORTER = {**{full: short for short, full in SHORT.items()}, "world_size": "num_gpus"}
"""Names of degrees as summaries give them back."""
PLAN_COLUMNS = (
    "layout", "settings", "recompute", "tokens_per_s_gpu", "mfu", "peak_allocated_gib", "head_room_low_gib", "head_room_high_gib",
    "verdict",
)  # fmt: skip
ADVICE_COLUMNS = (
    "change", "settings", "peak_allocated_gib", "device_low_gib", "device_high_gib", "verdict", "step_s", "gpu_time_change",
)  # fmt: skip


def plan_summary(found: Found, rows: Sequence[Row], said: Sequence[str]) -> Document:
    """The best plans as short rows, and launch arguments of the first.

    A row's settings and those of all plans, added to what was asked, describe the plan.
    """
    settings = [plan_settings(row.plan, found.asked) for row in rows]
    common = {
        name: value
        for name, value in (settings or [{}])[0].items()
        if all(name in one and one[name] == value for one in settings)
    }
    document: Document = {
        "answer": answer(found, rows),
        "plan_columns": list(PLAN_COLUMNS) if rows else [],
        "plans": [plan_row(row, one, common) for row, one in zip(rows, settings, strict=True)],
        "settings_of_all": {**found.habits, **common} if rows else {},
        "better_but_tight": [_apart(row) for row in apart_rows(found)],
        "counts": {name: getattr(found, name) for name in ("examined", "legal", "fits", "tight", "too_large")},
        **notes_section(said, warnings(rows)),
        **(first_section(rows[0]) if rows else nothing_section(found)),
    }
    return shortened({name: value for name, value in document.items() if value})


def _apart(row: Row) -> str:
    """A tight plan that is better than the first that fits, in a line."""
    return f"{layout_text(row.plan)}: {row.plan.tokens_per_s_gpu:,.0f} tokens/s/GPU, {row.verdict.word}"


def answer(found: Found, rows: Sequence[Row]) -> str:
    """What the search found, in one sentence."""
    if not rows:
        return nothing_fits(found)
    plan = rows[0].plan
    words = (plan.degrees, f"recompute {plan.recompute}")
    fewest = "" if found.fewest_gpus is None else f"the fewest that hold it: {counted(found.fewest_gpus, 'GPU')}; "
    return (
        f"{fewest}{found.fits:,} of {found.legal:,} legal layouts fit {gib(found.limit, 1)} GiB of {plan.job.gpu.name}; the best by "
        f"{found.objective}, on {counted(plan.job.layout.world_size, 'GPU')}: {', '.join(words)}"
    )


def first_section(row: Row) -> Document:
    """Launch arguments of the first plan."""
    launch = megatron_lm(row.plan.job)
    return {
        "launch_of_first": shlex.join(launch.words()),
        "without_argument": {name: str(value) for name, value in launch.beside.items()},
        "next": "estimate with your settings, settings_of_all and a row's settings gives the stages of a plan; "
        'detail="full" gives launch arguments of every plan',
    }


def nothing_section(found: Found) -> Document:
    """What ruled most layouts out, where there is no plan."""
    return {
        "ruled_out": {rule: count for rule, count in found.illegal.most_common(MOST_RULES) if count},
        "next": "fewest_gpus=true finds how many GPUs hold the model",
    }


def plan_row(row: Row, settings: Document, common: Document) -> list[Any]:
    """A plan as one row."""
    found, time = row.verdict, row.time
    room = found.head_room
    return [
        layout_text(row.plan),
        {name: value for name, value in settings.items() if name not in common},
        row.plan.recompute,
        round(time.tokens_per_s_gpu),
        round(time.mfu, 3),
        in_gib(row.plan.peak_allocated_bytes),
        in_gib(room.low),
        in_gib(room.high),
        found.word,
    ]


def advice_summary(advice: Advice) -> Document:
    """The verdict of a run, and its changes with the settings that make them."""
    now = advice.now
    first, second = headline(advice)
    notes = [f"{change.name}: {change.note}" for one in advice.outcomes for change in one.changes if change.note]
    document = {
        "answer": f"{first}; {second}",
        "verdict": verdict_section(now.verdict(advice.limit)),
        "purpose": "faster" if advice.faster else "fit",
        "advice_columns": list(ADVICE_COLUMNS),
        "advice": [advice_row(advice, one) for one in advice.outcomes],
        **notes_section(assumed(advice), now.job.warnings),
        "notes": list(dict.fromkeys(notes)),
        "next": "estimate or advise again with the settings of a change; plan with num_gpus searches all layouts",
    }
    return shortened({name: value for name, value in document.items() if value})


def assumed(advice: Advice) -> list[str]:
    """What was decided for the run and for its step time; what the step time decides anew is said once."""
    said = (*advice.now.job.assumptions, *advice.assumptions)
    return list({note.partition(":")[0]: note for note in said}.values())


def advice_row(advice: Advice, one: Outcome) -> list[Any]:
    """A change, or several together, as one row."""
    return [
        name_of(one),
        new_settings(one, advice.now.job),
        in_gib(one.peak),
        in_gib(one.device.low),
        in_gib(one.device.high),
        one.verdict(advice.limit).word,
        round(one.time.step, 3),
        round(cost(advice, one), 3),
    ]


def new_settings(one: Outcome, job: TrainingJob) -> Document:
    """The settings of the changes whose values the run does not have already."""
    now = {**vars(job.layout), **vars(job.training), **vars(job.env)}
    values = {name: value for change in one.changes for name, value in change.settings}
    new = {name: value for name, value in values.items() if now.get(name) != value}
    return {SHORTER.get(name, name): value for name, value in new.items()}
