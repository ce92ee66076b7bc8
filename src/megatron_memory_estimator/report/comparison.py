"""Several estimates side by side: a row per figure, a column per case, a mark where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ..device.verdict import Verdict
from ..estimator import Estimate
from ..modules.counts import count_parameters
from ..rank.rank import PARTS
from ..versions import assumptions
from .differences import differences
from .figures import gib
from .records import Record
from .settings_text import features_text, recompute_text
from .verdict import bounds_text, short_names

MARK = "*"
BEST, NOTHING, REFUSED = " (lowest)", "-", "refused"
PEAK, VERDICT = "peak allocated (GiB)", "verdict"
MOST_NAMES = 4
"""GPUs that are named in a cell."""
MARKS = {"assumptions": "assumed", "warnings": "warning"}


class Case(NamedTuple):
    """A name for the column, and its estimate."""

    label: str
    estimate: Estimate


class Refused(NamedTuple):
    """A name for the column, and why there is no estimate."""

    label: str
    refusal: str


Columns = Sequence[Case | Refused]


def figures(estimate: Estimate) -> dict[str, str]:
    """What is compared, in words and GiB of the fullest stage."""
    job, top = estimate.job, estimate.peak_stage
    layout, t, m = job.layout, job.training, job.model
    count = count_parameters(m)
    shares = top.breakdown_bytes
    found = estimate.verdict()
    return {
        "model": job.name,
        "parameters (B)": f"{count.total / 1e9:.2f}",
        "GPUs": str(layout.world_size),
        "tp": str(layout.tp),
        "pp": str(layout.pp),
        "vpp": str(len(estimate.stages[0].rank.plans)),
        "cp": str(layout.cp),
        "ep": str(layout.ep) if m.num_moe_experts else "-",
        "etp": str(layout.etp) if m.num_moe_experts else "-",
        "dp": str(layout.dp),
        "expert dp": str(layout.expert_dp) if m.num_moe_experts else "-",
        "layers per stage": _layers(estimate),
        "sequence parallel": "on" if layout.sequence_parallel else "off",
        "sequence": str(t.seq_length),
        "micro batch": str(t.micro_batch_size),
        "global batch": str(t.global_batch_size),
        "dtype": t.params_dtype,
        "gradients in": next((buffer.grad_dtype for buffer in top.rank.buffers), t.grad_dtype),
        "optimizer": f"{t.optimizer}{', distributed' if t.use_distributed_optimizer else ''}",
        "features": "; ".join(features_text(t)) or "none",
        "recompute": recompute_text(t),
        "attention": job.kernel,
        "libraries": f"TE {t.transformer_engine_version}, Megatron-Core {t.megatron_core_version}",
        "fullest stage": str(top.pp_rank),
        **{f"{name} (GiB)": gib(shares[name]) for name in PARTS},
        PEAK: gib(top.peak_allocated_bytes),
        "on the device (GiB)": bounds_text(estimate.device),
        "head-room (GiB)": bounds_text(found.head_room),
        VERDICT: f"{job.gpu.name}: {found}{_phase(found)}",
        "fits": _fitting(estimate),
    }


def _layers(estimate: Estimate) -> str:
    """Layers of the stages, equal neighbours together: `7 + 6 x 8 + 5`."""
    counts = [sum(len(plan.chunk.layers) for plan in stage.rank.plans) for stage in estimate.stages]
    groups = [(len(list(group)), count) for count, group in groupby(counts)]
    return " + ".join(f"{many} x {count}" if many > 1 else str(count) for many, count in groups)


def _phase(found: Verdict) -> str:
    return "" if found.phase == "training" else f" ({found.phase} decides)"


def _fitting(estimate: Estimate) -> str:
    """The GPUs of the catalogue that it fits, the first few by name."""
    names = short_names()
    fits = [names[found.gpu] for found in estimate.verdicts() if found.fits]
    more = f" and {len(fits) - MOST_NAMES} more" if len(fits) > MOST_NAMES else ""
    return ", ".join(fits[:MOST_NAMES]) + more or "none of the catalogue"


def records(cases: Columns) -> list[Record]:
    """One record per case with plain numbers; all but its name and the reason are None where it is refused."""
    found = [_record(case.estimate) if isinstance(case, Case) else None for case in cases]
    empty: Record = dict.fromkeys(next(one for one in found if one is not None))
    return [
        {"case": case.label, **(one or empty), "refusal": case.refusal if isinstance(case, Refused) else None}
        for case, one in zip(cases, found, strict=True)
    ]


def _record(estimate: Estimate) -> Record:
    job, top, found = estimate.job, estimate.peak_stage, estimate.verdict()
    layout, t = job.layout, job.training
    return {
        "model": job.name,
        "num_parameters": count_parameters(job.model).total,
        "num_gpus": layout.world_size,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": len(estimate.stages[0].rank.plans),
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "layers_per_stage": _layers(estimate),
        "data_parallel_size": layout.dp,
        "expert_data_parallel_size": layout.expert_dp,
        "sequence_parallel": layout.sequence_parallel,
        "seq_length": t.seq_length,
        "micro_batch_size": t.micro_batch_size,
        "global_batch_size": t.global_batch_size,
        "params_dtype": t.params_dtype,
        "optimizer": t.optimizer,
        "use_distributed_optimizer": t.use_distributed_optimizer,
        "features": "; ".join(features_text(t)) or None,
        "recompute": recompute_text(t),
        "attention_kernel": job.kernel,
        "peak_stage": top.pp_rank,
        **{f"{name}_bytes": top.breakdown_bytes[name] for name in PARTS},
        "peak_allocated_bytes": top.peak_allocated_bytes,
        "device_low_bytes": found.device.low,
        "device_high_bytes": found.device.high,
        "gpu": found.gpu,
        "gpu_memory_bytes": found.memory_bytes,
        "head_room_low_bytes": found.head_room.low,
        "head_room_high_bytes": found.head_room.high,
        "verdict": str(found),
        "phase": found.phase,
    }


def rows(cases: Columns, *, every: bool = True) -> list[tuple[str, ...]]:
    """(mark, figure, one value per case); the lowest peak is named. Without `every`, what differs, the peak and the verdict."""
    answers = [figures(case.estimate) for case in cases if isinstance(case, Case)]
    peaks = {case.estimate.peak_stage.peak_allocated_bytes for case in cases if isinstance(case, Case)}
    table = []
    for name in answers[0]:
        values = [
            _value(case, one, name, min(peaks) if len(peaks) > 1 else None) for case, one in _beside(cases, answers)
        ]
        differs = len({one[name] for one in answers}) > 1
        if every or differs or name in (PEAK, VERDICT):
            table.append((MARK if differs else "", name, *values))
    return table


def _beside(cases: Columns, answers: Sequence[dict[str, str]]) -> Iterator[tuple[Case | Refused, dict[str, str]]]:
    """Every case with its figures, those that are refused with none."""
    each = iter(answers)
    yield from ((case, next(each) if isinstance(case, Case) else {}) for case in cases)


def _value(case: Case | Refused, found: dict[str, str], name: str, lowest: int | None) -> str:
    if isinstance(case, Refused):
        return f"{REFUSED}: {case.refusal}" if name == VERDICT else NOTHING
    best = name == PEAK and case.estimate.peak_stage.peak_allocated_bytes == lowest
    return found[name] + (BEST if best else "")


def notes(cases: Columns) -> list[str]:
    """What was assumed and warned about; a note of all cases once, others with the case's name."""
    found: list[str] = []
    for word in ("assumptions", "warnings"):
        answered = [case for case in cases if isinstance(case, Case)]
        said = [
            assumptions(case.estimate) if word == "assumptions" else case.estimate.job.warnings for case in answered
        ]
        for case, notes_of_case in zip(answered, said, strict=True):
            for note in notes_of_case:
                common = all(note in other for other in said)
                line = f"{MARKS[word]}: {note}" if common else f"{MARKS[word]}: {case.label}: {note}"
                if line not in found:
                    found.append(line)
    return found


def as_json(cases: Columns) -> dict[str, Any]:
    """The compared figures, what differs, and every whole estimate."""
    table = rows(cases)
    return {
        "schema": "megatron-memory-compare/1",
        "cases": [_case(case) for case in cases],
        "differs": [row[1] for row in table if row[0]],
        "figures": {row[1]: list(row[2:]) for row in table},
        **differences([case.estimate if isinstance(case, Case) else None for case in cases]),
    }


def _case(case: Case | Refused) -> dict[str, Any]:
    if isinstance(case, Refused):
        return {"label": case.label, "refusal": case.refusal}
    return {"label": case.label, "estimate": case.estimate.to_dict()}
