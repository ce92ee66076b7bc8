"""`megatron-memory advise`: every change is a run of its own that `estimate` agrees with."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.job.layout import Layout
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.planner.advise import advise
from megatron_memory_estimator.planner.changes import changed

from .helpers import ROOT
from .test_plan import printed


def test_an_advised_change_says_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(
        capsys,
        "advise",
        "Qwen/Qwen3-30B-A3B",
        "--num-gpus",
        "16",
        "--pp",
        "2",
        "--vpp",
        "2",
        "--ep",
        "8",
        "--gpu",
        "H100",
    )
    for line in text.splitlines():
        if line.startswith("note: optimizer_cpu_offload: optimizer_cpu_offload=True"):
            assert "use_precision_aware_optimizer=True" in line
    assert (
        "use_precision_aware_optimizer=True, exp_avg_dtype=bf16, exp_avg_sq_dtype=bf16" in text
        or "bf16 moments" not in text
    )


ADVICE: list[tuple[str, int, dict[str, Any]]] = [
    ("Qwen/Qwen3-8B", 8, {"tensor_model_parallel_size": 2, "seq_length": 32768, "global_batch_size": 64}),
    ("Qwen/Qwen3-30B-A3B", 8, {"expert_model_parallel_size": 8, "micro_batch_size": 8, "global_batch_size": 512}),
    ("meta-llama/Meta-Llama-3-70B", 32, {"tensor_model_parallel_size": 8, "global_batch_size": 128}),
]


@pytest.mark.parametrize(("name", "gpus", "settings"), ADVICE)
def test_advice_is_what_estimate_says_of_the_changed_run(name: str, gpus: int, settings: dict[str, Any]) -> None:
    job = TrainingJob.from_hf(name, gpus, gpu="H100", **settings)
    found = advise(job)
    assert not found.faster and found.outcomes
    assert found.now.device.high > found.limit
    for one in found.outcomes:
        values = {key: value for change in one.changes for key, value in change.settings}
        again = estimate(changed(job, values))
        assert again.peak_stage.peak_allocated_bytes == one.peak
        assert one.device == again.device
    if any(one.device.high <= found.limit for one in found.outcomes):
        assert all(one.verdict(found.limit).fits for one in found.outcomes)


def test_advice_for_a_run_with_room_makes_it_faster(capsys: pytest.CaptureFixture[str]) -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H200", tensor_model_parallel_size=4, global_batch_size=64)
    found = advise(job)
    assert found.faster and found.outcomes
    assert all(one.time.step < found.now.time.step and one.device.high <= found.limit for one in found.outcomes)
    words = ("advise", "Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H200", "--tp", "4", "--global-batch-size", "64")
    assert "make it faster" in printed(capsys, *words)
    document = json.loads(printed(capsys, *words, "--json"))
    assert document["purpose"] == "faster" and document["advice"][0]["step_s"] == pytest.approx(
        found.outcomes[0].time.step
    )


def advised_in_the_docs() -> list[str]:
    return re.findall(r"<!-- run: megatron-memory (advise .+?) -->", (ROOT / "docs" / "advise.md").read_text())


@pytest.mark.parametrize("command", advised_in_the_docs())
def test_advice_in_the_docs_holds(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each advised run again through `estimate` of its own: the settings of the command with those of the advice on top."""
    words = shlex.split(command)
    document = json.loads(printed(capsys, *words, "--json"))
    assert document["purpose"] == ("faster" if "Qwen3-8B" in command else "fit") and document["advice"]
    if document["purpose"] == "fit":
        assert document["now"]["verdict"] != "fits"
    base = json.loads(printed(capsys, "estimate", *words[1 : words.index("--top")], "--json"))
    for one in document["advice"][:3]:
        settings = {key: value for change in one["changes"] for key, value in change["settings"].items()}
        env = {key: settings.pop(key) for key in list(settings) if key == "expandable_segments"}
        layout = {**base["layout"], **base["training"], **settings}
        known = {f.name for part in (Layout, Training) for f in dataclasses.fields(part)} - {"world_size"}
        given = {key: value for key, value in layout.items() if key in known and value is not None}
        if given.get("tensor_model_parallel_size") == 1:
            given["sequence_parallel"] = False
        if given.get("pipeline_model_parallel_layout") or given.get("virtual_pipeline_model_parallel_size") == 1:
            given.pop("virtual_pipeline_model_parallel_size", None)
        job = TrainingJob.from_hf(
            words[1],
            settings.get("world_size", base["layout"]["world_size"]),
            gpu=words[words.index("--gpu") + 1],
            env=env,
            **given,
        )
        again = estimate(job)
        assert again.peak_stage.peak_allocated_bytes == one["peak_allocated_bytes"]
        assert again.device.high == one["device_bytes"]["high"]
