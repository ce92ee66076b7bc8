"""defer_embedding_wgrad_compute: what waits for the output layer's weight gradient, tensor by tensor."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate

from .helpers import small_config

HIDDEN = 1024 * 1024 * 2
LOGITS = 1024 * 32000 * 2


def job(limit: int, microbatches: int = 4, **settings: Any) -> TrainingJob:
    """Two stages, four microbatches of 1024 tokens, one GPU each."""
    values: dict[str, Any] = {
        "pipeline_model_parallel_size": 2, "seq_length": 1024, "micro_batch_size": 1, "global_batch_size": microbatches,
        "gradient_accumulation_fusion": True, "defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit,
        "padded_vocab_size": 32000, **settings,
    }  # fmt: skip
    return TrainingJob.from_config(small_config(), values.pop("num_gpus", 2), **values)


@pytest.mark.parametrize(
    ("limit", "kept", "pinned"),
    [(1, 1, 1), (2, 2, 2), (3, 3, 2), (0, 3, 2)],
)
def test_kept_tensors(limit: int, kept: int, pinned: int) -> None:
    """Of four microbatches three have run backward when the last computes its loss; the schedule itself keeps the third's
    received input and gradient."""
    plain = estimate(job(limit, defer_embedding_wgrad_compute=False)).stages
    found = estimate(job(limit)).stages
    assert found[0].peak_allocated_bytes == plain[0].peak_allocated_bytes
    grown = found[1].peak_allocated_bytes - plain[1].peak_allocated_bytes
    assert grown == kept * (HIDDEN + LOGITS) + pinned * 2 * HIDDEN
    assert found[1].steady_allocated_bytes == plain[1].steady_allocated_bytes
    assert sum(found[1].breakdown_bytes.values()) == found[1].peak_allocated_bytes


def test_one_microbatch_defers_nothing_before_its_own_backward() -> None:
    plain = estimate(job(0, 1, defer_embedding_wgrad_compute=False)).stages[1]
    assert estimate(job(0, 1)).stages[1].peak_allocated_bytes == plain.peak_allocated_bytes


def test_sequence_parallel_gathers_into_two_buffers() -> None:
    settings = {"num_gpus": 4, "tensor_model_parallel_size": 2, "sequence_parallel": True}
    rows = {row.name: row.nbytes for row in estimate(job(2, **settings)).stages[1].rows}
    assert rows["mpu_0 and mpu_1 buffers"] == 2 * HIDDEN
    assert rows["pipeline.deferred output_layer input"] == 2 * HIDDEN // 2
    assert rows["pipeline.deferred logits gradient"] == 2 * LOGITS // 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"pipeline_model_parallel_size": 1}, "needs pipeline_model_parallel_size above 1"),
        (
            {"gradient_accumulation_fusion": False},
            "needs pipeline_model_parallel_size above 1 and gradient_accumulation_fusion",
        ),
        ({"wgrad_deferral_limit": -1}, "must not be negative"),
        ({"mtp_num_layers": 1, "position_embedding_type": "rope"}, "with multi-token prediction is not modelled"),
    ],
)
def test_refusals(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EstimatorError) as error:
        estimate(job(2, **settings))
    assert sentence in str(error.value)
