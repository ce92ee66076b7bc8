"""Figures of stages and estimates, and the JSON documents made of them; bytes are whole numbers.

Which whole parameters a rank owns under the layer-wise optimizer, as `explain` prints them.

Settings of a training in a few words, as reports and tables name them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from ..device.host import conversion_terms
from ..device.host import per_node as of_node
from ..device.outside import outside_terms
from ..device.rollout import asleep
from ..device.terms import Range, Term, together
from ..device.verdict import Event, explain_terms
from ..estimator import Estimate, Stage
from ..job.model import Model
from ..job.settings import field_kind
from ..job.training import Training
from ..job.training_job import TrainingJob
from ..job.variants import as_object
from ..modules.counts import count_parameters
from ..modules.kinds import owners_of
from ..rank.chunks import ChunkPlan
from ..rank.rank import PARTS, Rank
from ..routing import routing
from ..states.buffers import Buffer
from ..versions import assumptions
from ..wording import all_of
from .quantities import Of, document, table
from .verdict import sentences, verdict_sentence

SCHEMA = "megatron-memory-estimate/1"

# -- a stage --------------------------------------------------------------------------------------------------------------

STATE = ("weights", "gradients", "optimizer")
MAIN = (*STATE, "activations")
REST = tuple(name for name in PARTS if name not in MAIN)
SHARES: dict[str, tuple[str, ...]] = {**{name: (name,) for name in MAIN}, "other": REST}
"""What a bar is made of, by the parts of the peak that each share holds: together they are the peak."""


def share_bytes(stage: Stage) -> dict[str, int]:
    """Bytes of the stage's peak by share."""
    return {share: sum(stage.breakdown_bytes[name] for name in names) for share, names in SHARES.items()}


def num_layers(stage: Stage) -> int:
    """Transformer layers of a stage."""
    return sum(len(plan.chunk.layers) for plan in stage.rank.plans)


def layers_text(stage: Stage) -> str:
    """Layers of a stage, and E, M, L for embedding, MTP and loss: `8 +E`."""
    marks = "".join(mark for mark, part in (("E", "embedding"), ("M", "mtp"), ("L", "output")) if _holds(part)(stage))
    return f"{num_layers(stage)}{' +' + marks if marks else ''}"


def _holds(part: str) -> Of:
    """Whether a chunk of a stage has a part."""
    return lambda stage: any(getattr(plan.chunk, part) for plan in stage.rank.plans)


def per_node(stage: Stage) -> Range:
    """Host memory of all processes of a node that has this stage only."""
    layout = stage.job.layout
    return of_node(stage.host, min(stage.job.gpu.gpus_per_node, layout.world_size), layout)


class _Chunk(NamedTuple):
    """A chunk of a stage, and how many of its microbatches are alive at once at most."""

    plan: ChunkPlan
    most: int


def _chunks(stage: Stage) -> list[_Chunk]:
    per_chunk = stage.rank.schedule.per_chunk
    return [_Chunk(plan, per_chunk[plan.chunk.vp_stage]) for plan in stage.rank.plans]


def _terms(stage: Stage) -> list[Term]:
    return explain_terms(stage.job, stage.rank, stage.peak)


STAGE = table(
    "stage",
    {
        "num_layers": num_layers,
        "chunks": _chunks,
        **{part: _holds(part) for part in ("embedding", "mtp", "output")},
        "all_parameters": lambda stage: sum(stage.num_parameters),
        "num_parameters": lambda stage: dict(zip(("dense", "expert"), stage.num_parameters, strict=True)),
        "share_bytes": share_bytes,
        "device_terms": _terms,
        "host_bytes_per_node": per_node,
    },
    {"layers_text": layers_text, "billions": lambda stage: f"{sum(stage.num_parameters) / 1e9:.3f}"},
)
"""The figures of a `Stage`."""
VERDICT = table("verdict")
"""The figures of a `Verdict`."""
TENSOR = table("tensor")
"""The figures of a `Row` of `explain`: one tensor, or several equal ones."""


# -- settings -------------------------------------------------------------------------------------------------------------


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


# -- an estimate ----------------------------------------------------------------------------------------------------------


def routing_section(estimate: Estimate) -> dict[str, Any] | None:
    """Peaks with uneven routing; None where routing changes nothing or a factor was given."""
    found = routing(estimate)
    if found is None:
        return None
    names = ("low", "typical", "high")
    return {
        "phase": found.phase,
        "router_imbalance": dict(zip(names, found.factors, strict=True)),
        "peak_allocated_bytes": dict(zip(names, found.peaks, strict=True)),
    }


SENTENCE = table(
    "sentence",
    {"sentence": verdict_sentence, "sentences": lambda one: sentences(one.verdict(), one)},
)
"""What every door says first of an estimate."""


def _judged(estimate: Estimate) -> dict[str, Any]:
    return {**document(VERDICT, estimate.verdict()), **document(SENTENCE, estimate)}


class PhaseTerms(NamedTuple):
    """What a phase takes of the GPU of a stage, by name."""

    phase: str
    pp_rank: int
    terms: tuple[Term, ...]


def phase_terms(estimate: Estimate, event: Event) -> PhaseTerms:
    """What a phase takes of the GPU of the stage that needs most: what torch has allocated, an engine, what is outside torch, and what the
    range has beside these: fragmentation, and in other phases than training what is in dispute."""
    stage = estimate.stages[event.pp_rank]
    found = [one for one in _allocated_terms(stage, event.phase) if one.low or one.high]
    found += outside_terms(stage.job, stage.rank.context)
    named = together(found)
    rest = Range(event.device.low - named.low, event.device.high - named.high)
    if rest.high > 0:
        found.append(
            Term("fragmentation and the like", max(rest.low, 0), rest.high, "docs/explanation/device_memory.md")
        )
    return PhaseTerms(event.phase, event.pp_rank, tuple(found))


def _allocated_terms(stage: Stage, phase: str) -> Iterable[Term]:
    """What torch has allocated in a phase, and an engine beside it."""
    if phase == "training":
        engine = asleep(stage.job)
        parts = [Term(name, size, size, "") for name, size in stage.breakdown_bytes.items()]
        return [*parts, engine] if engine else parts
    for one in stage.rollout:
        if one.name == phase:
            return one.terms
    found = next(one for one in stage.phases if one.name == phase)
    return found.terms or (Term("weights and gradients", found.low, found.high, found.source),)


def conversion(estimate: Estimate) -> tuple[Term, ...]:
    """Host memory in which the model's Hugging Face weights become a Megatron checkpoint."""
    return conversion_terms(count_parameters(estimate.job.model).total)


ESTIMATE = table(
    "estimate",
    {
        "schema": lambda _: SCHEMA,
        "model": lambda one: model_section(one.job),
        "layout": layout_section,
        "training": lambda one: training_section(one.job),
        "stages": lambda one: [document(STAGE, stage) for stage in one.stages],
        "peak": lambda one: one.peak_stage,
        "routing": routing_section,
        "judged": _judged,
        "gpus": Estimate.verdicts,
        "conversion": conversion,
        "judged_phases": lambda one: [phase_terms(one, event) for event in one.verdict().events],
        "assumptions": assumptions,
        "warnings": lambda one: one.job.warnings,
    },
)
"""The document of an `Estimate`."""


def estimate_document(estimate: Estimate) -> dict[str, Any]:
    """Schema `megatron-memory-estimate/1`, described in docs/reference/json.md."""
    return document(ESTIMATE, estimate)


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
        "tensors": [document(TENSOR, row) for row in rows],
        "owned": owned_section(chosen.rank),
    }


def owned_layers(rank: Rank, buffer: Buffer) -> dict[str, list[int | None]] | None:
    """The parameters of a buffer that the rank owns: by name the layer of each, None outside of the decoder; None where none is whole."""
    if not buffer.dealt:
        return None
    runs = rank.plans[buffer.chunk].registered
    found: dict[str, list[int | None]] = {}
    for item in sorted(buffer.owns, key=lambda item: (-item.numel, item.name, item.run, item.copy)):
        run = runs[item.run]
        found.setdefault(item.name, []).append(None if run.first_layer < 0 else run.first_of(item.copy))
    return found


def owned_lines(rank: Rank) -> Iterator[str]:
    """A paragraph of every buffer whose parameters are dealt whole; nothing where there is none."""
    for buffer in rank.buffers:
        found = owned_layers(rank, buffer)
        if found is None:
            continue
        where = f" chunk {buffer.chunk}" if len(rank.plans) > 1 else ""
        yield f"Of {buffer.group}{where}, data-parallel {buffer.share}:"
        for name, layers in found.items():
            yield f"  {name}{_layers(layers)}"


def _layers(layers: list[int | None]) -> str:
    """`: layers 0-3, 7`, with how many of each where it is more than one; "" outside of the decoder."""
    count = sorted(Counter(layer for layer in layers if layer is not None).items())
    if not count:
        return ""
    spans = []
    for (_, each), members in groupby(enumerate(count), key=lambda at: (at[1][0] - at[0], at[1][1])):
        found = [layer for _, (layer, _) in members]
        span = str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
        spans.append(span if each == 1 else f"{span} ({each} each)")
    return f": layer{'' if len(count) == 1 else 's'} {', '.join(spans)}"


def owned_section(rank: Rank) -> list[dict[str, Any]]:
    """The same in JSON: an object per buffer whose parameters are dealt whole."""
    return [
        {"chunk": b.chunk, "group": b.group, "data_parallel_rank": b.owner, "parameters": owned_layers(rank, b)}
        for b in rank.buffers
        if b.dealt
    ]


def features_text(t: Training) -> Iterator[str]:
    """Low precision, sharding, offloading, graphs and adapters, those that are on."""
    if t.low_precision:
        kept = ", weights in low precision" if t.low_precision_weights else ""
        yield f"{'fp4' if t.fp4 else f'fp8 {t.fp8}'} {t.low_precision}{kept}"
    if t.use_megatron_fsdp:
        version = "" if t.megatron_fsdp_version == 1 else f" {t.megatron_fsdp_version}"
        yield f"Megatron-FSDP{version} {t.data_parallel_sharding_strategy}"
    if t.use_torch_fsdp2:
        yield "torch FSDP2"
    if t.peft != "none":
        yield f"{t.peft} dim {t.peft_dim}"
    named = {
        "language model": t.freeze_language_model,
        "vision layers": t.freeze_vision_model,
        "vision projection": t.freeze_vision_projection,
        "audio": t.freeze_audio_model,
    }
    frozen = [name for name, on in named.items() if on]
    if frozen:
        yield f"{all_of(frozen)} frozen"
    if t.vit_gradient_checkpointing:
        yield "layers of towers recomputed"
    if t.dynamic_context_parallel:
        yield "dynamic cp"
    if t.chunked_optimizer_state_offload:
        yield f"optimizer state offloaded {t.optimizer_state_offload_fraction:.0%} in chunks"
    if t.optimizer_cpu_offload:
        yield f"optimizer offloaded {t.optimizer_offload_fraction:.0%}"
    if t.cpu_offloading_num_layers:
        yield f"{t.cpu_offloading_num_layers} layers offloaded"
    if t.fine_grained_activation_offloading:
        yield f"offloaded {', '.join(t.offload_modules)}"
    if t.cuda_graph_impl != "none":
        scope = f" ({', '.join(t.cuda_graph_modules)})" if t.cuda_graph_modules else ""
        yield f"CUDA graphs {t.cuda_graph_impl}{scope}"
    if t.moe_paged_stash:
        yield "paged stash"
    if t.overlap_moe_expert_parallel_comm:
        yield "all-to-all overlap"


def recompute_text(t: Training) -> str:
    """Recomputation in a few words."""
    if t.recompute_granularity == "full":
        return f"full ({t.recompute_method}, {t.recompute_num_layers})"
    if t.recompute_granularity == "selective":
        return f"selective ({', '.join(t.recomputed_modules) or 'nothing'})"
    return "none"
