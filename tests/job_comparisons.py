"""What holds between a legal job and its neighbours, and between the ways to ask for it."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from megatron_memory_estimator import Estimate, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.inputs.resolve import recomputes_costly_core_attention
from megatron_memory_estimator.job.choices import WORST_ROUTING
from megatron_memory_estimator.job.variants import bare
from megatron_memory_estimator.modules.kinds import kinds_in
from megatron_memory_estimator.planner.launch import megatron_lm
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.throughput import throughput

from .bounds_of_jobs import bound_of
from .job_properties import ALONE, Case, Property, beside

LARGEST_STATE = 24
"""Bytes of one element in weights, gradients and optimizer together, at most."""


def changed(job: TrainingJob, **settings: Any) -> TrainingJob:
    """The job with other degrees or training settings; the microbatches of a step stay."""
    names = {f.name for f in dataclasses.fields(job.layout)}
    layout = dataclasses.replace(job.layout, **{k: v for k, v in settings.items() if k in names})
    training = dataclasses.replace(job.training, **{k: v for k, v in settings.items() if k not in names})
    return dataclasses.replace(job, layout=layout, training=training)


def wider(job: TrainingJob, axis: str) -> TrainingJob:
    """The job with twice the ranks of an axis: dp and tp on twice the GPUs, ep on as many."""
    layout = job.layout
    if axis == "dp":
        return changed(job, world_size=layout.world_size * 2)
    if axis == "ep":
        return changed(job, expert_model_parallel_size=layout.ep * 2)
    return changed(
        job, world_size=layout.world_size * 2, tensor_model_parallel_size=layout.tp * 2, sequence_parallel=True
    )


def state(found: Estimate, *parts: str) -> list[int]:
    """Bytes of weights, gradients and optimizer of every stage, or of one of them."""
    return [sum(s.nbytes for s in stage.rank.states if not parts or s.part in parts) for stage in found.stages]


def padding(found: Estimate) -> list[int]:
    """Bytes that padding and the rounding of shares take at most, of every stage."""
    return [LARGEST_STATE * sum(b.numel - b.elements + 1 for b in stage.rank.buffers) for stage in found.stages]


def more_sharding_costs_no_state(case: Case) -> None:
    """Twice the ranks of an axis have no more state each, but for padding."""
    job = case.job
    if job.training.optimizer == "muon" and job.training.use_distributed_optimizer:
        return  # whole parameters are dealt to ranks
    sharded = job.training.use_distributed_optimizer and not job.training.use_megatron_fsdp
    for axis in ("dp", "ep", "tp"):
        more = beside(wider(job, axis))
        if more is None or more.job.model.padded_vocab(more.job.layout.tp) != job.model.padded_vocab(job.layout.tp):
            continue
        for before, after, extra in zip(state(case.found), state(more), padding(more), strict=True):
            assert after <= before + extra, (axis, before, after, extra)
        if axis == "dp" and sharded:
            halves = zip(state(case.found, "optimizer"), state(more, "optimizer"), padding(more), strict=True)
            assert all(2 * after <= before + extra for before, after, extra in halves)


def kept(found: Estimate) -> list[int]:
    """Bytes that the units of every chunk keep of a microbatch. The attention mask, which checkpoints keep, is no unit's."""
    return [plan.saved_bytes - plan.held_bytes for stage in found.stages for plan in stage.rank.plans]


def more_recomputation_keeps_no_more(case: Case) -> None:
    """One more recomputed module, or whole layers, keep no more; core_attn and mla_up_proj aside.

    Both free nothing where the attention kernel keeps copies of its own, and keep their inputs; so does the activation of an input
    that is kept in fp8. A norm of an fp32 stream keeps a cast of it, its checkpoint the stream, and a frozen linear has no norm's
    output to free.
    """
    t = case.job.training
    if t.recompute_granularity == "full" or recomputes_costly_core_attention(case.job):
        return
    modules = t.recomputed_modules
    model = case.job.model
    wider_inputs = {
        "mlp": t.low_precision and (model.ffn_hidden_size or 0) // case.job.layout.tp < model.hidden_size,
        "moe_act": t.activation_func_fp8_input_store,
        "layernorm": model.fp32_residual_connection and t.peft != "none",
    }
    more: list[dict[str, Any]] = [
        {"recompute_granularity": "selective", "recompute_modules": (*modules, name)}
        for name in ("mlp", "moe_act", "layernorm", "moe", "shared_experts")
        if name not in modules and not wider_inputs.get(name)
    ]
    more.append({
        "recompute_granularity": "full", "recompute_modules": None, "recompute_method": "uniform", "recompute_num_layers": 1,
    })  # fmt: skip
    for settings in more:
        found = beside(changed(case.job, **settings))
        if found is not None:
            assert all(b <= a for a, b in zip(kept(case.found), kept(found), strict=True)), (
                settings,
                kept(case.found),
                kept(found),
            )


def kept_bytes_scale(case: Case) -> None:
    """More data-parallel ranks keep the same; so do twice the context parallel ranks of twice the sequence."""
    job = case.job
    same = [wider(job, "dp")]
    t, layout = job.training, job.layout
    keys = any(kind.startswith(("dsa", "csa", "hca")) for kind in job.model.every_kind)  # of the whole sequence
    groups = any(kind.state_heads == "mamba" for kind in kinds_in(job.model.every_kind))  # each rank has one at least
    whole = keys or groups
    if layout.cp > 1 and not whole and set(layout.cp_comm_type) == {"p2p"} and not t.moe_expert_capacity_factor:
        same.append(
            changed(
                job, world_size=layout.world_size * 2, context_parallel_size=layout.cp * 2, seq_length=t.seq_length * 2
            )
        )
    for neighbour in same:
        found = beside(neighbour)
        if found is not None:
            assert kept(found) == kept(case.found), (neighbour.layout, kept(found), kept(case.found))


def more_rows_keep_more(case: Case) -> None:
    """Uneven routing makes the stages with experts keep more."""
    t, layout, model = case.job.training, case.job.layout, case.job.model
    recomputed = t.recompute_granularity == "full" or t.recomputes("moe")
    moved = t.fine_grained_activation_offloading or t.cpu_offloading_num_layers or t.cuda_graph_impl != "none"
    if recomputed or moved or t.moe_paged_stash or context_of(case.job).routing is None:
        return
    assert model.num_moe_experts is not None
    if min(layout.ep, model.num_moe_experts // model.moe_router_topk) < 2:
        return
    found = estimate(changed(case.job, router_imbalance=1.9))  # typical is 1.52 at most
    plans = [plan for stage in found.stages for plan in stage.rank.plans]
    for plan, less, more in zip(plans, kept(case.found), kept(found), strict=True):
        experts = any(bare(kind).endswith("moe") for kind in plan.layers(model))
        rounded = bool(t.low_precision or t.grouped_tensors)  # rows of an expert are rounded up
        assert more == less if not experts else more >= less if rounded else more > less, (less, more)


def bounds_are_below(case: Case) -> None:
    """What a search takes the job for before it looks at it is no more than what it needs and takes."""
    job, found = case.job, case.found
    if len(job.layout.cp_comm_type) > 1 or job.gpu.chip_unknown or job.rollout.has_phases:
        return  # no search has such
    bound, needed = bound_of(job, arrays=case.drawn.num_gpus % 3 == 0), found.needed
    assert bound.step <= throughput(found).step
    assert bound.peak <= found.peak_stage.peak_allocated_bytes
    assert bound.low <= needed.low and bound.high <= needed.high, (bound, needed)


def peaks(found: Estimate) -> list[int]:
    """Peak allocated bytes of every stage."""
    return [stage.peak_allocated_bytes for stage in found.stages]


def launch_arguments_give_the_same_bytes(case: Case) -> None:
    """Megatron-LM arguments of the run, read back."""
    t = case.job.training
    if t.optimizer_cpu_offload and not t.use_precision_aware_optimizer:
        return  # Megatron-LM's arguments refuse it, Megatron-Bridge does not
    if case.job.model.towers:
        return  # nor do they have towers
    launch = megatron_lm(case.job)
    read = TrainingJob.from_megatron_args(
        launch.words(), case.job.layout.world_size, gpu=case.job.gpu.name, env=case.job.env, **launch.beside
    )
    assert peaks(estimate(read)) == peaks(case.found)


def compare_says_what_estimate_says(case: Case) -> None:
    """`compare` of the job with itself."""
    if not case.drawn.name:
        return  # a name is needed
    words = ",".join(f"{name}={_word(value)}" for name, value in flat(case.drawn.settings).items() if value is not None)
    expected, page = case.found.to_dict(), io.StringIO()
    with redirect_stdout(page):
        main(
            [
                "compare",
                case.drawn.name,
                "--num-gpus",
                str(case.drawn.num_gpus),
                "--layout",
                words,
                "--layout",
                words,
                "--json",
            ]
        )
    for one in json.loads(page.getvalue())["cases"]:
        assert {name: one["estimate"][name] for name in FIGURES} == {name: expected[name] for name in FIGURES}


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with those of the environment among them."""
    return {**{k: v for k, v in settings.items() if k not in ("env", "cpu_offloading")}, **settings.get("env", {})}


def _word(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        return "+".join(f"[{number}]*1" for number in value)
    if value == "worst":
        return str(WORST_ROUTING)
    return (
        ",".join(map(str, value))
        if isinstance(value, tuple)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


FIGURES = ("stages", "peak", "routing", "gpus")
"""Parts of a document that no spelling of a setting changes."""
EVERY: tuple[Property, ...] = (
    *ALONE, more_sharding_costs_no_state, more_recomputation_keeps_no_more, kept_bytes_scale, more_rows_keep_more,
)  # fmt: skip
"""Of every job."""
SHARED: tuple[Property, ...] = (
    bounds_are_below, launch_arguments_give_the_same_bytes, compare_says_what_estimate_says,
)  # fmt: skip
"""Of a share of the jobs."""


def broken(case: Case, properties: Sequence[Property]) -> str:
    """The first property that a job does not keep, and how; "" where it keeps all."""
    return next(filter(None, (how(one, case) for one in properties)), "")


def how(one: Property, case: Case) -> str:
    """How a job does not keep a property."""
    try:
        one(case)
    except AssertionError as error:
        return f"{one.__name__}: {error}"
    return ""
