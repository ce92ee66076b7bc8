"""Short answers of `plan` and `advise` for agents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..planner.advise import Advice
from ..planner.found import Found
from ..planner.launch import megatron_lm
from ..wording import counted
from .advice import CHANGE, Considered, headline
from .document import VERDICT
from .plans import COUNTS, PLAN, Row, apart_rows, layout_text, nothing_fits, plan_settings, warnings
from .quantities import brief, document, gib
from .short import Document, shortened
from .summary import notes_section

MOST_RULES = 5


def plan_summary(found: Found, rows: Sequence[Row], said: Sequence[str]) -> Document:
    """The best plans as short rows, and launch arguments of the first.

    A row's settings and those of all plans, added to what was asked, describe the plan.
    """
    plans = [brief(PLAN, row) for row in rows]
    settings = [plan_settings(row.plan, found.asked) for row in rows]
    common = {
        name: value
        for name, value in (settings or [{}])[0].items()
        if all(name in one and one[name] == value for one in settings)
    }
    answered: Document = {
        "answer": answer(found, rows),
        "plan_columns": list(plans[0]) if rows else [],
        "plans": [
            [*{**plan, "settings": {name: value for name, value in own.items() if name not in common}}.values()]
            for plan, own in zip(plans, settings, strict=True)
        ],
        "settings_of_all": {**found.habits, **common} if rows else {},
        "better_but_tight": [_apart(row) for row in apart_rows(found)],
        "counts": document(COUNTS, found),
        **notes_section(said, warnings(rows)),
        **(first_section(rows[0]) if rows else nothing_section(found)),
    }
    return shortened({name: value for name, value in answered.items() if value})


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


def advice_summary(advice: Advice) -> Document:
    """The verdict of a run, and its changes with the settings that make them."""
    now = advice.now
    first, second = headline(advice)
    changes = [brief(CHANGE, Considered(advice, one)) for one in advice.outcomes]
    notes = [f"{change.name}: {change.note}" for one in advice.outcomes for change in one.changes if change.note]
    answered = {
        "answer": f"{first}; {second}",
        "verdict": document(VERDICT, now.verdict(advice.limit)),
        "purpose": "faster" if advice.faster else "fit",
        "advice_columns": list(changes[0]) if changes else [],
        "advice": [[*one.values()] for one in changes],
        **notes_section(assumed(advice), now.job.warnings),
        "notes": list(dict.fromkeys(notes)),
        "next": "estimate or advise again with the settings of a change; plan with num_gpus searches all layouts",
    }
    return shortened({name: value for name, value in answered.items() if value})


def assumed(advice: Advice) -> list[str]:
    """What was decided for the run and for its step time; what the step time decides anew is said once."""
    said = (*advice.now.job.assumptions, *advice.assumptions)
    return list({note.partition(":")[0]: note for note in said}.values())
