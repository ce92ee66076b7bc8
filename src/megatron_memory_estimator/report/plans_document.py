"""The JSON document of `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..device.verdict import Verdict
from ..job.training_job import TrainingJob
from ..planner.found import Found, Plan
from ..planner.launch import bridge_overrides, bridge_sections, environment, megatron_lm
from .document import bounds
from .plans import Row, apart_rows, layout_text, plan_settings, warnings

SCHEMA = "megatron-memory-plan/1"


def found_document(found: Found, rows: Sequence[Row], said: Sequence[str]) -> dict[str, Any]:
    """The JSON document of a search.

    The settings of a plan, added to what was asked, describe it.
    """
    least = found.least
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
        "plans": [
            {**plan_document(row), "settings": {**found.habits, **plan_settings(row.plan, found.asked)}} for row in rows
        ],
        "tight_plans": [_apart(row) for row in apart_rows(found)],
        "front": [_on_the_front(plan) for plan in found.front],
        "least": None if least is None else {"device_bytes": bounds(least.device), "layout": layout_text(least)},
        "assumptions": list(said),
        "warnings": warnings(rows),
    }


def _apart(row: Row) -> dict[str, Any]:
    """A tight plan that is better than the first that fits."""
    return {**_on_the_front(row.plan), "device_bytes": bounds(row.plan.device), "verdict": str(row.verdict)}


def _on_the_front(plan: Plan) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": plan.peak_allocated_bytes,
        "tokens_per_s_gpu": plan.tokens_per_s_gpu,
        "layout": layout_text(plan),
    }


def plan_document(row: Row) -> dict[str, Any]:
    """One plan."""
    return {
        "layout": _layout(row.plan),
        **_training(row.plan),
        **_seconds(row),
        **_bytes(row, row.verdict),
        "alike": len(row.plan.alike),
        "launch": _launch(row.plan.job),
    }


def _layout(plan: Plan) -> dict[str, Any]:
    layout = plan.job.layout
    return {
        "num_gpus": layout.world_size,
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "cp_comm_type": list(layout.cp_comm_type),
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": plan.virtual,
        "split": plan.split,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "sequence_parallel": layout.sequence_parallel,
        "data_parallel_size": layout.dp,
    }


def _training(plan: Plan) -> dict[str, Any]:
    t = plan.job.training
    return {
        "micro_batch_size": t.micro_batch_size,
        "global_batch_size": t.global_batch_size,
        "num_microbatches": plan.job.num_microbatches,
        "recompute": plan.recompute,
        "precision": plan.precision,
        "use_distributed_optimizer": t.use_distributed_optimizer,
        "use_precision_aware_optimizer": t.use_precision_aware_optimizer,
        "optimizer_offload_fraction": t.optimizer_offload_fraction if t.optimizer_cpu_offload else 0.0,
    }


def _seconds(row: Row) -> dict[str, Any]:
    time = row.time
    return {
        "step_s": time.step,
        "tokens_per_s_gpu": time.tokens_per_s_gpu,
        "tflops_gpu": time.tflops_gpu,
        "mfu": time.mfu,
        "bubble": time.bubble,
        "exposed": time.exposed,
        "parts_s": time.parts,
        "limited_by": row.limit_text,
    }


def _bytes(row: Row, found: Verdict) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": row.plan.peak_allocated_bytes,
        "peak_stage": row.estimate.peak_stage.pp_rank,
        "verdict": str(found),
        "phase": found.phase,
        "device_bytes": bounds(row.plan.device),
        "head_room_bytes": bounds(found.head_room),
        "peak_of_stages_bytes": [stage.peak_allocated_bytes for stage in row.estimate.stages],
    }


def _launch(job: TrainingJob) -> dict[str, Any]:
    launch = megatron_lm(job)
    return {
        "megatron_lm": launch.words(),
        "settings_without_argument": launch.beside,
        "bridge_overrides": bridge_overrides(job),
        "bridge": bridge_sections(job),
        "environment": environment(job),
    }
