"""Tables of docs/explanation/throughput.md: every published rate beside the predicted one."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from docs_markdown import lines_of, markdown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from megatron_memory_estimator.throughput.calibrate import Measured

LAYOUT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "pipeline_model_parallel_layout",
    "microbatch_group_size_per_vp_stage", "cp_comm_type", "padded_vocab_size",
)  # fmt: skip


@functools.cache
def measured_rates() -> tuple[list[Measured], list[dict[str, Any]], list[float], list[float]]:
    """Published rates: runs, their records, errors, and errors with efficiencies fitted to other families (primary runs only)."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.throughput.calibrate import Measured, errors, left_out

    records = lines_of("throughput.jsonl")
    records.sort(key=lambda record: not record["primary"])
    runs = []
    for one in records:
        job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"], transformer_engine_version="2.17")
        runs.append(Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"]))
    primary = [run for run, one in zip(runs, records, strict=True) if one["primary"]]
    return runs, records, errors(runs), left_out(primary, lambda run: run.family, _errors())


def _spread(values: list[float]) -> tuple[str, ...]:
    from statistics import median

    size = sorted(abs(value) for value in values)
    within = sum(value <= 0.25 for value in size) / len(size)
    p90 = size[int(0.9 * (len(size) - 1))]
    return (str(len(size)), f"{median(size):.1%}", f"{p90:.1%}", f"{within:.0%}", f"{median(values):+.1%}")


def throughput_sums() -> str:
    """Errors of published rates in sum."""
    _, records, found, held = measured_rates()
    primary = [error for error, one in zip(found, records, strict=True) if one["primary"]]
    other = [error for error, one in zip(found, records, strict=True) if not one["primary"]]
    rows = [
        ("looked at: verified cards, newest table, SimuMax", *_spread(primary)),
        ("the same, efficiencies fitted to the other families", *_spread(held)),
        ("no constant set on them: other recipes of releases 26.06 to 26.08", *_spread(other)),
        ("not looked at: arXiv 2205.05198 (A100, 2022)", *_spread(paper_errors())),
    ]
    return markdown(("runs", "number", "median error", "90th percentile", "within 25 %", "bias"), rows)


def paper_errors() -> list[float]:
    """Errors of the published rates that nothing was set on."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.throughput.calibrate import Measured, errors

    runs = []
    for one in lines_of("throughput_papers.jsonl"):
        job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"], **one["settings"])
        runs.append(Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"]))
    return errors(runs)


def throughput_constants() -> str:
    """Every constant of the throughput model with its source and effect, over one run of each family and GPU."""
    import throughput_constants as constants

    runs, records, _, _ = measured_rates()
    first = {(run.family, one["gpu"]): run.estimate for run, one in zip(runs, records, strict=True)}
    head = f"One run of each model family and GPU, {len(first)} in all.\n\n"
    header = ("constant", "value", "source", "median effect on the step of a fifth more", "largest")
    return head + markdown(header, list(constants.rows(list(first.values()))))


def throughput_rows() -> str:
    """Every published rate."""
    runs, records, found, held = measured_rates()
    rows = []
    for index, (run, one) in enumerate(zip(runs, records, strict=True)):
        out = f"{held[index]:+.0%}" if one["primary"] else ""
        rows.append(
            (
                f"`{run.id}`",
                f"{one['num_gpus']} {one['gpu']}",
                f"{run.tokens_per_s_gpu:.0f}",
                f"{found[index]:+.0%}",
                "yes" if one["primary"] else "no",
                out,
            )
        )
    return markdown(("run", "GPUs", "tokens/s/GPU", "error", "looked at", "fitted to other families"), rows)


def throughput_sparse() -> str:
    """Published rates of sparse attention, which are in no sum."""
    from megatron_memory_estimator import TrainingJob, estimate

    rows = []
    for one in lines_of("throughput_sparse.jsonl"):
        job = TrainingJob.from_hf(one["model"], one["num_gpus"], gpu=one["gpu"], **one["settings"])
        rate, t = estimate(job).throughput.tokens_per_s_gpu, job.training
        kernels = "deterministic" if t.deterministic_mode else "usual"
        rows.append(
            (
                f"`{one['id']}`", f"{one['num_gpus']} {one['gpu']}", f"{t.seq_length:,}", kernels,
                f"{one['tokens_per_s_gpu']:.0f}", f"{rate:.0f}", f"{rate / one['tokens_per_s_gpu'] - 1:+.0%}",
            )
        )  # fmt: skip
    return markdown(("run", "GPUs", "sequence", "kernels", "tokens/s/GPU", "predicted", "error"), rows)


def throughput_ranges() -> str:
    """How far runs of each kind were from their predictions."""
    from megatron_memory_estimator.throughput.certainty import likely

    runs, _, found, _ = measured_rates()
    kinds: dict[Any, list[float]] = {}
    for run, error in zip(runs, found, strict=True):
        kinds.setdefault(likely(run.estimate.job), []).append(1 / (1 + error))
    rows = [
        (kind.of, str(len(shares)), f"{kind.low:.2f} to {kind.high:.2f}", f"{min(shares):.2f} to {max(shares):.2f}")
        for kind, shares in kinds.items()
    ]
    return markdown(("runs with", "number", "range", "of the table above"), rows)


def throughput_pairs() -> str:
    """Pairs of runs that differ in layout or recomputation alone."""
    from itertools import combinations

    runs, records, errors, _ = measured_rates()

    def alike(record: dict[str, Any]) -> str:
        bridge = record["bridge"]
        kept = {k: v for k, v in bridge["model"].items() if not k.startswith(("recompute", "cuda_graph"))}
        for name in LAYOUT:
            kept.pop(name, None)
        same = [
            kept,
            record["gpu"],
            record["num_gpus"],
            bridge["mixed_precision"],
            bridge["train"]["global_batch_size"],
            record["id"][:12],
        ]
        return json.dumps(same, sort_keys=True)

    rows, right = [], 0
    for i, j in combinations(range(len(runs)), 2):
        if alike(records[i]) != alike(records[j]):
            continue
        measured = runs[j].tokens_per_s_gpu / runs[i].tokens_per_s_gpu
        if abs(measured - 1) < 0.05:
            continue
        predicted = measured * (1 + errors[j]) / (1 + errors[i])
        ok = (predicted > 1) == (measured > 1)
        right += ok
        rows.append(
            (f"`{runs[i].id}`", f"`{runs[j].id}`", f"{measured:.2f}", f"{predicted:.2f}", "yes" if ok else "no")
        )
    return f"{right} of {len(rows)} are in the right order.\n\n" + markdown(
        ("from", "to", "measured ratio", "predicted", "order"), rows
    )


@functools.cache
def _errors() -> Any:
    from megatron_memory_estimator.throughput.calibrate import remembered

    return remembered()


def throughput_machines() -> str:
    """What calibration is worth on each machine: fitted to other machines, to its own other families, to one of its runs."""
    from statistics import median

    from megatron_memory_estimator.throughput.calibrate import calibrate, left_out
    from megatron_memory_estimator.throughput.machine import Efficiency

    every, records, _, _ = measured_rates()
    runs, errors = [run for run, one in zip(every, records, strict=True) if one["primary"]], _errors()
    machine_of = {run.id: run.estimate.job.gpu.name for run in runs}
    across = dict(zip(machine_of, left_out(runs, lambda run: machine_of[run.id], errors), strict=True))
    rows = []
    for gpu in sorted(set(machine_of.values())):
        own = [run for run in runs if machine_of[run.id] == gpu]
        families = {run.family: run for run in own}
        within = left_out(own, lambda run: run.family, errors) if len(families) > 1 else []
        alone = []
        for one in families.values():
            fitted = calibrate([one], errors).efficiency
            alone += errors([run for run in own if run.family != one.family], fitted)
        sets = (errors(own, Efficiency()), [across[run.id] for run in own], within, alone)
        shown = (f"{median(map(abs, some)):.1%} ({median(some):+.1%})" if some else "one family" for some in sets)
        rows.append((gpu, str(len(own)), *shown))
    return markdown(
        ("GPU", "runs", "as it is", "fitted to other machines", "fitted to its other families", "level of one run"),
        rows,
    )


SCHEDULES = 200
"""Layouts whose simulated schedule stands beside the formula."""


def throughput_schedules() -> str:
    """The simulated schedule beside the formula that it replaced, over random layouts."""
    from megatron_memory_estimator.throughput.schedule import pipeline_seconds

    rows = []
    for name, gpu, gpus in PIPELINED:
        formulas = []
        for schedule, microbatches, times in _pipelines(name, gpu, gpus):
            seconds = [way for of_rank in times for chunk in of_rank for way in chunk]
            exact = pipeline_seconds(schedule, microbatches, seconds)
            work = [sum(map(sum, of_rank)) for of_rank in times]
            formula = microbatches * max(work) + (schedule.pp - 1) / schedule.vp * sum(work) / len(work)
            formulas.append(exact / formula - 1)
        ordered = sorted(formulas)
        slow = sum(one > 0.05 for one in formulas)
        row = (
            f"{ordered[len(ordered) // 2]:+.1%}",
            f"{ordered[0]:+.1%} to {ordered[-1]:+.1%}",
            str(slow),
        )
        rows.append((f"{name.split('/')[1]}, {gpus} {gpu}", str(len(formulas)), *row))
    header = (
        "model",
        "layouts",
        "simulated over formula, median",
        "range",
        "more than 5 % over",
    )
    return markdown(header, rows)


PIPELINED = (
    ("meta-llama/Meta-Llama-3-70B", "H100", 512),
    ("deepseek-ai/DeepSeek-V3", "H100", 2048),
    ("Qwen/Qwen3-235B-A22B", "GB300", 256),
)


def _pipelines(name: str, gpu: str, gpus: int) -> Iterator[tuple[Any, int, Any]]:
    """Schedules, microbatches and chunk times of random layouts with a pipeline."""
    from megatron_memory_estimator import TrainingJob
    from megatron_memory_estimator.job.pipeline import build_pipeline
    from megatron_memory_estimator.planner.search import sampled
    from megatron_memory_estimator.planner.space.axes import Space
    from megatron_memory_estimator.planner.space.defaults import completed
    from megatron_memory_estimator.rank.build import build_rank, context_of
    from megatron_memory_estimator.rank.declare import Declarer
    from megatron_memory_estimator.throughput.machine import machine
    from megatron_memory_estimator.throughput.stages import chunk_times
    from megatron_memory_estimator.throughput.step import schedule_of

    base = TrainingJob.from_hf(name, gpus, gpu=gpu, global_batch_size=4096)
    few: Any = {
        "recompute": ("none",),
        "precision": ("bf16",),
        "micro_batch_size": (1, 2),
        "context_parallel_size": (1,),
    }
    space = completed(Space(num_gpus=(gpus,), pipeline_model_parallel_size=(2, 4, 8, 16), **few), base)
    for plan in sampled(base, space, -(-SCHEDULES // len(PIPELINED)), seed=16):
        job = plan.job
        declarer = Declarer(context_of(job))
        chunks = build_pipeline(job.model, job.layout).chunks
        ranks = [build_rank(declarer, one, job.num_microbatches, job.gpu, job.env) for one in chunks]
        times = chunk_times(machine(job.gpu), declarer, ranks)
        schedule = schedule_of(declarer.context, len(ranks[0].plans))
        yield schedule, job.num_microbatches, times


TABLES = {
    "throughput": throughput_rows,
    "throughput sums": throughput_sums,
    "throughput pairs": throughput_pairs,
    "throughput ranges": throughput_ranges,
    "throughput sparse": throughput_sparse,
    "throughput constants": throughput_constants,
    "throughput machines": throughput_machines,
    "throughput schedules": throughput_schedules,
}
