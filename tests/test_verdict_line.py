"""The first line of an estimate: the verdict for the chosen GPU with its numbers, and what to type next."""

from __future__ import annotations

import re
from typing import Any

import pytest

from megatron_memory_estimator import GPUS, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.device.verdict import VERDICTS
from megatron_memory_estimator.report.verdict import (
    next_step,
    other_gpus,
    others_line,
    short_names,
    training_alone,
    verdict_line,
)

RUNS: list[tuple[str, int, dict[str, Any], str]] = [
    ("Qwen/Qwen3-8B", 8, {"tp": 2, "gpu": "H100"}, "fits"),
    ("Qwen/Qwen3-8B", 8, {"tp": 1, "gpu": "H100"}, "does not fit"),
    ("Qwen/Qwen3-235B-A22B", 128, {"tp": 4, "pp": 8, "ep": 8, "num_layers_in_first_pipeline_stage": 11,
                                   "num_layers_in_last_pipeline_stage": 11, "gpu": "H100"}, "fits only without fragmentation"),
    ("meta-llama/Llama-3.1-70B", 16, {"tp": 8, "pp": 2, "vpp": 2, "recompute_granularity": "full", "gpu": "H100"}, "does not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "settings", "word"), RUNS)
def test_the_first_line_is_the_verdict_with_its_numbers(
    model: str, gpus: int, settings: dict[str, Any], word: str
) -> None:
    found = estimate(TrainingJob.from_hf(model, gpus, **settings))
    line = re.sub(r"\[.*?\]", "", verdict_line(found))
    assert line.startswith(f"H100-80GB: {word}, ")
    verdict = found.verdict()
    assert all(f"{abs(room) / 2**30:.1f}" in line for room in verdict.head_room)
    plain = line.replace("(training) ", "").replace("(load) ", "")
    assert f"{verdict.device.low / 2**30:.1f} to {verdict.device.high / 2**30:.1f} of 79.1 GiB" in plain
    assert ("advise" in next_step(found)) == (word != "fits")
    assert ("Training alone" in " ".join(training_alone(verdict, found))) == (
        verdict.phase != "training" and word != "fits"
    )
    groups = other_gpus(found)
    names = short_names()
    listed = [name for members in groups.values() for name in members]
    assert sorted(listed) == sorted(names[one.name] for one in GPUS if one.name != "H100-80GB")
    assert set(groups) <= set(VERDICTS)
    assert "not " in others_line(found, 1000)


def test_the_chosen_gpu_is_judged_first_and_the_table_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("H200-141GB: fits, ")
    assert any(line.startswith("GPUs: also fits ") for line in lines)
    assert not any("head-room GiB" in line for line in lines)
    main(["estimate", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200", "--all-gpus"])
    assert "head-room GiB" in capsys.readouterr().out
