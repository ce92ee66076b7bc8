"""The report of `estimate_from_hf.py`: its sections and JSON keys, with this engine's figures.

The keys are those of the earlier script (ISEEKYAN/mbridge and its agent skill); "gb" in a key is 2^30 bytes, as there.
"""

from __future__ import annotations

import math
from typing import Any

from ..device.verdict import VERDICTS
from ..estimator import Estimate, Stage
from ..job.hardware import GIB
from ..versions import assumptions
from .verdict import verdict_text

LINE = "=" * 80
STATE = ("weights", "gradients", "optimizer")


def classic_document(estimate: Estimate) -> dict[str, Any]:
    """The earlier keys, the peak stage, and the whole `megatron-memory-estimate/1` document under `estimate`."""
    job = estimate.job
    top = estimate.peak_stage
    return {
        "model_type": job.model_type,
        "parallelism": {"tp": job.layout.tp, "pp": job.layout.pp, "ep": job.layout.ep, "cp": job.layout.cp},
        "training": {
            "micro_batch_size": job.training.micro_batch_size,
            "seq_length": job.training.seq_length,
            "num_gpus": job.layout.world_size,
        },
        "reports": [stage_report(stage) for stage in estimate.stages],
        "peak": {"pp_rank": top.pp_rank, "total_gb": top.peak_allocated_bytes / GIB},
        "estimate": estimate.to_dict(),
    }


def stage_report(stage: Stage) -> dict[str, Any]:
    """One pipeline stage: billions of parameters and elements, and GiB."""
    shares = stage.breakdown_bytes
    held = shares["weights"] + shares["gradients"]
    rest = stage.peak_allocated_bytes - held - shares["optimizer"]
    elements = sum(math.prod(row.local_shape) * row.copies for row in stage.rows if row.part not in STATE)
    return {
        "pp_rank": stage.pp_rank,
        "parameters_b": sum(stage.num_parameters) / 1e9,
        "activation_b": elements / 1e9,
        "weight_grad_gb": held / GIB,
        "weight_grad_optim_gb": (held + shares["optimizer"]) / GIB,
        "activation_gb": rest / GIB,
        "total_gb": stage.peak_allocated_bytes / GIB,
        "model_breakdown": "\n".join(tensors(stage)),
        "details": None,
    }


def tensors(stage: Stage) -> list[str]:
    """One line per tensor alive at the peak, largest first."""
    lines = [f"stage {stage.pp_rank}, alive at {stage.peak.candidate.label}:"]
    for row in sorted(stage.rows, key=lambda row: -row.nbytes):
        shape = "x".join(map(str, row.local_shape))
        lines.append(
            f"  {row.nbytes / GIB:9.3f} GiB  {row.part:11} {row.copies:4} x {row.dtype} {shape}  {row.name}: {row.why}"
        )
    return lines


def classic_text(estimate: Estimate, *, verbose: bool = False) -> str:
    """The summary, a section per stage, the peak over all stages, and the GPUs that it fits."""
    job, m, t = estimate.job, estimate.job.model, estimate.job.training
    layout = job.layout
    degrees = f"TP={layout.tp}, PP={layout.pp}, EP={layout.ep}, CP={layout.cp}"
    lines = [LINE, "CONFIGURATION SUMMARY", LINE, "", f"Model Type: {job.model_type}"]
    lines.append(f"Architecture: {m.num_layers}L-{m.hidden_size}H")
    if m.num_moe_experts:
        lines.append(f"MoE: {m.num_moe_experts} experts, top-{m.moe_router_topk}")
    lines += ["", "Parallelism:", f"  {degrees}, ETP={layout.etp}, DP={layout.dp}"]
    lines.append(f"  Sequence parallel: {'on' if layout.sequence_parallel else 'off'}")
    lines += ["", "Training:", f"  Micro Batch Size: {t.micro_batch_size}", f"  Sequence Length: {t.seq_length}"]
    lines += [f"  Total GPUs: {layout.world_size}", "", LINE, "MEMORY ESTIMATION RESULTS", LINE]
    for stage in estimate.stages:
        report = stage_report(stage)
        lines += [
            "",
            f"Pipeline Stage {stage.pp_rank}: {sum(len(plan.chunk.layers) for plan in stage.rank.plans)} layers",
            f"  Parameters: {report['parameters_b']:.2f}B",
            f"  Activations: {report['activation_b']:.2f}B elements",
            f"  Peak: {stage.peak.candidate.label}",
            "  Memory Breakdown:",
            f"    - Weights + Gradients: {report['weight_grad_gb']:.2f} GiB",
            f"    - Weights + Gradients + Optimizer: {report['weight_grad_optim_gb']:.2f} GiB",
            f"    - Activations and workspaces: {report['activation_gb']:.2f} GiB",
            f"    - Total: {report['total_gb']:.2f} GiB",
        ]
        if verbose:
            lines += ["", *tensors(stage)]
    top = estimate.peak_stage
    lines += [
        "",
        LINE,
        f"Peak Memory per GPU: {top.peak_allocated_bytes / GIB:.2f} GiB (stage {top.pp_rank}, allocated by torch)",
    ]
    found = estimate.verdict()
    lines.append(verdict_text(found, estimate))
    for word in VERDICTS:
        names = [found.gpu for found in estimate.verdicts() if found.word == word]
        if names:
            lines.append(f"{word.capitalize()}{' on' if word != 'fits' else ''}: {', '.join(names)}")
    lines.append(LINE)
    lines += [f"assumed: {note}" for note in assumptions(estimate)]
    lines += [f"warning: {note}" for note in job.warnings]
    return "\n".join(lines)
