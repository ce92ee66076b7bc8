"""A run that trains within a GPU's memory but cannot load its own checkpoint is not said to fit."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, advise, estimate, plan
from megatron_memory_estimator.job.hardware import GIB, find_gpu
from megatron_memory_estimator.planner.found import Found
from megatron_memory_estimator.report.advice import advice_document

H100 = find_gpu("H100-80GB").memory_bytes


def test_llama_70b_on_16_h100_trains_but_cannot_be_resumed() -> None:
    """Model state 73.95 GiB, 4.38 of merged fc1, a second copy of the moments, 32.9; Megatron-Bridge 0.6 leaves the copy out."""
    job = TrainingJob.from_hf(
        "meta-llama/Llama-3.1-70B", 16, tensor_model_parallel_size=8, pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2, recompute_granularity="full", global_batch_size=1024,
    )  # fmt: skip
    result = estimate(job)
    load = next(phase for phase in result.stages[0].phases if phase.name == "load")
    assert round(load.low / GIB, 2) == round(load.high / GIB, 2) == 111.18
    verdicts = {found.gpu: found for found in result.verdicts()}
    assert (verdicts["H100-80GB"].word, verdicts["H100-80GB"].phase) == ("does not fit", "load")
    assert verdicts["A100-40GB"].word == "does not fit"
    assert json.loads(json.dumps(result.to_dict()))["verdict"]["phase"] == "load"
    bridge = estimate(
        dataclasses.replace(job, training=dataclasses.replace(job.training, checkpoint_loader="megatron_bridge"))
    )
    assert (bridge.verdict().word, bridge.verdict().phase) == ("tight", "load")
    found = advise(job)
    assert found.now.verdict(H100).word == "does not fit" and not found.faster
    alone = estimate(dataclasses.replace(job, env=dataclasses.replace(job.env, phases=("training",))))
    assert alone.verdict().word == "fits only without fragmentation" and alone.verdict().phase == "training"


def test_plans_hold_loading_unless_training_alone_is_asked_for() -> None:
    axes = {"tp": "8", "cp": "1", "recompute": "full", "micro_batch_size": "1"}

    def found(**settings: Any) -> Found:
        job = TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 16, gpu="H100", expandable_segments=True, **settings)
        return plan(job, axes, top=2)[0]

    both, trained = found(), found(phases="training")
    assert both.trains_only and not any(estimate(one.job).verdict().fits for one in both.plans)
    assert (
        trained.plans
        and not trained.trains_only
        and all(estimate(one.job).verdict().phase == "training" for one in trained.plans)
    )


def test_advice_times_a_real_step() -> None:
    """With one pipeline fill as the step, tensor parallelism 16 seemed faster; with 4 Mi tokens it costs more than half a step."""
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, tensor_model_parallel_size=8, gpu="H100")
    document = advice_document(advise(job))
    assert document["assumptions"] == ["global_batch_size not given: a step of 1024 samples (4.0 Mi tokens) is timed"]
    costs = {one["changes"][0]["name"]: one["cost"] for one in document["advice"]}
    assert costs["tensor parallel 16 instead of 8"] == pytest.approx(0.760, abs=0.02)
    given = TrainingJob.from_hf(
        "meta-llama/Llama-3.1-70B", 64, tensor_model_parallel_size=8, gpu="H100", global_batch_size=1024
    )
    assert advise(given).assumptions == ()
    same = {one["changes"][0]["name"]: one["cost"] for one in advice_document(advise(given))["advice"]}
    assert same == costs
