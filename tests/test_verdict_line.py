"""The first line of an estimate: the verdict for the chosen GPU with its numbers, and what to type next."""

from __future__ import annotations

import re
from typing import Any

import pytest

from megatron_memory_estimator import GPUS, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.device.verdict import VERDICTS
from megatron_memory_estimator.report.verdict import headroom, next_step, other_gpus, verdict_line

RUNS: list[tuple[str, int, dict[str, Any], str]] = [
    ("Qwen/Qwen3-8B", 8, {"tp": 2, "gpu": "H100"}, "fits"),
    ("Qwen/Qwen3-8B", 8, {"tp": 1, "gpu": "H100"}, "does not fit"),
    ("Qwen/Qwen3-235B-A22B", 128, {"tp": 4, "pp": 8, "ep": 8, "num_layers_in_first_pipeline_stage": 11,
                                   "num_layers_in_last_pipeline_stage": 11, "gpu": "H100"}, "tight"),
    ("meta-llama/Llama-3.1-70B", 16, {"tp": 8, "pp": 2, "vpp": 2, "recompute_granularity": "full", "gpu": "H100"}, "does not load"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "settings", "word"), RUNS)
def test_the_first_line_is_the_verdict_with_its_numbers(
    model: str, gpus: int, settings: dict[str, Any], word: str
) -> None:
    found = estimate(TrainingJob.from_hf(model, gpus, **settings))
    line = re.sub(r"\[.*?\]", "", verdict_line(found))
    assert line.startswith(f"H100-80GB: {word}, ")
    gpu = found.job.gpu.memory_bytes
    least, most = (f"{abs(room) / 2**30:.1f}" for room in headroom(found, gpu))
    assert most in line
    assert (least in line) == (word in ("fits", "tight"))
    assert ("advise" in next_step(found)) == (word != "fits")
    others = [name for part in other_gpus(found) for name in part.split(": ")[1].split(", ")]
    assert sorted(others) == sorted(one.name for one in GPUS if one.name != "H100-80GB")
    assert all(part.split(": ")[0] in VERDICTS for part in other_gpus(found))


def test_the_chosen_gpu_is_judged_first_and_the_table_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("H200-141GB: fits, ")
    assert any(line.startswith("Other GPUs: fits: H20-96GB") for line in lines)
    assert not any("head-room GiB" in line for line in lines)
    main(["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200", "--all-gpus"])
    assert "head-room GiB" in capsys.readouterr().out
