"""The step of an optimizer in host memory: bytes over the link and through one core, hand-worked."""

from __future__ import annotations

import pytest

from megatron_memory_estimator import TrainingJob, estimate, plan
from megatron_memory_estimator.throughput import throughput

OFFLOADED = {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True, "optimizer_offload_fraction": 1.0}


@pytest.mark.parametrize(
    ("gpu", "link", "core"), [("H100", 64e9, 12e9), ("A100-80GB", 32e9, 12e9), ("GB200", 450e9, 30e9)]
)
def test_the_step_moves_gradients_and_parameters_and_touches_28_bytes_of_each(
    gpu: str, link: float, core: float
) -> None:
    """fp32 gradients to the host and parameters back (8 bytes over the link), four fp32 tensors read and three written there."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu=gpu, global_batch_size=64, **OFFLOADED))  # type: ignore[arg-type]
    owned = sum(buffer.owned for buffer in found.stages[0].rank.buffers)
    assert owned > 10**9
    on_the_host = owned * (8 / (0.84 * link) + 28 / core)
    own = throughput(estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu=gpu, global_batch_size=64)))
    there = throughput(found)
    # and what still passes through the GPU's memory
    assert there.parts["optimizer"] == pytest.approx(on_the_host, rel=0.2)
    assert there.parts["optimizer"] > on_the_host
    assert {name: value for name, value in there.parts.items() if name != "optimizer"} == pytest.approx(
        {name: value for name, value in own.parts.items() if name != "optimizer"}
    )


def test_an_offloaded_plan_is_ranked_by_its_time() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100")
    axes = {
        "tp": "1",
        "pp": "1",
        "cp": "1",
        "micro_batch_size": "1",
        "recompute": "none",
        "optimizer_offload_fraction": "0,0.5,1",
    }
    found = plan(job, axes, global_batch_size=64, every=True, tight=True).found
    shares = [
        one.job.training.optimizer_offload_fraction for one in found.plans if one.job.training.optimizer_cpu_offload
    ]
    assert shares == [0.5, 1.0] and [one.step for one in found.plans] == sorted(one.step for one in found.plans)
    for one in found.plans:
        assert throughput(estimate(one.job)).step == pytest.approx(one.step, rel=1e-6)
