"""Short answers for agents: the verdict first, then what it is made of, then what to ask next.

Figures whose name ends in `gib` are GiB, those in `bytes` bytes.

Short answers of `plan` and `advise` for agents.

Documents that are short enough for an agent to read, as compact JSON.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..device.terms import Range
from ..estimator import Estimate, Stage
from ..modules.counts import count_parameters
from ..planner.advise import Advice
from ..planner.found import Found
from ..planner.launch import megatron_lm
from ..routing import routing
from ..timeline.timeline import Timeline
from ..versions import assumptions
from ..wording import LONGEST_MESSAGE, plain
from .advice import CHANGE, Considered, headline
from .comparison import ANSWERED, PEAK, Case, Columns, Refused, answers, changes, rows
from .comparison import notes as notes_of_cases
from .document import STAGE, TENSOR, VERDICT, features_text, recompute_text
from .largest import headline as largest_of
from .plan_words import layout_text
from .plans import COUNTS, Row, answer, apart_rows, own_text, plan_brief, warnings
from .quantities import brief, document, in_gib
from .stage_table import folded
from .verdict import other_gpus, verdict_text

MOST_STAGES = 16
MOST_TENSORS = 15
MOST_MODELS = 30
LONGEST_LABEL = 100
TENSOR_COLUMNS = ("name", "part", "shape", "dtype", "count", "gib", "why")
CASE_COLUMNS = ("case", "verdict", "phase", "stage", "device_low_gib", "device_high_gib", "peak_allocated_gib")
MODEL_COLUMNS = ("name", "parameters", "active_parameters")


def bounds_gib(value: Range) -> list[float]:
    """A range as two figures in GiB."""
    return [in_gib(value.low), in_gib(value.high)]


def estimate_summary(estimate: Estimate) -> Document:
    """The verdict, the stages, the peak, the other GPUs, and what was assumed."""
    job, top = estimate.job, estimate.peak_stage
    columns, stages, left = stage_rows(estimate.stages)
    found = {
        "answer": verdict_text(estimate.verdict(), estimate),
        "verdict": document(VERDICT, estimate.verdict()),
        **run_section(estimate),
        "stage_columns": columns,
        "stages": stages,
        "peak": {"stage": top.pp_rank, "allocated_gib": in_gib(top.peak_allocated_bytes), "when": top.peak.candidate.label},
        "device_gib_of_phases": phases_section(estimate),
        "routing": routing_summary(estimate),
        "other_gpus": {word: ", ".join(names) for word, names in other_gpus(estimate).items()},
        **notes_section(assumptions(estimate), job.warnings),
        "next": next_tool(estimate),
        **({"left_out": {"stages": left}} if left else {}),
    }  # fmt: skip
    return shortened({name: value for name, value in found.items() if value})


def run_section(estimate: Estimate) -> Document:
    """What is estimated: the model, the layout and the training in a few words."""
    job = estimate.job
    count, t, layout = count_parameters(job.model), job.training, job.layout
    degrees = {"tp": layout.tp, "pp": layout.pp, "vpp": len(estimate.stages[0].rank.plans), "cp": layout.cp}
    if job.model.num_moe_experts:
        degrees |= {"ep": layout.ep, "etp": layout.etp}
    return {
        "model": f"{job.name or 'model'}, {count.total:,} parameters, {count.active:,} active",
        "layout": {"num_gpus": layout.world_size, **degrees, "dp": layout.dp},
        "training": {
            "seq_length": t.seq_length,
            "micro_batch_size": t.micro_batch_size,
            "global_batch_size": t.global_batch_size,
            "recompute": recompute_text(t),
            **({"features": "; ".join(features_text(t))} if any(features_text(t)) else {}),
        },
    }


NEEDED = "device_high_gib"
"""The figure of a stage that says which are the fullest."""


def stage_rows(stages: Sequence[Stage]) -> tuple[list[str], list[list[Any]], int]:
    """Column names, one row for each stage, equal neighbours together (`2-6`), and how many of the less full are left out."""
    found = [brief(STAGE, stage) for stage in stages]
    rows = list(folded([[str(one["pp_rank"]), *[*one.values()][1:]] for one in found]))
    names = ["stages", "layers", *[*found[0]][2:]]
    needed = names.index(NEEDED)
    fullest = sorted(rows, key=lambda row: -row[needed])[:MOST_STAGES]
    return names, [row for row in rows if row in fullest], len(rows) - len(fullest)


def phases_section(estimate: Estimate) -> Document:
    """GiB on the device of the fullest stage in each phase that the verdict holds, where there are several."""
    phases = estimate.phases
    return {name: bounds_gib(found) for name, found in phases.items()} if len(phases) > 1 else {}


def routing_summary(estimate: Estimate) -> Document | None:
    """GiB at the peak with little, typical and much uneven routing; None where routing changes nothing."""
    found = routing(estimate)
    if found is None:
        return None
    names = ("low", "typical", "high")
    return {"phase": found.phase, "peak_allocated_gib": dict(zip(names, map(in_gib, found.peaks), strict=True))}


def notes_section(assumptions: Sequence[str], warnings: Sequence[str]) -> Document:
    """What was decided, and what is not as it seems."""
    return {"assumptions": list(assumptions), "warnings": list(warnings)}


def next_tool(estimate: Estimate) -> str:
    """Which tool to call next."""
    more = 'detail="full" gives every figure in bytes'
    if estimate.verdict().fits:
        return f"explain with stage={estimate.peak_stage.pp_rank} names the tensors of that peak; plan searches faster layouts; {more}"
    return f"advise with the same arguments says what to change; plan with num_gpus searches all layouts; {more}"


def explain_summary(estimate: Estimate, stage: int | None, at: str) -> Document:
    """The parts of a stage's memory at a moment, and its largest tensors."""
    chosen = estimate.stage(stage)
    title, total, tensors = chosen.at(at)
    parts: dict[str, int] = defaultdict(int)
    for row in tensors:
        parts[row.part] += row.nbytes
    largest = sorted(tensors, key=lambda row: -row.nbytes)
    rest = largest[MOST_TENSORS:]
    return shortened(
        {
            "answer": largest_of(chosen, at),
            "at": title,
            "allocated_bytes": total,
            "parts_gib": {name: in_gib(nbytes) for name, nbytes in sorted(parts.items(), key=lambda one: -one[1])},
            "tensor_columns": list(TENSOR_COLUMNS),
            "tensors": [[brief(TENSOR, row)[name] for name in TENSOR_COLUMNS] for row in largest[:MOST_TENSORS]],
            "other_tensors": {"count": len(rest), "gib": in_gib(sum(row.nbytes for row in rest))},
            **notes_section(assumptions(estimate), estimate.job.warnings),
            "next": 'at="steady" shows what stays between two steps; detail="full" lists every tensor',
        }
    )


def timeline_summary(estimate: Estimate, line: Timeline) -> Document:
    """The peak of a stage along a step, and its largest moments, equal ones together."""
    return shortened(
        {
            "answer": verdict_text(estimate.verdict(), estimate),
            "sentence": line.sentence,
            "steady_gib": in_gib(line.steady_allocated_bytes),
            "moment_columns": ["gib", "times", "first_at_s", "what"],
            "moments": [
                [in_gib(one.highest_bytes), times, None if one.start_s is None else round(one.start_s, 3), one.label]
                for one, times in line.largest(MOST_TENSORS)
            ],
            "next": 'explain names the tensors of the peak; detail="full" has every moment',
        }
    )


def compare_summary(cases: Columns) -> Document:
    """The verdict of every case, and the figures that differ."""
    table = [row for row in rows(cases) if row[1] not in {PEAK, *ANSWERED}]
    return shortened(
        {
            "answers": list(answers(cases)),
            "changes": list(changes(cases)),
            "case_columns": list(CASE_COLUMNS),
            "cases": [case_row(case) for case in cases],
            "differs": {name: values for mark, name, *values in table if mark},
            "same": sum(not mark for mark, *_ in table),
            "notes": notes_of_cases(cases),
            "next": 'estimate a case for its stages; detail="full" gives every figure and the whole estimate of each case',
        }
    )


def case_row(case: Case | Refused) -> list[Any]:
    """The verdict of a case as one row; of one that is refused, why."""
    if isinstance(case, Refused):
        return [plain(case.label, LONGEST_LABEL), f"refused: {case.refusal}", *[None] * (len(CASE_COLUMNS) - 2)]
    found = case.estimate.verdict()
    return [
        plain(case.label, LONGEST_LABEL),
        f"{found.gpu}: {found.word}",
        found.phase,
        found.pp_rank,
        *bounds_gib(found.device),
        in_gib(case.estimate.peak_stage.peak_allocated_bytes),
    ]


def models_summary(facts: Sequence[Document], others: int = 0) -> Document:
    """Names and parameters of models."""
    found = [
        [plain(one["name"]), *((count["total"], count["active"]) if count else (None, None))]
        for one in facts
        for count in [one["num_parameters"]]
    ]
    refused = [plain(one["name"]) for one in facts if one["refused"]]
    document = {
        "model_columns": list(MODEL_COLUMNS),
        "models": found,
        "memory_not_modelled": refused,
        "other_models": others,
    }
    more = "a word of a name or type shows others; one name says why its memory is not modelled"
    return shortened({**{name: value for name, value in document.items() if value}, "next": more})


MOST_RULES = 5


def plan_summary(found: Found, rows: Sequence[Row], said: Sequence[str]) -> Document:
    """The best plans as short rows, and launch arguments of the first.

    A row's settings and those of all plans, added to what was asked, describe the plan.
    """
    plans = [plan_brief(row) for row in rows]
    settings = [plan["settings"] for plan in plans]
    common = {
        name: value
        for name, value in (settings or [{}])[0].items()
        if all(name in one and one[name] == value for one in settings)
    }
    answered: Document = {
        "answer": " ".join(answer(found, rows)),
        "plan_columns": list(plans[0]) if rows else [],
        "plans": [
            [*{**plan, "settings": {name: value for name, value in own.items() if name not in common}}.values()]
            for plan, own in zip(plans, settings, strict=True)
        ],
        "settings_of_all": common,
        "own_run": own_text(found, rows),
        "better_but_tight": [_apart(row) for row in apart_rows(found)],
        "counts": document(COUNTS, found),
        **notes_section(said, warnings(rows)),
        **(first_section(rows[0]) if rows else nothing_section(found)),
    }
    return shortened({name: value for name, value in answered.items() if value})


def _apart(row: Row) -> str:
    """A tight plan that is better than the first that fits, in a line."""
    return f"{layout_text(row.plan)}: {row.plan.tokens_per_s_gpu:,.0f} tokens/s/GPU, {row.verdict.word}"


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


CHARACTERS_PER_TOKEN = 4
"""Of English text, as OpenAI's guide to tokens has it (help.openai.com, "What are tokens and how to count them?")."""
MOST_TOKENS = 1500
LEFT_OUT = "left_out"
COLUMNS = (
    "stage_columns",
    "plan_columns",
    "advice_columns",
    "tensor_columns",
    "model_columns",
    "case_columns",
    "moment_columns",
)
WHOLE = ("verdict", "cases", *COLUMNS)
"""Parts of a summary that are never cut."""
STEP = 8
"""What is too long loses an eighth at a time."""

Document = dict[str, Any]


def compact(document: Any) -> str:
    """JSON without spaces."""
    return json.dumps(document, separators=(",", ":"))


def tokens(text: str) -> int:
    """Tokens of a text: its characters by four, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def shortened(document: Document, most: int = MOST_TOKENS) -> Document:
    """The document with its longest lists cut to so many tokens; `left_out` says how much of what is missing.

    Where no list is left to cut, what is longer than a sentence goes: half of a command line would be no use.
    """
    found = dict(document)
    left: dict[str, int] = dict(found.pop(LEFT_OUT, {}))
    while tokens(compact(_with(found, left))) > most:
        name = _longest(found)
        if name is None:
            gone = [key for key, value in found.items() if isinstance(value, str) and len(value) > LONGEST_MESSAGE]
            left |= dict.fromkeys(gone, 1)
            return _with({key: value for key, value in found.items() if key not in gone}, left)
        kept = len(found[name]) - max(len(found[name]) // STEP, 1)
        left[name] = left.get(name, 0) + len(found[name]) - kept
        found[name] = _first(found[name], kept)
    return _with(found, left)


def _with(found: Document, left: dict[str, int]) -> Document:
    return {**found, LEFT_OUT: left} if left else found


def _longest(found: Document) -> str | None:
    """The longest list or mapping that may be cut."""
    sizes = {
        name: len(compact(value))
        for name, value in found.items()
        if name not in WHOLE and isinstance(value, list | dict) and value
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def _first(value: Any, count: int) -> Any:
    return dict(list(value.items())[:count]) if isinstance(value, dict) else value[:count]
