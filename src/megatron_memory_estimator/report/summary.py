"""Short answers for agents: the verdict first, then what it is made of, then what to ask next.

Figures whose name ends in `gib` are GiB, those in `bytes` bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..device.terms import Range
from ..estimator import Estimate, Stage
from ..modules.counts import count_parameters
from ..routing import routing
from ..versions import assumptions
from ..wording import plain
from .comparison import Case, Columns, Refused, rows
from .comparison import notes as notes_of_cases
from .document import STAGE, TENSOR, VERDICT
from .quantities import brief, document, gib, in_gib
from .settings_text import features_text, recompute_text
from .short import Document, shortened
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
        "answer": f"{job.gpu.name}: {verdict_text(estimate.verdict(), estimate)}",
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


def stage_rows(stages: Sequence[Stage]) -> tuple[list[str], list[list[Any]], int]:
    """Column names, one row for each stage, equal neighbours together (`2-6`), and how many of the less full are left out."""
    found = [brief(STAGE, stage) for stage in stages]
    rows = list(folded([[str(one["pp_rank"]), *[*one.values()][1:]] for one in found]))
    fullest = sorted(rows, key=lambda row: -row[-1])[:MOST_STAGES]
    names = ["stages", "layers", *[*found[0]][2:]]
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
            "answer": f"stage {chosen.pp_rank} of {len(estimate.stages)}, {title}: {gib(total)} GiB allocated",
            "allocated_bytes": total,
            "parts_gib": {name: in_gib(nbytes) for name, nbytes in sorted(parts.items(), key=lambda one: -one[1])},
            "tensor_columns": list(TENSOR_COLUMNS),
            "tensors": [[brief(TENSOR, row)[name] for name in TENSOR_COLUMNS] for row in largest[:MOST_TENSORS]],
            "other_tensors": {"count": len(rest), "gib": in_gib(sum(row.nbytes for row in rest))},
            **notes_section(assumptions(estimate), estimate.job.warnings),
            "next": 'at="steady" shows what stays between two steps; detail="full" lists every tensor',
        }
    )


def compare_summary(cases: Columns) -> Document:
    """The verdict of every case, and the figures that differ."""
    shown = {"verdict", "peak allocated (GiB)", "on the device (GiB)", "fits"}
    table = [row for row in rows(cases) if row[1] not in shown]
    return shortened(
        {
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
