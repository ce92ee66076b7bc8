"""Peaks of real runs on 8 B200 GPUs, every rank (MooreThreads/SimuMax docs/b200)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate

from .helpers import FACTS, records

CASES = records("measured_b200.json")


def job(case: dict[str, Any]) -> TrainingJob:
    return TrainingJob.from_megatron_args(
        case["args"], case["num_gpus"], gpu="B200", transformer_engine_version="2.11", megatron_core_version="0.14"
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_peak_of_every_rank_within_two_thousandths(case: dict[str, Any]) -> None:
    result = estimate(job(case))
    per_stage = case["num_gpus"] // len(result.stages)
    for rank, measured in enumerate(case["max_allocated_bytes"]):
        ours = result.stages[rank // per_stage].peak_allocated_bytes
        assert ours == pytest.approx(measured, rel=2e-3), f"rank {rank}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_part_that_is_not_model_state_within_one_percent(case: dict[str, Any]) -> None:
    result = estimate(job(case))
    per_stage = case["num_gpus"] // len(result.stages)
    for rank, measured in enumerate(case["max_allocated_bytes"]):
        stage = result.stages[rank // per_stage]
        state = sum(s.nbytes for s in stage.rank.states if s.since in ("setup", "first step"))
        assert stage.peak_allocated_bytes - state == pytest.approx(measured - state, rel=1e-2), f"rank {rank}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["case"]))
def test_measured_reserved_memory_lies_in_the_range(case: dict[str, Any]) -> None:
    """Every rank; the range is made from replays of other jobs (tests/test_replay.py), none of these ranks."""
    result = estimate(job(case))
    per_stage = case["num_gpus"] // len(result.stages)
    for rank, measured in enumerate(case["max_reserved_bytes"]):
        stage = result.stages[rank // per_stage]
        assert stage.reserved.low <= measured <= stage.reserved.high, f"rank {rank}"


def test_padded_vocabulary_follows_the_tokenizer_of_that_version() -> None:
    for case in CASES:
        made = job(case)
        assert made.model.padded_vocab(made.layout.tp) == case["padded_vocab_size"]


def test_facts_name_their_source() -> None:
    for path in FACTS.glob("*.json"):
        assert '"source":' in path.read_text()[:200], path.name
