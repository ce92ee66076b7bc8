"""The throughput model: published FLOPs, measured rates, properties of times. docs/throughput.md holds every row."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.hardware import GPUS
from megatron_memory_estimator.throughput import throughput
from megatron_memory_estimator.throughput.calibrate import Measured, calibrate, errors
from megatron_memory_estimator.throughput.flops import training_flops
from megatron_memory_estimator.throughput.links import collective, copies
from megatron_memory_estimator.throughput.machine import machine

from .helpers import FACTS, moe_job, small_job

# Megatron-Bridge's printed TFLOP/s over its tokens/s (src/megatron/bridge/training/utils/flop_utils.py)
PUBLISHED_TFLOP_PER_TOKEN = [
    ("deepseek-ai/DeepSeek-V3", 4096, 0.2600), ("Qwen/Qwen3-235B-A22B", 4096, 0.1480), ("Qwen/Qwen3-30B-A3B", 4096, 0.02301),
    ("meta-llama/Meta-Llama-3-70B", 8192, 0.4492), ("meta-llama/Meta-Llama-3-8B", 8192, 0.05147), ("Qwen/Qwen3-8B", 4096, 0.04903),
]  # fmt: skip


@pytest.mark.parametrize(("name", "seq_length", "expected"), PUBLISHED_TFLOP_PER_TOKEN)
def test_model_flops(name: str, seq_length: int, expected: float) -> None:
    job = TrainingJob.from_hf(name, 1, seq_length=seq_length)
    assert training_flops(job.model, job.training) / 1e12 == pytest.approx(expected, rel=5e-4)


@pytest.fixture(scope="module")
def runs() -> list[Measured]:
    found = []
    for line in (FACTS / "throughput.jsonl").read_text().splitlines():
        one = json.loads(line)
        if one["primary"]:
            job = TrainingJob.from_bridge(
                one["bridge"], one["num_gpus"], gpu=one["gpu"], transformer_engine_version="2.17"
            )
            found.append(Measured(one["id"], one["family"], estimate(job), one["tokens_per_s_gpu"]))
    return found


def test_published_rates(runs: list[Measured]) -> None:
    """Verified cards, the newest table and SimuMax: median within 12 %, four fifths within 25 %, nothing fitted."""
    found = [abs(error) for error in errors(runs)]
    assert len(found) == 53
    assert median(found) <= 0.12
    assert sum(error <= 0.25 for error in found) >= 0.8 * len(found)


def test_calibration_improves_what_it_is_fitted_to(runs: list[Measured]) -> None:
    some = [run for run in runs if run.family == "llama3_70b"]
    found = calibrate(some)
    assert found.after < found.before
    assert all(0.6 < factor < 1.7 for factor in found.factors.values())


def rate(**settings: Any) -> Any:
    return throughput(
        estimate(small_job(8, **{"gpu": "H100", "seq_length": 4096, "global_batch_size": 64, **settings}))
    )


def test_the_parts_are_the_step() -> None:
    found = rate(pipeline_model_parallel_size=2, tensor_model_parallel_size=2, sequence_parallel=True)
    assert sum(found.parts.values()) == pytest.approx(found.step)
    assert all(seconds >= 0 for seconds in found.parts.values())
    assert found.tokens_per_s_gpu == pytest.approx(64 * 4096 / found.step / 8)


def test_the_bubble_is_that_of_the_schedule() -> None:
    """Equal stages without exposed communication: (pp - 1) / (vp * microbatches) of the pipeline."""
    one = rate(pipeline_model_parallel_size=2, global_batch_size=32)
    more = rate(pipeline_model_parallel_size=2, global_batch_size=64)
    assert more.parts["bubble"] == pytest.approx(one.parts["bubble"])
    assert more.bubble < one.bubble
    interleaved = rate(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, global_batch_size=32)
    assert interleaved.parts["bubble"] < 0.6 * one.parts["bubble"]


@pytest.mark.parametrize(
    ("slower", "part"),
    [
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}, "recompute"),
        ({"recompute_granularity": "selective", "recompute_modules": ("mlp",)}, "recompute"),
        ({"tensor_model_parallel_size": 4, "sequence_parallel": True}, "tp"),
        ({"context_parallel_size": 4, "cp_comm_type": ("a2a",)}, "cp"),
    ],
)
def test_a_setting_costs_its_part(slower: dict[str, Any], part: str) -> None:
    assert rate().parts[part] == 0
    assert rate(**slower).parts[part] > 0


@pytest.mark.parametrize(
    ("hidden", "part"),
    [
        ({"tp_comm_overlap": True}, "tp"),
        ({"overlap_grad_reduce": True}, "gradient reduction"),
        ({"overlap_grad_reduce": True, "overlap_param_gather": True}, "parameter gather"),
    ],
)
def test_overlap_hides_communication(hidden: dict[str, Any], part: str) -> None:
    base: dict[str, Any] = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "use_distributed_optimizer": True,
    }
    assert rate(**base, **hidden).parts[part] < rate(**base).parts[part]


def test_experts_communicate_and_launch() -> None:
    settings: dict[str, Any] = {"gpu": "H100", "seq_length": 4096, "global_batch_size": 64}
    alone = throughput(estimate(moe_job(8, **settings)))
    spread = throughput(estimate(moe_job(8, **settings, expert_model_parallel_size=8)))
    assert alone.parts["ep"] == 0 < spread.parts["ep"]
    graph = throughput(estimate(moe_job(8, **settings, expert_model_parallel_size=8, cuda_graph_impl="full_iteration")))
    assert graph.parts["host"] == 0 < spread.parts["host"]


def test_collectives() -> None:
    """H100, 8 ranks, all-gather: 15.4 us and 7/8 of the bytes at 303 GB/s (NCCL 2.29, aiconfigurator); 32 ranks over the network."""
    m = machine(next(gpu for gpu in GPUS if gpu.name == "H100-80GB"))
    size = 256e6
    assert collective(m, "all_gather", size, 8, 1) == pytest.approx(15.4e-6 + size * 7 / 8 / 303e9)
    assert collective(m, "all_gather", size, 1, 1) == 0
    across = collective(m, "all_gather", size, 32, 1)
    assert across == pytest.approx(30e-6 + 8e-6 + size * 31 / 32 / (min(8 * 50e9, 0.6 * 450e9) * 0.85))
    assert collective(m, "all_gather", size, 4, 8) > collective(
        m, "all_gather", size, 4, 1
    )  # one GPU of each of four nodes


def test_a_token_goes_to_a_rank_once() -> None:
    """8 ranks, top 8 of many experts: 7 * (1 - (7/8)**8) other ranks on average."""
    assert copies(8, 8) == pytest.approx(7 * (1 - (7 / 8) ** 8))


@pytest.mark.parametrize("gpu", [gpu.name for gpu in GPUS])
def test_every_gpu_times_a_step(gpu: str) -> None:
    found = throughput(estimate(small_job(1, gpu=gpu)))
    assert 0 < found.mfu < 1
