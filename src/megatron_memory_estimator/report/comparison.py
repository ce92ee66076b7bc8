"""Several estimates side by side: a row per figure, a column per case, a mark where they differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..estimator import Estimate
from ..modules.counts import count_parameters
from ..rank.rank import PARTS
from .figures import gib
from .records import markdown_table
from .text import features_text, recompute_text

MARK = "*"
BEST = " (lowest)"
MARKS = {"assumptions": "assumed", "warnings": "warning"}


class Case(NamedTuple):
    """A name for the column, and its estimate."""

    label: str
    estimate: Estimate


def figures(case: Case) -> dict[str, str]:
    """What is compared, in words and GiB of the fullest stage."""
    job, top = case.estimate.job, case.estimate.peak_stage
    layout, t, m = job.layout, job.training, job.model
    count = count_parameters(m)
    shares = top.breakdown_bytes
    fits = [found.gpu for found in case.estimate.verdicts() if found.fits]
    return {
        "model": job.name,
        "parameters (B)": f"{count.total / 1e9:.2f}",
        "GPUs": str(layout.world_size),
        "tp": str(layout.tp),
        "pp": str(layout.pp),
        "vpp": str(len(case.estimate.stages[0].rank.plans)),
        "cp": str(layout.cp),
        "ep": str(layout.ep) if m.num_moe_experts else "-",
        "etp": str(layout.etp) if m.num_moe_experts else "-",
        "dp": str(layout.dp),
        "expert dp": str(layout.expert_dp) if m.num_moe_experts else "-",
        "layers per stage": "/".join(
            str(sum(len(plan.chunk.layers) for plan in stage.rank.plans)) for stage in case.estimate.stages
        ),
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
        "peak allocated (GiB)": gib(top.peak_allocated_bytes),
        "on the device (GiB)": f"{gib(case.estimate.device.low, 1)}-{gib(case.estimate.device.high, 1)}",
        "verdict": f"{job.gpu.name}: {case.estimate.verdict()}",
        "fits": ", ".join(fits) or "none of the catalogue",
    }


def rows(cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """(mark, figure, one value per case); the lowest peak is named."""
    found = [figures(case) for case in cases]
    peaks = [case.estimate.peak_stage.peak_allocated_bytes for case in cases]
    table = []
    for name in found[0]:
        values = [each[name] for each in found]
        if name.startswith("peak") and len(set(peaks)) > 1:
            values = [value + (BEST if peak == min(peaks) else "") for value, peak in zip(values, peaks, strict=True)]
        table.append((MARK if len(set(values)) > 1 else "", name, *values))
    return table


def notes(cases: Sequence[Case]) -> list[str]:
    """What was assumed and warned about; a note of all cases once, others with the case's name."""
    found: list[str] = []
    for word in ("assumptions", "warnings"):
        said = [getattr(case.estimate.job, word) for case in cases]
        for case, notes_of_case in zip(cases, said, strict=True):
            for note in notes_of_case:
                common = all(note in other for other in said)
                line = f"{MARKS[word]}: {note}" if common else f"{MARKS[word]}: {case.label}: {note}"
                if line not in found:
                    found.append(line)
    return found


def header(cases: Sequence[Case]) -> tuple[str, ...]:
    """The column names."""
    return ("", "", *(case.label for case in cases))


def markdown(cases: Sequence[Case]) -> str:
    """A Markdown table."""
    return markdown_table(header(cases), rows(cases))


def as_csv(cases: Sequence[Case]) -> str:
    """Comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([("differs", "figure", *header(cases)[2:]), *rows(cases)])
    return text.getvalue()


_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: "\\" + c for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def latex(cases: Sequence[Case]) -> str:
    """A LaTeX tabular."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"

    body = [line(row) for row in rows(cases)]
    columns = "ll" + "r" * len(cases)
    parts = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        line(header(cases)),
        r"\hline",
        *body,
        r"\hline",
        r"\end{tabular}",
    ]
    return "\n".join(parts) + "\n"


def as_table(cases: Sequence[Case]) -> Any:
    """A rich table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header(cases)):
        table.add_column(Text(name), justify="left" if index < 2 else "right", overflow="fold")
    for row in rows(cases):
        table.add_row(*map(Text, row), style="bold" if row[0] else "")
    return table


def as_json(cases: Sequence[Case]) -> dict[str, Any]:
    """The compared figures and every whole estimate."""
    table = rows(cases)
    return {
        "schema": "megatron-memory-compare/1",
        "cases": [{"label": case.label, "estimate": case.estimate.to_dict()} for case in cases],
        "differs": [row[1] for row in table if row[0]],
        "figures": {row[1]: list(row[2:]) for row in table},
    }


TEXT: dict[str, Callable[[Sequence[Case]], str]] = {"markdown": markdown, "csv": as_csv, "latex": latex}
