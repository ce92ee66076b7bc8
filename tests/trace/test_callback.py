"""The callback of a training loop on CPU torch: it measures nothing, says so, and needs no process group."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.callback import compare_at_step


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    assert not torch.cuda.is_available()
    out = io.StringIO()
    after_step = compare_at_step(TrainingJob.from_hf("Qwen/Qwen3-0.6B", 1), record=tmp_path / "runs.jsonl", stream=out)
    for step in (1, 2, 3):
        after_step(step)
    assert out.getvalue().splitlines() == [
        f"memory after step {step}: this process has no GPU, nothing was measured" for step in (1, 2)
    ]
    assert not list(tmp_path.iterdir())
