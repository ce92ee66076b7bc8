"""Moments outside the schedule: deferred weight gradients, gradient finalisation, the optimizer step; each row by hand."""

from __future__ import annotations

from math import prod
from typing import Any

from megatron_memory_estimator import Stage, estimate
from megatron_memory_estimator.rank.boundary import resting_tensors
from megatron_memory_estimator.rank.peak import draining, finalising, optimizer_step
from megatron_memory_estimator.rank.rank import Candidate
from megatron_memory_estimator.tape.tensor import DTYPE_BYTES

from .helpers import small_job
from .test_deferred_wgrad import HIDDEN, LOGITS, job

PARAMETERS = 4 * (1024 * (1536 + 1024 + 8192 + 4096) + 2 * 1024) + 2 * 32000 * 1024 + 1024


def stage(num_gpus: int = 1, **settings: Any) -> Stage:
    return estimate(small_job(num_gpus, **settings)).stages[0]


def rows(found: Candidate) -> list[tuple[str, str, int, int]]:
    """(part, dtype, elements, copies) of what is there in addition; the bytes are those of the shape."""
    for row in found.extras:
        assert row.nbytes == row.copies * prod(row.local_shape) * DTYPE_BYTES[row.dtype]
    return [(row.part, row.dtype, prod(row.local_shape), row.copies) for row in found.extras]


def test_deferred_weight_gradients_wait_together() -> None:
    """Two of four microbatches, each with the head's input, the gradient of its logits, and the stage's received input and gradient."""
    rank = estimate(job(2)).stages[1].rank
    found = draining(rank)
    waiting = sum(row.nbytes for row in found.extras)
    assert waiting == 2 * (HIDDEN + LOGITS) + 2 * 2 * HIDDEN
    assert found.nbytes - waiting == sum(t.nbytes for t in resting_tensors(rank))
    assert {(part, dtype, copies) for part, dtype, _, copies in rows(found)} == {("pipeline", "bf16", 1)}


def test_gradients_of_replicated_parameters_are_flattened() -> None:
    """With sequence parallelism the nine norms of four layers and the end; in the gradients' dtype; without it nothing."""
    sharded: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    assert rows(finalising(stage(2, **sharded).rank, 0)) == [("transient", "fp32", 9 * 1024, 1)]
    found = finalising(stage(2, **sharded, grad_reduce_in_bf16=True).rank, 100)
    assert rows(found) == [("transient", "bf16", 9 * 1024, 1)]
    assert found.nbytes == 100 + 2 * 9 * 1024
    assert rows(finalising(stage(2, tensor_model_parallel_size=2).rank, 0)) == []


def test_what_exists_in_the_optimizer_step() -> None:
    """bf16 gradients are copied to fp32 and rest until they are zeroed; a moment in bf16 is unscaled to fp32 for the step alone."""
    assert rows(optimizer_step(stage().rank, 0)) == []
    copied = optimizer_step(stage(grad_reduce_in_bf16=True).rank, 100)
    assert rows(copied) == [("optimizer", "fp32", PARAMETERS, 1)]
    assert copied.nbytes == 100 + 4 * PARAMETERS
    assert copied.extras[0].why == "until gradients are zeroed"
    aware: dict[str, Any] = {
        "use_distributed_optimizer": True,
        "use_precision_aware_optimizer": True,
        "exp_avg_dtype": "bf16",
    }
    unscaled = optimizer_step(stage(**aware).rank, 0)
    assert rows(unscaled) == [("transient", "fp32", PARAMETERS, 1)]
    assert unscaled.extras[0].why == "exists only in the optimizer step"
