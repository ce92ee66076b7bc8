"""The table of docs/how-to/timeline.md: the seconds of a step with each stage's own time beside the step time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from docs_markdown import lines_of, markdown

if TYPE_CHECKING:
    from megatron_memory_estimator import TrainingJob

STEPS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("Qwen/Qwen3-8B", 8, {"pp": 4, "batch": 2}),
    ("Qwen/Qwen3-8B", 8, {"pp": 4, "batch": 32}),
    ("Qwen/Qwen3-8B", 8, {"pp": 4, "vpp": 3, "batch": 32}),
    ("meta-llama/Llama-3.1-70B", 64, {"tp": 4, "pp": 4, "vpp": 5, "batch": 128}),
    ("Qwen/Qwen3-30B-A3B", 32, {"pp": 4, "vpp": 3, "ep": 8, "batch": 256}),
    ("deepseek-ai/DeepSeek-V3", 1024, {"pp": 16, "ep": 64, "batch": 4096}),
)
NAMES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "batch": "global_batch_size",
}


def timeline_seconds() -> str:
    """Both figures of some steps, and how far they differ for the published ones."""
    from megatron_memory_estimator import TrainingJob

    rows = []
    for name, gpus, short in STEPS:
        job = TrainingJob.from_hf(name, gpus, **{NAMES[key]: value for key, value in short.items()})
        own, step = seconds(job)
        layout = ", ".join(f"{key} {value}" for key, value in short.items() if key != "batch")
        rows.append(
            (name, str(gpus), layout, str(job.num_microbatches), f"{own:.3f}", f"{step:.3f}", f"{own / step - 1:+.1%}")
        )
    return f"{published()}\n\n" + markdown(
        ("model", "GPUs", "layout", "microbatches", "`timeline_s`", "`step_s`", "difference"), rows
    )


def published() -> str:
    """How far both figures differ for the published runs of docs/explanation/throughput.md."""
    from megatron_memory_estimator import TrainingJob

    apart = []
    for one in lines_of("throughput.jsonl"):
        if one["primary"]:
            own, step = seconds(TrainingJob.from_bridge(one["bridge"], one["num_gpus"], gpu=one["gpu"]))
            apart.append(abs(own / step - 1))
    most = sorted(apart)[len(apart) * 9 // 10]
    count = f"Nine in ten of the {len(apart)} published runs of docs/explanation/throughput.md"
    return f"{count} differ by at most {most:.2%}, all by at most {max(apart):.1%}."


def seconds(job: TrainingJob) -> tuple[float, float]:
    """Seconds of a step with each stage's own time, and by the step time."""
    from megatron_memory_estimator import estimate

    line = estimate(job).timeline()
    end = line.moments[-1].end_s
    assert end is not None
    return end, line.step_s


TABLES = {"timeline seconds": timeline_seconds}
