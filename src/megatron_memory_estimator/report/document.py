"""The JSON document of an estimate; bytes are whole numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..device.terms import Range
from ..device.verdict import Verdict, explain_terms
from ..estimator import Estimate, Stage
from ..job.model import Model
from ..job.settings import field_kind
from ..job.training_job import TrainingJob
from ..job.variants import as_object
from ..modules.counts import count_parameters
from ..modules.kinds import owners_of
from ..rank.rank import Row
from ..routing import routing
from ..versions import assumptions
from .owned import owned_section
from .verdict import verdict_sentence

SCHEMA = "megatron-memory-estimate/1"


def document(estimate: Estimate) -> dict[str, Any]:
    """Schema `megatron-memory-estimate/1`, described in docs/reference/json.md."""
    job = estimate.job
    top = estimate.peak_stage
    return {
        "schema": SCHEMA,
        "model": model_section(job),
        "layout": layout_section(estimate),
        "training": training_section(job),
        "stages": [stage_section(job, stage) for stage in estimate.stages],
        "peak": {
            "pp_rank": top.pp_rank,
            "allocated_bytes": top.peak_allocated_bytes,
            "device_bytes": bounds(top.device),
        },
        "routing": routing_section(estimate),
        "verdict": {**verdict_section(estimate.verdict()), "sentence": verdict_sentence(estimate)},
        "gpus": [
            {"name": found.gpu, "memory_bytes": found.memory_bytes, "verdict": found.word}
            for found in estimate.verdicts()
        ],
        "assumptions": list(assumptions(estimate)),
        "warnings": list(job.warnings),
    }


def routing_section(estimate: Estimate) -> dict[str, Any] | None:
    """Peaks with uneven routing; null where routing changes nothing or a factor was given."""
    found = routing(estimate)
    if found is None:
        return None
    names = ("low", "typical", "high")
    return {
        "phase": found.phase,
        "router_imbalance": dict(zip(names, found.factors, strict=True)),
        "peak_allocated_bytes": dict(zip(names, found.peaks, strict=True)),
    }


def explanation(estimate: Estimate, stage: int | None, at: str) -> dict[str, Any]:
    """Schema `megatron-memory-explain/1`: every tensor of a stage at its peak or between two steps."""
    chosen = estimate.stage(stage)
    title, total, rows = chosen.at(at)
    return {
        "schema": "megatron-memory-explain/1",
        "pp_rank": chosen.pp_rank,
        "at": at,
        "event": title,
        "allocated_bytes": total,
        "tensors": [row_section(row) for row in rows],
        "owned": owned_section(chosen.rank),
    }


def verdict_section(found: Verdict) -> dict[str, Any]:
    """What a run is on a GPU, and the phase and stage that decide it."""
    return {
        "gpu": found.gpu,
        "memory_bytes": found.memory_bytes,
        "verdict": found.word,
        "phase": found.phase,
        "pp_rank": found.pp_rank,
        "device_bytes": bounds(found.device),
        "head_room_bytes": bounds(found.head_room),
        "not_counted": found.not_counted or None,
    }


def bounds(value: Range) -> dict[str, int]:
    """A range as an object."""
    return {"low": value.low, "high": value.high}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _setting(field: dataclasses.Field[Any], value: Any) -> Any:
    return as_object(value) if field_kind(field) == "variants" else _plain(value)


def settings_of(part: Any) -> dict[str, Any]:
    """Every setting of a dataclass that users can give."""
    fields = (f for f in dataclasses.fields(part) if not f.metadata.get("internal"))
    return {f.name: _setting(f, getattr(part, f.name)) for f in fields}


def config_section(model: Model) -> dict[str, Any]:
    """The architecture in TransformerConfig's names, without the fields of parts that the model does not have."""
    present = {"", *owners_of(model), *(("moe",) if model.num_moe_experts else ())}
    config = settings_of(model)
    for field in dataclasses.fields(model):
        if field.metadata.get("of", "") not in present:
            config.pop(field.name, None)
    return config


def model_section(job: TrainingJob) -> dict[str, Any]:
    """Name, source, parameters, and the architecture in TransformerConfig's names."""
    count = count_parameters(job.model)
    config = config_section(job.model)
    config["padded_vocab_size"] = job.model.padded_vocab(job.layout.tp)
    for name, value in (("num_query_groups", job.model.groups), ("ffn_hidden_size", job.model.ffn)):
        config[name] = config[name] or value
    if job.model.num_attention_heads and not job.model.multi_latent_attention:
        config["kv_channels"] = job.model.head_dim
    return {
        "name": job.name,
        "source": job.source,
        "model_type": job.model_type,
        "num_parameters": {"total": count.total, "active": count.active, "mtp": count.mtp},
        "config": config,
    }


def layout_section(estimate: Estimate) -> dict[str, Any]:
    """Degrees, given and derived."""
    layout = estimate.job.layout
    chunks = len(estimate.stages[0].rank.plans)
    section = settings_of(layout)
    section.update(
        world_size=layout.world_size,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        data_parallel_size=layout.dp,
        expert_data_parallel_size=layout.expert_dp if estimate.job.model.num_moe_experts else None,
        sequence_parallel=layout.sequence_parallel,
    )
    return section


def training_section(job: TrainingJob) -> dict[str, Any]:
    """Every resolved setting in Megatron's names, and what follows from them."""
    section = settings_of(job.training)
    section["attention_kernel"] = job.kernel
    section["recompute_modules"] = list(job.training.recomputed_modules or job.training.recompute_modules or ())
    section["num_microbatches"] = job.num_microbatches
    section["grad_dtype"] = job.training.grad_dtype
    section["gpu"] = job.gpu.name
    section["env"] = settings_of(job.env)
    return section


def stage_section(job: TrainingJob, stage: Stage) -> dict[str, Any]:
    """One pipeline rank."""
    rank = stage.rank
    dense, expert = stage.num_parameters
    return {
        "pp_rank": stage.pp_rank,
        "chunks": [
            {
                "vp_stage": plan.chunk.vp_stage,
                "layers": list(plan.chunk.layers),
                "embedding": plan.chunk.embedding,
                "output": plan.chunk.output,
                "mtp": plan.chunk.mtp,
                "saved_bytes": plan.saved_bytes,
                "max_in_flight": rank.schedule.per_chunk[plan.chunk.vp_stage],
            }
            for plan in rank.plans
        ],
        "ddp_buffers": [
            {
                "chunk": buffer.chunk,
                "group": buffer.group,
                "param_dtype": buffer.param_dtype,
                "grad_dtype": buffer.grad_dtype,
                "numel": buffer.numel,
                "numel_unpadded": buffer.numel_unpadded,
            }
            for buffer in rank.buffers
        ],
        "num_parameters": {"dense": dense, "expert": expert},
        "in_flight": stage.in_flight,
        "steady_allocated_bytes": stage.steady_allocated_bytes,
        "first_step_peak_allocated_bytes": stage.first_step_peak_allocated_bytes,
        "peak_allocated_bytes": stage.peak_allocated_bytes,
        "peak_event": stage.peak.candidate.label,
        "breakdown_bytes": stage.breakdown_bytes,
        "reserved_bytes": bounds(stage.reserved),
        "device_bytes": bounds(stage.device),
        "device_bytes_of_phases": {name: bounds(found) for name, found in stage.phase_ranges.items()},
        "device_terms": [
            {"name": term.name, "low": term.low, "high": term.high, "source": term.source}
            for term in explain_terms(job, rank, stage.peak)
        ],
        "phases": [
            {"name": phase.name, "low": phase.low, "high": phase.high, "source": phase.source} for phase in stage.phases
        ],
        "rollout": [
            {
                "name": phase.name,
                "terms": [{"name": t.name, "low": t.low, "high": t.high, "source": t.source} for t in phase.terms],
            }
            for phase in stage.rollout
        ],
        "host_bytes": bounds(stage.host_bytes),
        "host_bytes_per_node": bounds(per_node(job, stage)),
        "host_terms": [
            {"name": term.name, "low": term.low, "high": term.high, "source": term.source} for term in stage.host
        ],
    }


def per_node(job: TrainingJob, stage: Stage) -> Range:
    """Host memory of all processes of a node that has this stage only."""
    count = min(job.gpu.gpus_per_node, job.layout.world_size)
    return Range(count * stage.host_bytes.low, count * stage.host_bytes.high)


def row_section(row: Row) -> dict[str, Any]:
    """One tensor (or several equal ones) of `explain`."""
    return {
        "part": row.part,
        "name": row.name,
        "shape": row.formula,
        "local_shape": list(row.local_shape),
        "dtype": row.dtype,
        "count": row.copies,
        "bytes": row.nbytes,
        "why": row.why,
    }
