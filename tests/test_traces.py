"""Traces of a step: PyTorch's snapshot of its allocations, Perfetto's of its schedule."""

from __future__ import annotations

import json
import pickle
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest

from megatron_memory_estimator import Estimate, EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.rank.rank import Rank
from megatron_memory_estimator.timeline.moments import moments
from megatron_memory_estimator.timeline.passes import listed_passes
from megatron_memory_estimator.timeline.perfetto import schedule_trace
from megatron_memory_estimator.timeline.snapshot import Instant, instants

from .helpers import SWEEP
from .random_jobs import random_job

SMALL: dict[str, Any] = {"global_batch_size": 32, "seq_length": 2048}
JOBS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dense": ("Qwen/Qwen3-8B", 8, {"pp": 4, "tp": 2}),
    "interleaved, full recompute": (
        "Qwen/Qwen3-8B", 8, {"pp": 2, "vpp": 3, "recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ),
    "experts, output-discarding checkpoints": (
        "deepseek-ai/DeepSeek-V3", 64,
        {"pp": 4, "ep": 8, "recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "moe_act"), "global_batch_size": 64},
    ),
    "hyper-connections": ("deepseek-ai/DeepSeek-V4-Flash", 64, {"pp": 2, "ep": 32, "global_batch_size": 64}),
    "hybrid": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 16, {"ep": 8, "tp": 2}),
    "sharded gathers, unequal chunks": (
        "Qwen/Qwen3-8B", 8, {"use_torch_fsdp2": True, "gradient_accumulation_fusion": False, "use_distributed_optimizer": False},
    ),
    "masks, cut along cp and kept by checkpoints": (
        "Qwen/Qwen3-8B", 16,
        {"pp": 2, "cp": 2, "vpp": 3, "create_attention_mask_in_dataloader": True, "recompute_granularity": "full",
         "recompute_method": "block", "recompute_num_layers": 2, "seq_length": 16384},
    ),
    "deferred weight gradients": (
        "Qwen/Qwen3-8B", 8, {"pp": 4, "defer_embedding_wgrad_compute": True, "use_distributed_optimizer": True},
    ),
    "graphs": ("Qwen/Qwen3-8B", 8, {"pp": 2, "cuda_graph_impl": "transformer_engine"}),
    "layers in host memory": (
        "Qwen/Qwen3-30B-A3B", 8,
        {"ep": 8, "fine_grained_activation_offloading": True, "offload_modules": ("expert_fc1", "moe_act"), "moe_permute_fusion": True},
    ),
}  # fmt: skip


def estimated(name: str) -> Estimate:
    model, num_gpus, settings = JOBS[name]
    return estimate(TrainingJob.from_hf(model, num_gpus, **{**SMALL, **settings}))


def played(found: Estimate, rank: Rank, most: int = 24) -> tuple[list[Any], list[Instant]]:
    own = listed_passes(found.declarer.context, rank, most)[1]
    return list(moments(rank, own)), list(instants(rank, own))


@pytest.mark.parametrize("name", JOBS)
def test_each_moment_has_the_bytes_of_the_timeline(name: str) -> None:
    """And what comes and goes leaves what rests between two steps; no tensor is freed twice."""
    found = estimated(name)
    for stage in found.stages:
        listed, events = played(found, stage.rank)
        highest = {
            moment: max(one.nbytes for one in group) for moment, group in groupby(events, lambda one: one.moment)
        }
        assert [highest[place] for place in range(len(listed))] == [moment.highest_bytes for moment in listed]
        assert events[0].nbytes == events[-1].nbytes == stage.peak.steady
        alive: dict[Any, int] = {}
        for one in events:
            for key in one.freed:
                del alive[key]
            assert not any(key in alive for key, _ in one.made)
            alive.update((key, row.nbytes) for key, row in one.made)
            assert sum(alive.values()) == one.nbytes
        assert max(one.nbytes for one in events) == max(moment.highest_bytes for moment in listed)


def test_a_snapshot_peaks_at_the_estimate_with_named_tensors() -> None:
    """Replayed as PyTorch's `_memory_viz.trace` does: an alloc adds, a free_completed takes away."""
    found = estimated("dense")
    stage = found.stages[0]
    entries = found.memory_snapshot(0)["device_traces"][0]
    total = highest = 0
    addresses = set()
    for one in entries:
        if one["action"] == "alloc":
            assert one["addr"] not in addresses
            addresses.add(one["addr"])
            total += one["size"]
        elif one["action"] == "free_completed":
            total -= one["size"]
        highest = max(highest, total)
        assert [sorted(frame) for frame in one["frames"]] == [["filename", "line", "name"]] * 3
    assert highest == stage.peak_allocated_bytes
    assert total == stage.peak.steady
    assert [one["time_us"] for one in entries] == sorted(one["time_us"] for one in entries)
    assert any(one["frames"][0]["name"].startswith("layers.3.") for one in entries)


def test_a_schedule_has_every_stage_and_its_memory() -> None:
    found = estimated("dense")
    events = schedule_trace(found)["traceEvents"]
    for stage in found.stages:
        own = [one for one in events if one["pid"] == stage.pp_rank]
        assert max(one["args"]["bytes"] for one in own if one["ph"] == "C") == stage.peak_allocated_bytes
        spans = [one for one in own if one["ph"] == "X" and one["cat"] in ("forward", "backward")]
        assert len(spans) == 2 * stage.rank.num_microbatches
        ends = [one["ts"] + one["dur"] for one in spans]
        assert all(after["ts"] >= end - 1e-3 for end, after in zip(ends, spans[1:], strict=False))


def test_a_forward_beside_a_backward_has_no_snapshot() -> None:
    overlap = {"pp": 2, "vpp": 2, "ep": 4, "overlap_moe_expert_parallel_comm": True}
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, **{**SMALL, **overlap}))
    with pytest.raises(EstimatorError, match="overlap_moe_expert_parallel_comm"):
        found.memory_snapshot(0)
    assert schedule_trace(found)["traceEvents"]


def test_the_command_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot, schedule = tmp_path / "step.pickle", tmp_path / "step.json"
    main(["timeline", "Qwen/Qwen3-8B", "--num-gpus", "8", "--trace", str(snapshot), "--trace", str(schedule)])
    assert pickle.loads(snapshot.read_bytes())["device_traces"][0]
    assert json.loads(schedule.read_text())["traceEvents"]
    with pytest.raises(SystemExit) as ended:
        main(["timeline", "Qwen/Qwen3-8B", "--num-gpus", "8", "--trace", str(tmp_path / "step.txt")])
    assert ended.value.code == 2
    assert "must end in .pickle or .json" in capsys.readouterr().err
    assert not (tmp_path / "step.txt").exists()


def test_random_jobs_have_the_bytes_of_their_timeline() -> None:
    seen = 0
    for seed in range(25 if SWEEP else 8):
        drawn = random_job(Random(seed))
        try:
            found = estimate(drawn.job())
            steps = [played(found, stage.rank, 12) for stage in found.stages]
        except EstimatorError:
            continue
        for listed, events in steps:
            seen += 1
            highest = {at: max(one.nbytes for one in group) for at, group in groupby(events, lambda one: one.moment)}
            assert list(highest.values()) == [moment.highest_bytes for moment in listed], drawn
    assert seen > 8
