"""Tables of docs/throughput.md: every published rate beside the predicted one."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

from docs_markdown import lines_of, markdown

if TYPE_CHECKING:
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
    from megatron_memory_estimator.throughput.calibrate import Measured, errors, leave_one_family_out

    records = lines_of("throughput.jsonl")
    records.sort(key=lambda record: not record["primary"])
    runs = []
    for one in records:
        job = TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"], transformer_engine_version="2.17")
        runs.append(Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"]))
    primary = [run for run, one in zip(runs, records, strict=True) if one["primary"]]
    return runs, records, errors(runs), leave_one_family_out(primary)


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
                out,
            )
        )
    return markdown(("run", "GPUs", "tokens/s/GPU", "error", "fitted to other families"), rows)


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


TABLES = {
    "throughput": throughput_rows,
    "throughput sums": throughput_sums,
    "throughput pairs": throughput_pairs,
    "throughput constants": throughput_constants,
}
