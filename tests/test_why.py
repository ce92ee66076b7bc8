"""Why a figure is what it is: the quantity, and the cause that a run is told without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import ConfigError, EstimatorError
from megatron_memory_estimator.evidence.trials import told
from megatron_memory_estimator.evidence.why import bytes_of, figure, why
from megatron_memory_estimator.report.why import sentence, why_document, why_lines
from megatron_memory_estimator.validation.replay import job_of
from megatron_memory_estimator.validation.runs import TABLE, Run, read_runs

GIB = 2**30
NOTHING = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "recompute_modules": None,
}


def qwen(**settings: Any) -> TrainingJob:
    return TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, ep=8, **settings)


HIDDEN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("recompute", NOTHING),
    ("grad-reduce-in-bf16", {"grad_reduce_in_bf16": False, "accumulate_allreduce_grads_in_fp32": None}),
    ("use-precision-aware-optimizer", {"use_precision_aware_optimizer": False}),
    ("bias-activation-fusion", {"bias_activation_fusion": False}),
    ("gradient-accumulation-fusion", {"gradient_accumulation_fusion": False}),
    ("moe-permute-fusion", {"moe_permute_fusion": False}),
    ("use-distributed-optimizer", {"use_distributed_optimizer": False}),
)
"""Settings that measured runs have, and how they are told without."""


def hidden() -> Iterator[tuple[Run, str, TrainingJob]]:
    """Measured runs of the catalogue, each told without a setting that moves its peak, which is 1 % near the measured one with it."""
    for one in read_runs(TABLE):
        job, measured = job_of(one), one.measured.get("max_allocated_bytes")
        if job.refusal or not measured:
            continue
        real = estimate(job).peak_stage
        if abs(real.peak_allocated_bytes - measured) > 0.01 * measured:
            continue
        for name, settings in HIDDEN:
            without = told(job, settings)
            try:
                plain = estimate(without).peak_stage
            except EstimatorError:
                continue
            if plain.pp_rank == real.pp_rank and abs(plain.peak_allocated_bytes - measured) > 0.05 * measured:
                yield one, name, without


def test_what_a_measured_run_had_is_among_the_first_causes() -> None:
    """The measured peaks of runs, each told without one of its settings: that setting, or one with the same bytes, is the first of all that
    it may have run with."""
    asked = list(islice(hidden(), 12))
    assert len(asked) >= 10
    right = 0
    for one, name, job in asked:
        found = why(job, one.measured["max_allocated_bytes"], "allocated")
        named = [cause.says for cause in found.causes if cause.says.startswith("it ran with")]
        right += bool(named) and name in named[0]
    assert right >= 10, right


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"router_imbalance": 1.5}, "1.50 times the rows"),
        ({"bias_activation_fusion": False}, "bias-activation-fusion"),
        ({"transformer_engine_version": "2.2"}, "TransformerEngine 2.2 or older"),
        (
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            "recompute-granularity full",
        ),
    ],
)
def test_a_setting_that_is_not_told_is_the_first_cause(settings: dict[str, Any], says: str) -> None:
    job = qwen()
    measured = estimate(told(job, settings)).peak_stage.peak_allocated_bytes
    found = why(job, measured, "allocated")
    if abs(found.more) <= 0.01 * measured:
        assert not found.causes
        return
    assert says in found.causes[0].says, [cause.says for cause in found.causes]


def test_the_first_iteration_and_other_stages() -> None:
    job = TrainingJob.from_hf("meta-llama/Meta-Llama-3-8B", 8, pp=4)
    run = estimate(job)
    first = why(job, run.peak_stage.first_step_peak_allocated_bytes, "allocated")
    assert first.causes[0].says.startswith("it is of the first iteration")
    other = next(
        stage for stage in run.stages if stage.peak_allocated_bytes < 0.9 * run.peak_stage.peak_allocated_bytes
    )
    found = why(job, other.peak_allocated_bytes, "allocated")
    assert f"stage {other.pp_rank}" in found.causes[0].says


def test_which_quantity_it_is() -> None:
    """Without its kind a figure is taken for what it is nearest to; what it would be else is said."""
    job = qwen()
    stage = estimate(job).peak_stage
    assert why(job, stage.peak_allocated_bytes).kind == "allocated"
    middle = (stage.device_used.low + stage.device_used.high) // 2
    found = why(job, middle, "allocated")
    assert "nvidia-smi" in found.others and "It is expected of what torch has reserved" in sentence(found)
    fits = why(job, middle, "nvidia-smi")
    assert fits.more == 0 and not fits.causes and list(why_lines(fits)) == [sentence(fits)]
    assert figure(stage, "allocated") == (stage.peak_allocated_bytes,) * 2


def test_tokens_by_hand() -> None:
    """Half as much again of what twice the tokens would add: 1.5 times the tokens."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2)
    now, twice = (
        estimate(told(job, {"seq_length": length})).peak_stage.peak_allocated_bytes for length in (4096, 8192)
    )
    found = why(job, (now + twice) // 2, "allocated")
    assert found.tokens == pytest.approx(1.5, abs=1e-6)
    assert any("1.50 times the tokens" in line for line in why_lines(found))


@pytest.mark.parametrize(
    ("text", "size"),
    [("85.3GiB", int(85.3 * GIB)), ("87347 MiB", 87347 * 2**20), ("91.6gb", 91_600_000_000), ("1024", 1024)],
)
def test_figures_have_units(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["lots", "85.3", "-1GiB", "3 apples", ""])
def test_figures_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 85"):
        bytes_of(text)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["why", "Qwen/Qwen3-30B-A3B", "--num-gpus", "16", "--ep", "8", "--measured", "60GiB"]
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("60.00 GiB is ") and "less than expected of what torch has allocated" in lines[0]
    assert lines[1].startswith("1. it ") and lines[-1].startswith("A memory snapshot tells all of them apart")
    main([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found == why_document(why(qwen(), 60 * GIB)) and found["measured_bytes"] == 60 * GIB
