"""The table of docs/timeline.md: the seconds of a step with each stage's own time beside the step time."""

from __future__ import annotations

from typing import Any

from docs_markdown import markdown

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
    """Both figures of some steps."""
    from megatron_memory_estimator import TrainingJob, estimate

    rows = []
    for name, gpus, short in STEPS:
        found = estimate(TrainingJob.from_hf(name, gpus, **{NAMES[key]: value for key, value in short.items()}))
        line = found.timeline()
        end = line.moments[-1].end_s
        assert end is not None
        layout = ", ".join(f"{key} {value}" for key, value in short.items() if key != "batch")
        count = str(found.job.num_microbatches)
        rows.append(
            (name, str(gpus), layout, count, f"{end:.3f}", f"{line.step_s:.3f}", f"{end / line.step_s - 1:+.1%}")
        )
    return markdown(("model", "GPUs", "layout", "microbatches", "`timeline_s`", "`step_s`", "difference"), rows)


TABLES = {"timeline seconds": timeline_seconds}
