"""What `plan` prints: a table of plans, the front of memory against time, what was ruled out, launch arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..estimator import Estimate, estimate
from ..planner.found import Found, Plan
from ..planner.launch import FORMS, megatron_lm
from ..throughput.machine import Efficiency
from ..throughput.step import Throughput, throughput
from .figures import gib
from .text import features_text

RULES = 8
WORDS = {
    "recompute": "recomputation",
    "tp": "tp communication",
    "cp": "cp communication",
    "ep": "ep communication",
    "pp": "pipeline sends",
    "host": "kernel launches",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer step",
    "other": "overhead",
}
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
    for warning in warnings(rows):
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


def warnings(rows: Sequence[Row]) -> list[str]:
    """What is not as it seems in these plans."""
    found = dict.fromkeys(note for row in rows for note in row.plan.job.warnings)
    if any(not row.time.measured_rates for row in rows):
        found["the rates of this GPU are shares of its peaks: nothing measured is known; step times are rough"] = None
    if any(row.plan.job.training.optimizer_cpu_offload for row in rows):
        found["the time of an offloaded optimizer is not modelled: its plans are slower than shown"] = None
    return list(found)


def plan_records(rows: Sequence[Row], limit: int) -> list[dict[str, Any]]:
    """One record per plan, where a GPU may take `limit` bytes."""
    return [_record(row, limit) for row in rows]


def _record(row: Row, limit: int) -> dict[str, Any]:
    job, plan, verdict = row.plan.job, row.plan, row.estimate.verdict(limit)
    return {
        "num_gpus": job.layout.world_size,
        "tensor_model_parallel_size": job.layout.tp,
        "context_parallel_size": job.layout.cp,
        "pipeline_model_parallel_size": job.layout.pp,
        "virtual_pipeline_model_parallel_size": virtual(row),
        "split": split_text(plan),
        "expert_model_parallel_size": job.layout.ep,
        "expert_tensor_parallel_size": job.layout.etp,
        "data_parallel_size": job.layout.dp,
        "sequence_parallel": job.layout.sequence_parallel,
        "micro_batch_size": job.training.micro_batch_size,
        "recompute": plan.recompute,
        "precision": plan.precision,
        "step_s": plan.step,
        "tokens_per_s_gpu": plan.tokens_per_s_gpu,
        "mfu": row.time.mfu,
        "peak_allocated_bytes": plan.peak_allocated_bytes,
        "device_low_bytes": verdict.device.low,
        "device_high_bytes": verdict.device.high,
        "head_room_low_bytes": verdict.head_room.low,
        "head_room_high_bytes": verdict.head_room.high,
        "verdict": verdict.word,
        "phase": verdict.phase,
    }


Column = Callable[[Row, Found], str]
EVERY: dict[str, Column] = {
    "tp": lambda row, found: _tp(row.plan),
    "cp": lambda row, found: _cp(row.plan),
    "pp": lambda row, found: f"{row.plan.job.layout.pp}{'' if split_text(row.plan) == 'even' else '*'}",
    "vpp": lambda row, found: str(virtual(row)),
    "ep": lambda row, found: str(row.plan.job.layout.ep),
    "etp": lambda row, found: str(row.plan.job.layout.etp),
    "dp": lambda row, found: str(row.plan.job.layout.dp),
    "mbs": lambda row, found: str(row.plan.job.training.micro_batch_size),
    "recompute": lambda row, found: row.plan.recompute,
    "precision": lambda row, found: row.plan.precision,
    "optimizer": lambda row, found: _optimizer(row.plan),
    "step s": lambda row, found: f"{row.time.step:.3f}",
    "tokens/s/GPU": lambda row, found: f"{row.time.tokens_per_s_gpu:,.0f}",
    "TFLOP/s": lambda row, found: f"{row.time.tflops_gpu:.0f}",
    "MFU": lambda row, found: f"{row.time.mfu:.1%}",
    "peak GiB": lambda row, found: gib(row.plan.peak_allocated_bytes),
    "stage": lambda row, found: str(row.estimate.peak_stage.pp_rank),
    "head-room GiB": lambda row, found: gib(found.limit - row.plan.device.high),
    "bubble": lambda row, found: f"{row.time.bubble:.1%}",
    "exposed": lambda row, found: f"{row.time.exposed:.1%}",
    "largest other part": lambda row, found: row.limit,
}
"""The columns of the table of plans; those of experts for models that have some."""
WITH_EXPERTS = ("ep", "etp")


def plan_table(rows: Sequence[Row], found: Found) -> Table:
    """The plans, the best first."""
    moe = any(row.plan.job.model.num_moe_experts for row in rows)
    columns = {head: column for head, column in EVERY.items() if moe or head not in WITH_EXPERTS}
    if len(found.space.num_gpus) > 1:
        columns = {"GPUs": lambda row, found: str(row.plan.job.layout.world_size), **columns}
    table = Table("#", *columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for number, row in enumerate(rows, 1):
        table.add_row(str(number), *(column(row, found) for column in columns.values()))
    return table


def _tp(plan: Plan) -> str:
    layout = plan.job.layout
    return f"{layout.tp}{'' if layout.sequence_parallel or layout.tp == 1 else ' (no sp)'}"


def _cp(plan: Plan) -> str:
    layout = plan.job.layout
    return f"{layout.cp} {layout.cp_comm_type[0]}" if layout.cp > 1 else "1"


def _optimizer(plan: Plan) -> str:
    t = plan.job.training
    words = [
        "distributed" if t.use_distributed_optimizer else "plain",
        *(["precision-aware"] if t.use_precision_aware_optimizer else []),
        *([f"{t.optimizer_offload_fraction:.0%} offloaded"] if t.optimizer_cpu_offload else []),
    ]
    return ", ".join(words)


def front_line(found: Found) -> str:
    """Memory against throughput, in one line."""
    points = [f"{gib(plan.peak_allocated_bytes, 0)} GiB {plan.tokens_per_s_gpu:,.0f}" for plan in found.front]
    thinned = points if len(points) <= 12 else [*points[:: -(-len(points) // 11)], points[-1]]
    return f"memory against tokens/s/GPU: {', '.join(dict.fromkeys(thinned))}"


def counts_table(found: Found) -> Table:
    """How many layouts there are, and what became of them."""
    table = Table("layouts", "", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = [
        (found.fits, f"fit in {gib(found.limit)} GiB"),
        (found.tight, "are tight: they fit unless memory is fragmented"),
        (found.too_large, "do not fit"),
        *((count, f"ruled out: {rule}") for rule, count in found.illegal.most_common(RULES) if count),
    ]
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
    needed = found.least.device.low
    if found.fits:
        return f"{found.fits:,} layouts fit in {gib(found.limit)} GiB, but their step times are not known, so none is the best"
    if needed <= found.limit:
        return (
            f"no layout surely fits in {gib(found.limit)} GiB; {found.tight:,} are tight. The one that needs least needs "
            f"{gib(needed)} GiB and takes up to {gib(found.least.device.high)}: {layout_text(found.least)}"
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
