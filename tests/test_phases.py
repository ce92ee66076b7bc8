"""Build, load and save: hand-worked peaks of a small model, and what a checkpoint stages on the host."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Stage, estimate
from megatron_memory_estimator.device.phases import METADATA, build, built_apart, own_storage

from .helpers import moe_job, small_job

AWARE: dict[str, Any] = {
    "use_distributed_optimizer": True, "use_precision_aware_optimizer": True, "main_grads_dtype": "bf16",
}  # fmt: skip


def stage(num_gpus: int = 1, **settings: Any) -> Stage:
    return estimate(small_job(num_gpus, **settings)).stages[0]


def peaks(found: Stage) -> dict[str, tuple[int, int]]:
    return {phase.name: (phase.low, phase.high) for phase in found.phases}


def test_build_has_each_buffer_beside_its_parameters() -> None:
    """bf16 weights, fp32 gradients, one buffer: 2 (old parameters) + 2 + 4 bytes per parameter (padding: below 0.1 %)."""
    found = stage(2, use_distributed_optimizer=True)
    assert peaks(found)["build"][0] == pytest.approx(8 * sum(found.num_parameters), rel=1e-3)


def test_load_makes_gradients_then_a_second_copy() -> None:
    """Two ranks: weights 2 + gradients 4 + state 12/2 = 12 bytes per parameter; a dummy gradient 4/2, a second copy 12/2."""
    found = stage(2, use_distributed_optimizer=True)
    low, high = peaks(found)["load"]
    assert low == pytest.approx(14 * sum(found.num_parameters), rel=1e-3)
    assert high - 2 * METADATA == pytest.approx(18 * sum(found.num_parameters), rel=1e-3)


def test_load_without_the_distributed_optimizer_needs_no_dummy_step() -> None:
    found = stage(2)
    assert peaks(found)["load"][0] == 18 * sum(found.num_parameters)


def test_offloaded_state_is_not_loaded_on_the_gpu() -> None:
    settings: dict[str, Any] = {"use_distributed_optimizer": True, "use_precision_aware_optimizer": True}
    found = stage(2, optimizer_cpu_offload=True, optimizer_offload_fraction=1.0, **settings)
    assert peaks(found)["load"][0] == pytest.approx(6 * sum(found.num_parameters), rel=1e-3)


def test_save_adds_metadata_only() -> None:
    found = stage(4, use_distributed_optimizer=True)
    assert peaks(found)["save"] == (found.steady_allocated_bytes, found.steady_allocated_bytes + 4 * METADATA)


def test_metadata_of_many_ranks_is_gigabytes() -> None:
    """About 2 GB on a GPU were seen (Megatron-LM issue 1380); 1 to 5 MB of each of 512 ranks are 0.5 to 2.56 GB."""
    low, high = peaks(stage(512, use_distributed_optimizer=True))["save"]
    assert 2 * 10**9 < high - low <= 512 * 5 * 10**6


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"use_distributed_optimizer": True}, 2 + 12 / 4),
        ({}, 2 + 12 / 4),  # replicas share the work of a fully parallel save
        ({"optimizer": "sgd"}, 2 + 8 / 4),
        # what exists in the step alone is in no checkpoint
        ({"use_distributed_optimizer": True, "grad_reduce_in_bf16": True}, 2 + 12 / 4),
        ({**AWARE, "fp8_recipe": "tensorwise"}, 2 + 12 / 4),
        ({**AWARE, "optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}, 2 + 12 / 4),
        ({"use_distributed_optimizer": True, "params_dtype": "fp32"}, 4 + 8 / 4),
        (
            {"use_distributed_optimizer": True, "use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16"},
            2 + 12 / 4,
        ),
    ],
)
def test_bytes_per_parameter_staged_on_the_host(settings: dict[str, Any], expected: float) -> None:
    """Four data-parallel ranks: the rank's weights, and masters and moments in fp32 of its share."""
    found = stage(4, **settings)
    staged = next(term for term in found.host if term.name.startswith("checkpoint"))
    assert staged.low == 0
    assert staged.high == pytest.approx(expected * sum(found.num_parameters), rel=1e-3)


def test_what_building_allocates_in_all() -> None:
    """2 bytes of own storage, then 2 + 4 of each buffer; the own storage of its parameters is freed when a buffer is built."""
    dense = stage(2, use_distributed_optimizer=True)
    (buffer,) = dense.rank.buffers
    assert (own_storage(dense.rank), build(dense.rank), built_apart(dense.rank)) == (
        2 * buffer.numel,
        8 * buffer.numel,
        8 * buffer.numel,
    )
    experts = estimate(moe_job(2, expert_model_parallel_size=2, use_distributed_optimizer=True)).stages[0].rank
    first, second = (one.numel for one in experts.buffers)
    assert built_apart(experts) == 8 * (first + second)
    assert build(experts) == 8 * first + 2 * second > 6 * first + 8 * second, (
        "all parameters are there beside the first buffer"
    )


def test_frozen_weights_are_built_beside_the_adapters() -> None:
    found = stage(2, use_distributed_optimizer=True, peft="lora", peft_dim=16)
    (buffer,) = found.rank.buffers
    frozen = sum(s.nbytes for s in found.rank.states if s.frozen)
    assert frozen > 0 and own_storage(found.rank) == 2 * buffer.numel
    assert build(found.rank) == built_apart(found.rank) == 8 * buffer.numel + frozen
