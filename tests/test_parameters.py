"""Model state by parameter: what `explain --by parameter` lists."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.job.choices import WAYS, By
from megatron_memory_estimator.rank.parameters import parameters_of
from megatron_memory_estimator.rank.rank import PARTS, state_bytes
from megatron_memory_estimator.report.largest import headline, largest
from megatron_memory_estimator.states.kept import Since

IN_THE_STEP: tuple[str, int, dict[str, Any]] = (
    "Qwen/Qwen3-0.6B",
    8,
    {"tp": 2, "seq_length": 128, "megatron_core_version": "0.20", "chunked_optimizer_state_offload": True},
)
RUNS: list[tuple[str, int, dict[str, Any]]] = [
    ("meta-llama/Llama-3.1-70B", 64, {"tp": 8, "pp": 4}),
    ("meta-llama/Llama-3.1-70B", 64, {"tp": 8, "pp": 4, "vpp": 5}),
    (
        "deepseek-ai/DeepSeek-V3",
        128,
        {"tp": 4, "pp": 4, "ep": 8, "num_layers_in_last_pipeline_stage": 13, "use_precision_aware_optimizer": True},
    ),
    ("Qwen/Qwen3-8B", 24, {"tp": 2}),
    ("Qwen/Qwen3-8B", 8, {"tp": 2, "peft": "lora"}),
    ("Qwen/Qwen3-8B", 8, {"tp": 2, "optimizer": "muon"}),
    ("Qwen/Qwen3-30B-A3B", 16, {"ep": 8, "use_megatron_fsdp": True}),
    ("openai/gpt-oss-20b", 8, {"ep": 8, "use_distributed_optimizer": False}),
    ("Qwen/Qwen3-8B", 8, {"rollout_engine": "vllm", "reference_model": "device"}),
    IN_THE_STEP,
]


@pytest.mark.parametrize(("model", "gpus", "settings"), RUNS)
def test_parameters_and_what_is_no_parameters_are_the_state(model: str, gpus: int, settings: dict[str, Any]) -> None:
    found = estimate(TrainingJob.from_hf(model, gpus, **settings))
    for stage in found.stages:
        moments: tuple[tuple[Since, ...], ...] = (("setup",), ("setup", "first step"), ("setup", "first step", "step"))
        for since in moments:
            parameters, others = parameters_of(stage.rank, since)
            kept = sum(one.nbytes for one in parameters) + sum(nbytes for _, nbytes in others)
            assert kept == state_bytes(stage.rank, *since)
        assert len({one.name for one in parameters}) == len(parameters)
        counted = sum(param.numel * layers for plan in stage.rank.plans for param, layers in plan.params)
        shapes = [(one.copies, one.local_shape) for one in parameters]
        assert counted == sum(copies * _product(shape) for copies, shape in shapes)


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def test_the_bytes_of_a_parameter() -> None:
    """Worked by hand: 7,168 x 8,192 elements of 20 layers, 2 bytes of weight, 4 of gradient, 12 of state over dp 2."""
    found = estimate(TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, tp=8, pp=4))
    parameters, _ = parameters_of(found.stages[3].rank, ("setup", "first step"))
    (largest,) = (one for one in parameters if one.name == "layers.60-79.mlp.linear_fc1.weight")
    numel = 20 * 7168 * 8192
    assert largest == parameters[0] and largest.copies == 20 and largest.local_shape == (7168, 8192)
    assert (largest.weights, largest.gradients, largest.optimizer) == (2 * numel, 4 * numel, 6 * numel)


def test_one_of_these_runs_peaks_in_the_optimizer_step() -> None:
    """Where state exists that is no parameter's otherwise."""
    model, gpus, settings = IN_THE_STEP
    assert estimate(TrainingJob.from_hf(model, gpus, **settings)).peak_stage.peak.candidate.label == "optimizer step"


@pytest.mark.parametrize("at", ["peak", "steady"])
@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize(("model", "gpus", "settings"), RUNS)
def test_what_is_largest_adds_up_to_what_is_allocated(
    model: str, gpus: int, settings: dict[str, Any], by: By, at: str
) -> None:
    stage = estimate(TrainingJob.from_hf(model, gpus, **settings)).peak_stage
    shares = largest(stage, at, by)
    assert sum(one.nbytes for one in shares) == stage.at(at)[1]
    assert [one.nbytes for one in shares] == sorted((one.nbytes for one in shares), reverse=True)
    assert headline(stage, at, by).startswith(f"Largest on stage {stage.pp_rank} (")
    assert all(one.record()["bytes"] == one.nbytes for one in shares)


def test_explain_says_what_is_largest_first(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["explain", "meta-llama/Llama-3.1-70B", "--num-gpus", "64", "--tp", "8", "--pp", "4", "--stage", "3"]
    said = "Largest on stage 3 (peak: forward of output.loss_func): layers.60-79.mlp.linear_fc1.weight, 13.12 of"
    for words in ([], ["--by", "parameter", "--top", "3"]):
        main([*run, *words])
        assert " ".join(capsys.readouterr().out.split()).startswith(said)
    main([*run, "--by", "module", "--format", "csv", "--top", "2"])
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["name"] for row in rows] == ["mlp.linear_fc1", "mlp.linear_fc2"]
    assert all(int(row["bytes"]) == sum(int(row[f"{part}_bytes"]) for part in PARTS) for row in rows)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--json", "--format", "csv"], "--json and --format csv exclude each other"),
        (["--json", "--by", "layer"], "--json has every tensor"),
        (["--top", "3"], "give --by too"),
    ],
)
def test_options_that_say_nothing_together(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", "Qwen/Qwen3-8B", "--num-gpus", "8", *words])
    assert stop.value.code == 2 and error in capsys.readouterr().err
