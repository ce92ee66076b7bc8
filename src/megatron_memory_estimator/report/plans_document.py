"""The JSON document of `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..planner.found import Found
from ..planner.launch import megatron_lm
from ..planner.launch_bridge import bridge_overrides, bridge_sections
from .document import bounds
from .plans import Row, layout_text, split_text, virtual, warnings

SCHEMA = "megatron-memory-plan/1"


def found_document(found: Found, rows: Sequence[Row], said: Sequence[str]) -> dict[str, Any]:
    """The JSON document of a search."""
    return {
        "schema": SCHEMA,
        "objective": found.objective,
        "limit_bytes": found.limit,
        "interrupted": found.interrupted,
        "fewest_gpus": found.fewest_gpus,
        "space": {name: list(values) for name, values in vars(found.space).items()},
        "counts": {
            "examined": found.examined,
            "legal": found.legal,
            "fits": found.fits,
            "tight": found.tight,
            "too_large": found.too_large,
            "ruled_out": dict(found.illegal.most_common()),
        },
        "plans": [plan_document(row, found.limit) for row in rows],
        "front": [
            {
                "peak_allocated_bytes": plan.peak_allocated_bytes,
                "tokens_per_s_gpu": plan.tokens_per_s_gpu,
                "layout": layout_text(plan),
            }
            for plan in found.front
        ],
        "least": None
        if found.least is None
        else {"device_bytes": bounds(found.least.device), "layout": layout_text(found.least)},
        "assumptions": list(said),
        "warnings": warnings(rows),
    }


def plan_document(row: Row, limit: int) -> dict[str, Any]:
    """One plan."""
    job, time = row.plan.job, row.time
    launch = megatron_lm(job)
    return {
        "layout": {
            "num_gpus": job.layout.world_size,
            "tensor_model_parallel_size": job.layout.tp,
            "context_parallel_size": job.layout.cp,
            "cp_comm_type": list(job.layout.cp_comm_type),
            "pipeline_model_parallel_size": job.layout.pp,
            "virtual_pipeline_model_parallel_size": virtual(row.plan),
            "split": split_text(row.plan),
            "expert_model_parallel_size": job.layout.ep,
            "expert_tensor_parallel_size": job.layout.etp,
            "sequence_parallel": job.layout.sequence_parallel,
            "data_parallel_size": job.layout.dp,
        },
        "micro_batch_size": job.training.micro_batch_size,
        "global_batch_size": job.training.global_batch_size,
        "num_microbatches": job.num_microbatches,
        "recompute": row.plan.recompute,
        "precision": row.plan.precision,
        "use_distributed_optimizer": job.training.use_distributed_optimizer,
        "use_precision_aware_optimizer": job.training.use_precision_aware_optimizer,
        "optimizer_offload_fraction": job.training.optimizer_offload_fraction
        if job.training.optimizer_cpu_offload
        else 0.0,
        "step_s": time.step,
        "tokens_per_s_gpu": time.tokens_per_s_gpu,
        "tflops_gpu": time.tflops_gpu,
        "mfu": time.mfu,
        "bubble": time.bubble,
        "exposed": time.exposed,
        "parts_s": time.parts,
        "limited_by": row.limit_text,
        "peak_allocated_bytes": row.plan.peak_allocated_bytes,
        "peak_stage": row.estimate.peak_stage.pp_rank,
        "verdict": str(row.estimate.verdict(limit)),
        "phase": row.estimate.verdict(limit).phase,
        "device_bytes": bounds(row.plan.device),
        "head_room_bytes": bounds(row.estimate.verdict(limit).head_room),
        "peak_of_stages_bytes": [stage.peak_allocated_bytes for stage in row.estimate.stages],
        "launch": {
            "megatron_lm": launch.words(),
            "settings_without_argument": launch.beside,
            "bridge_overrides": bridge_overrides(job),
            "bridge": bridge_sections(job),
        },
    }
