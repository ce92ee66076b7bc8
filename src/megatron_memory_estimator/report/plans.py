"""What `plan` prints: a table of plans, the front of memory against time, what was ruled out, launch arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..estimator import Estimate, estimate
from ..planner.found import Found, Plan
from ..planner.launch import FORMS, megatron_lm
from ..planner.launch_bridge import bridge_overrides, bridge_sections
from ..throughput.machine import Efficiency
from ..throughput.step import Throughput, throughput
from .text import features_text, gib

SCHEMA = "megatron-memory-plan/1"
RULES = 8
WORDS = {
    "recompute": "recomputation", "tp": "tp communication", "cp": "cp communication", "ep": "ep communication",
    "pp": "pipeline sends", "host": "kernel launches", "bubble": "pipeline bubble", "optimizer": "optimizer step",
    "other": "overhead",
}  # fmt: skip
"""Parts of a step in words."""


@dataclass(frozen=True)
class Row:
    """A plan with its estimate and its step time by part."""

    plan: Plan
    efficiency: Efficiency | None = None

    @cached_property
    def estimate(self) -> Estimate:
        """The explained estimate of the plan."""
        return estimate(self.plan.job)

    @cached_property
    def time(self) -> Throughput:
        """Step time by part."""
        return throughput(self.estimate, self.efficiency)

    @property
    def limit(self) -> str:
        """The largest part of a step beside the kernels of forward and backward, with its share."""
        parts = {name: value for name, value in self.time.parts.items() if name != "compute"}
        name = max(parts, key=parts.__getitem__)
        return f"{WORDS.get(name, name)} {parts[name] / self.time.step:.0%}"


def split_text(plan: Plan) -> str:
    """The split of layers over stages, where it is not even."""
    layout = plan.job.layout
    if layout.pipeline_model_parallel_layout:
        return layout.pipeline_model_parallel_layout
    first, last = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    if first is None and last is None:
        return "even"
    return "/".join("..." if n is None else str(n) for n in (first, last))


def virtual(row: Row) -> int:
    """Model chunks per stage."""
    return len(row.estimate.stages[0].rank.plans)


def print_found(
    found: Found, rows: Sequence[Row], console: Console, *, said: Sequence[str], shown: int, form: str
) -> None:
    """The whole text report."""
    if found.interrupted:
        console.print("interrupted: the best so far", highlight=False)
    if rows:
        console.print(plan_table(rows, found), soft_wrap=True)
        console.print(front_line(found), highlight=False, soft_wrap=True)
    else:
        console.print(nothing_fits(found), highlight=False, soft_wrap=True)
    console.print(counts_table(found))
    for note in said:
        console.print(f"assumed: {note}", highlight=False, soft_wrap=True, markup=False)
    for warning in (*unloadable(rows, found.limit), *warnings(rows)):
        console.print(f"warning: {warning}", highlight=False, soft_wrap=True, markup=False)
    if rows and form != "none":
        row = rows[shown - 1]
        title = {"megatron-lm": "Megatron-LM arguments", "yaml": "YAML", "bridge": "Megatron-Bridge overrides"}[form]
        console.print(f"\n{title} of plan {shown} ({row.plan.job.layout.world_size} GPUs):", highlight=False)
        console.print(FORMS[form](row.plan.job), highlight=False, soft_wrap=True, markup=False)
        beside = {} if form == "bridge" else megatron_lm(row.plan.job).beside
        if form == "bridge" and row.plan.job.training.peft != "none":
            console.print("the recipe's peft section stays as it is", highlight=False)
        if beside:
            words = ", ".join(f"{name}={value}" for name, value in beside.items())
            console.print(f"without an argument in Megatron-LM: {words}", highlight=False, soft_wrap=True, markup=False)


def unloadable(rows: Sequence[Row], limit: int) -> list[str]:
    """Plans that train, but could not load a checkpoint of their own."""
    numbers = [str(at) for at, row in enumerate(rows, 1) if row.estimate.load_low > limit]
    if not numbers:
        return []
    most = max(row.estimate.load_low for row in rows)
    which = f"plan{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
    return [
        f"{which} cannot load a checkpoint with optimizer state: at least {gib(most)} GiB of {gib(limit)}; training alone is held "
        "against the memory"
    ]


def warnings(rows: Sequence[Row]) -> list[str]:
    """What is not as it seems in these plans."""
    found = dict.fromkeys(note for row in rows for note in row.plan.job.warnings)
    if any(not row.time.measured_rates for row in rows):
        found["the rates of this GPU are shares of its peaks: nothing measured is known; step times are rough"] = None
    if any(row.plan.job.training.optimizer_cpu_offload for row in rows):
        found["the time of an offloaded optimizer is not modelled: its plans are slower than shown"] = None
    return list(found)


def plan_table(rows: Sequence[Row], found: Found) -> Table:
    """The plans, the best first."""
    moe = any(row.plan.job.model.num_moe_experts for row in rows)
    several = len(found.space.num_gpus) > 1
    heads = [
        "#",
        *(["GPUs"] if several else []),
        "tp",
        "cp",
        "pp",
        "vpp",
        *(["ep", "etp"] if moe else []),
        "dp",
        "mbs",
        "recompute",
    ]
    heads += [
        "precision",
        "optimizer",
        "step s",
        "tokens/s/GPU",
        "TFLOP/s",
        "MFU",
        "peak GiB",
        "stage",
        "head-room GiB",
        "bubble",
    ]
    heads += ["exposed", "largest other part"]
    table = Table(*heads, box=box.SIMPLE_HEAD, pad_edge=False)
    for number, row in enumerate(rows, 1):
        job, time = row.plan.job, row.time
        layout, t = job.layout, job.training
        cp = f"{layout.cp} {layout.cp_comm_type[0]}" if layout.cp > 1 else "1"
        tp = f"{layout.tp}{'' if layout.sequence_parallel or layout.tp == 1 else ' (no sp)'}"
        experts = [str(layout.ep), str(layout.etp)] if moe else []
        split = split_text(row.plan)
        pp = f"{layout.pp}{'' if split == 'even' else '*'}"
        optimizer = "distributed" if t.use_distributed_optimizer else "plain"
        optimizer += ", precision-aware" if t.use_precision_aware_optimizer else ""
        optimizer += f", {t.optimizer_offload_fraction:.0%} offloaded" if t.optimizer_cpu_offload else ""
        table.add_row(
            str(number), *([str(layout.world_size)] if several else []), tp, cp, pp, str(virtual(row)), *experts,
            str(layout.dp),
            str(t.micro_batch_size), row.plan.recompute, row.plan.precision, optimizer, f"{time.step:.3f}",
            f"{time.tokens_per_s_gpu:,.0f}", f"{time.tflops_gpu:.0f}", f"{time.mfu:.1%}", gib(row.plan.peak_allocated_bytes),
            str(row.estimate.peak_stage.pp_rank), gib(found.limit - row.plan.device_bytes), f"{time.bubble:.1%}",
            f"{time.exposed:.1%}", row.limit,
        )  # fmt: skip
    return table


def front_line(found: Found) -> str:
    """Memory against throughput, in one line."""
    points = [f"{gib(plan.peak_allocated_bytes, 0)} GiB {plan.tokens_per_s_gpu:,.0f}" for plan in found.front]
    thinned = points if len(points) <= 12 else [*points[:: -(-len(points) // 11)], points[-1]]
    return f"memory against tokens/s/GPU: {', '.join(dict.fromkeys(thinned))}"


def counts_table(found: Found) -> Table:
    """How many layouts there are, and what became of them."""
    table = Table("layouts", "", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [
        (found.fits, f"fit in {gib(found.limit)} GiB"), (found.tight, "are tight: they fit unless memory is fragmented"),
        (found.too_large, "do not fit"),
        *((count, f"ruled out: {rule}") for rule, count in found.illegal.most_common(RULES) if count),
    ]  # fmt: skip
    rest = sum(count for _, count in found.illegal.most_common()[RULES:])
    if rest:
        rows.append((rest, f"ruled out by {len(found.illegal) - RULES} other rules"))
    for count, what in rows:
        table.add_row(f"{count:,}", what)
    table.add_row(f"{found.examined:,}", "examined")
    return table


def nothing_fits(found: Found) -> str:
    """Why there is no plan: the layout that comes nearest."""
    if found.least is None:
        return "nothing was evaluated yet"
    needed = found.least.needed_bytes
    if found.fits:
        return f"{found.fits:,} layouts fit in {gib(found.limit)} GiB, but their step times are not known, so none is the best"
    if needed <= found.limit:
        return (
            f"no layout surely fits in {gib(found.limit)} GiB; {found.tight:,} are tight. The one that needs least needs "
            f"{gib(needed)} GiB and takes up to {gib(found.least.device_bytes)}: {layout_text(found.least)}"
        )
    return (
        f"no layout fits in {gib(found.limit)} GiB: the one that needs least needs {gib(needed)} GiB, "
        f"{gib(needed - found.limit)} too much: {layout_text(found.least)}. More GPUs (--min-num-gpus finds how many), a shorter "
        "sequence, --use-precision-aware-optimizer or --optimizer-offload-fraction 0.5,1 would help"
    )


def layout_text(plan: Plan) -> str:
    """A layout in one line."""
    layout, t = plan.job.layout, plan.job.training
    words = [f"tp {layout.tp}", f"cp {layout.cp}", f"pp {layout.pp}"]
    if plan.job.model.num_moe_experts:
        words += [f"ep {layout.ep}", f"etp {layout.etp}"]
    words += [f"micro batch {t.micro_batch_size}", f"recompute {plan.recompute}", *features_text(t)]
    return ", ".join(words)


def found_document(found: Found, rows: Sequence[Row], said: Sequence[str]) -> dict[str, Any]:
    """The JSON document of a search."""
    return {
        "schema": SCHEMA,
        "objective": found.objective,
        "limit_bytes": found.limit,
        "interrupted": found.interrupted,
        "space": {name: list(values) for name, values in vars(found.space).items()},
        "counts": {
            "examined": found.examined, "legal": found.legal, "fits": found.fits, "tight": found.tight,
            "too_large": found.too_large, "ruled_out": dict(found.illegal.most_common()),
        },
        "plans": [plan_document(row, found.limit) for row in rows],
        "front": [
            {"peak_allocated_bytes": plan.peak_allocated_bytes, "tokens_per_s_gpu": plan.tokens_per_s_gpu, "layout": layout_text(plan)}
            for plan in found.front
        ],
        "least": None if found.least is None else {"needed_bytes": found.least.needed_bytes, "layout": layout_text(found.least)},
        "assumptions": list(said),
        "warnings": [*unloadable(rows, found.limit), *warnings(rows)],
    }  # fmt: skip


def plan_document(row: Row, limit: int) -> dict[str, Any]:
    """One plan."""
    job, time = row.plan.job, row.time
    launch = megatron_lm(job)
    return {
        "layout": {
            "num_gpus": job.layout.world_size, "tensor_model_parallel_size": job.layout.tp, "context_parallel_size": job.layout.cp,
            "cp_comm_type": list(job.layout.cp_comm_type), "pipeline_model_parallel_size": job.layout.pp,
            "virtual_pipeline_model_parallel_size": virtual(row), "split": split_text(row.plan),
            "expert_model_parallel_size": job.layout.ep, "expert_tensor_parallel_size": job.layout.etp,
            "sequence_parallel": job.layout.sequence_parallel, "data_parallel_size": job.layout.dp,
        },
        "micro_batch_size": job.training.micro_batch_size,
        "global_batch_size": job.training.global_batch_size,
        "num_microbatches": job.num_microbatches,
        "recompute": row.plan.recompute,
        "precision": row.plan.precision,
        "use_distributed_optimizer": job.training.use_distributed_optimizer,
        "use_precision_aware_optimizer": job.training.use_precision_aware_optimizer,
        "optimizer_offload_fraction": job.training.optimizer_offload_fraction if job.training.optimizer_cpu_offload else 0.0,
        "step_s": time.step, "tokens_per_s_gpu": time.tokens_per_s_gpu, "tflops_gpu": time.tflops_gpu, "mfu": time.mfu,
        "bubble": time.bubble, "exposed": time.exposed, "parts_s": time.parts, "limited_by": row.limit,
        "peak_allocated_bytes": row.plan.peak_allocated_bytes, "peak_stage": row.estimate.peak_stage.pp_rank,
        "needed_bytes": row.plan.needed_bytes, "device_bytes": row.plan.device_bytes,
        "head_room_bytes": limit - row.plan.device_bytes,
        "peak_of_stages_bytes": [stage.peak_allocated_bytes for stage in row.estimate.stages],
        "launch": {
            "megatron_lm": launch.words(), "settings_without_argument": launch.beside, "bridge_overrides": bridge_overrides(job),
            "bridge": bridge_sections(job),
        },
    }  # fmt: skip
