"""A run that trains within a GPU's memory but cannot load its own checkpoint is not said to fit."""

from __future__ import annotations

import dataclasses
import json

import pytest

from megatron_memory_estimator import TrainingJob, advise, estimate, plan
from megatron_memory_estimator.device.verdict import verdict
from megatron_memory_estimator.job.hardware import GIB, find_gpu
from megatron_memory_estimator.report.advice import advice_document
from megatron_memory_estimator.report.plans import Row, unloadable

H100 = find_gpu("H100-80GB").memory_bytes


def test_verdicts_in_order() -> None:
    assert verdict(50, 60, 100) == "fits"
    assert verdict(50, 110, 100) == "tight"
    assert verdict(50, 60, 100, load=101) == "does not load"
    assert verdict(101, 120, 100, load=101) == "does not fit"


def test_llama_70b_on_16_h100_trains_but_cannot_be_resumed() -> None:
    """Model state 73.95 GiB and 4.38 of merged fc1: 78.32 GiB of 79.1; a second copy of 4.411 B parameters' moments: 111.18."""
    job = TrainingJob.from_hf(
        "meta-llama/Llama-3.1-70B", 16, tensor_model_parallel_size=8, pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=2, recompute_granularity="full", global_batch_size=1024,
    )  # fmt: skip
    result = estimate(job)
    load = next(phase for phase in result.stages[0].phases if phase.name == "load")
    assert round(load.low / GIB, 2) == 78.32
    training = dataclasses.replace(job.training, megatron_core_version="0.19")
    before = estimate(dataclasses.replace(job, training=training)).stages[0]
    assert round(next(phase.low for phase in before.phases if phase.name == "load") / GIB, 2) == 111.18
    verdicts = {name: found for name, _, found in result.verdicts()}
    assert (
        verdicts["H100-80GB"] == "does not load"
        and verdicts["H20-96GB"] == "fits"
        and verdicts["A100-40GB"] == "does not fit"
    )
    assert json.loads(json.dumps(result.to_dict()))["gpus"][2]["verdict"] == "does not load"
    found = advise(job)
    assert found.now.verdict(H100) == "does not load" and not found.faster
    assert advice_document(found)["now"]["load_bytes"] > H100


def test_plans_that_could_not_load_are_named() -> None:
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 16, gpu="H100", env={"expandable_segments": True})
    found, _ = plan(job, {"tp": "8", "cp": "1", "recompute": "full", "micro_batch_size": "1"}, top=2)
    (said,) = unloadable([Row(one) for one in found.plans], found.limit)
    assert "cannot load a checkpoint with optimizer state" in said


def test_advice_times_a_real_step() -> None:
    """With one pipeline fill as the step, tensor parallelism 16 seemed faster; with 4 Mi tokens it costs more than half a step."""
    job = TrainingJob.from_hf("meta-llama/Llama-3.1-70B", 64, tensor_model_parallel_size=8, gpu="H100")
    document = advice_document(advise(job))
    assert document["assumptions"] == ["global_batch_size not given: a step of 1024 samples (4.0 Mi tokens) is timed"]
    costs = {one["changes"][0]["name"]: one["cost"] for one in document["advice"]}
    assert costs["tensor_model_parallel_size 16"] == pytest.approx(0.760, abs=0.02)
    given = TrainingJob.from_hf(
        "meta-llama/Llama-3.1-70B", 64, tensor_model_parallel_size=8, gpu="H100", global_batch_size=1024
    )
    assert advise(given).assumptions == ()
    same = {one["changes"][0]["name"]: one["cost"] for one in advice_document(advise(given))["advice"]}
    assert same == costs
