"""The changes that advice tries, by their settings, and how advice weighs them: lists and figures by hand."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, advise, estimate
from megatron_memory_estimator.job.rollout import MOVED
from megatron_memory_estimator.planner.advise import Groups, Outcome, outcomes, priced, step_time, worth
from megatron_memory_estimator.planner.base import fewest
from megatron_memory_estimator.planner.changes import (
    Change,
    allocator,
    larger_changes,
    memory_changes,
    rollout_changes,
    speed_changes,
)
from megatron_memory_estimator.planner.changes import _uneven as uneven  # by hand: what no public door lists alone

GIB = 2**30
TP, PP, CP, EP = (f"{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context", "expert_model"))
MBS, VPP = "micro_batch_size", "virtual_pipeline_model_parallel_size"


def job(name: str = "Qwen/Qwen3-8B", gpus: int = 8, **settings: Any) -> TrainingJob:
    return TrainingJob.from_hf(name, gpus, **settings)


def values(changes: Any, setting: str) -> list[Any]:
    """The values of a setting that changes give, in their order."""
    return [dict(one.settings)[setting] for one in changes if setting in dict(one.settings)]


def test_numbers_are_halved_and_doubled() -> None:
    run = job(tp=2, micro_batch_size=4)
    assert values(memory_changes(run), MBS) == [2]
    assert values(memory_changes(job(tp=2)), MBS) == []
    assert values(speed_changes(run), MBS) == [8, 2]
    assert values(speed_changes(job(tp=2)), MBS) == [2]
    assert values(larger_changes(run), MBS) == [1]
    assert values(larger_changes(job(tp=2, micro_batch_size=8)), MBS) == [2, 1]
    assert values(memory_changes(run), TP) == [4] and values(speed_changes(run), TP) == [1, 4]
    assert values(larger_changes(run), TP) == [8, 16]
    assert values(memory_changes(run), "world_size") == [16] and values(larger_changes(run), "world_size") == [32]
    names = [one.name for one in memory_changes(run)]
    assert "micro batch 2 instead of 4" in names and "16 GPUs instead of 8" in names


def test_degrees_that_only_some_models_have() -> None:
    dense, moe = job(), job("Qwen/Qwen3-30B-A3B", 16, ep=2)
    assert values(memory_changes(dense), EP) == [] and values(memory_changes(moe), EP) == [4]
    assert values(speed_changes(moe), EP) == [1, 4] and values(speed_changes(moe), CP) == [2]
    assert values(speed_changes(moe), "moe_token_dispatcher_type") == ["flex"]
    assert values(speed_changes(job("Qwen/Qwen3-30B-A3B", 16)), "moe_token_dispatcher_type") == []
    flex = job("Qwen/Qwen3-30B-A3B", 16, ep=2, moe_token_dispatcher_type="flex")
    assert values(speed_changes(flex), "moe_token_dispatcher_type") == []


def test_virtual_stages_and_borders() -> None:
    run = job("Qwen/Qwen3-8B", 8, pp=4, vpp=3)
    found = [dict(one.settings)[VPP] for one in speed_changes(run) if [name for name, _ in one.settings] == [VPP]]
    assert found == [2, 4, 5, 6, 8]
    assert list(uneven(36, 4, 1)) == [(6, None), (None, 6), (3, None), (None, 3)], (
        "three stages of 10 and 6, of 11 and 3"
    )
    assert list(uneven(36, 4, 3)) == [], "36 less three stages of 9, 12 or 15: none leaves whole chunks"
    assert list(uneven(32, 4, 2)) == [(2, None), (None, 2)]
    names = [one.name for one in memory_changes(job("Qwen/Qwen3-8B", 8, pp=4))]
    assert "6 layers on the first stage" in names and "6 layers on the last stage" in names
    assert "layers split by their work" in names


def test_optimizers_and_what_they_ask_for() -> None:
    plain = {one.name: one for one in memory_changes(job(tp=2))}
    host = next(one for one in plain.values() if "optimizer_cpu_offload" in dict(one.settings))
    assert host.asks == "host memory"
    moments = next(one for one in plain.values() if "exp_avg_dtype" in dict(one.settings))
    assert moments.asks == "numerics"
    for settings in ({"optimizer_cpu_offload": True}, {"use_distributed_optimizer": False}, {"optimizer": "muon"}):
        changes = memory_changes(job(tp=2, **settings))
        assert values(changes, "optimizer_cpu_offload") == [], settings
    assert values(memory_changes(job(tp=2, use_distributed_optimizer=False)), "use_distributed_optimizer") == [True]
    overlap = [dict(one.settings) for one in speed_changes(job(tp=2, overlap_grad_reduce=False))]
    assert {"overlap_grad_reduce": True, "overlap_param_gather": True} in overlap


def test_recomputation_that_covers_more_or_less() -> None:
    sets = values(memory_changes(job(tp=2)), "recompute_modules")
    assert ("core_attn",) not in sets and None in sets, "core_attn costs with a fused kernel; None is full"
    assert all(modules is None or "core_attn" not in modules for modules in sets)
    granular = job(tp=2, recompute_granularity="selective", recompute_modules=["layernorm"])
    assert all(
        modules is None or "layernorm" in modules for modules in values(memory_changes(granular), "recompute_modules")
    )
    full = job(tp=2, recompute_granularity="full")
    assert values(memory_changes(full), "recompute_granularity") == []
    assert None in values(speed_changes(full), "recompute_granularity")
    assert values(speed_changes(job(tp=2)), "recompute_granularity") == []


def test_engines_that_share_the_gpus() -> None:
    assert list(rollout_changes(job())) == []
    run = job(tp=2, rollout_engine="vllm", rollout_colocated=True, rollout_memory_share=0.45, rollout_sleeps=False)
    found = list(rollout_changes(run))
    assert values(found, "rollout_memory_share") == [0.35, 0.25], "a fifth of the GPU is the least"
    assert values(found, "rollout_sleeps") == [True] and values(found, "rollout_offload") == [MOVED]
    asleep = job(tp=2, rollout_engine="vllm", rollout_colocated=True, rollout_sleeps=True, rollout_offload=MOVED)
    assert list(rollout_changes(asleep)) == []
    exchange = job(
        tp=2,
        rollout_engine="vllm",
        rollout_sleeps=True,
        rollout_offload=MOVED,
        rollout_tensor_parallel_size=2,
        weight_sync_bytes=2**31,
    )
    assert values(rollout_changes(exchange), "rollout_tensor_parallel_size") == [4, 8], "of 8 GPUs"
    assert values(rollout_changes(exchange), "weight_sync_bytes") == [2**29]


def test_a_step_is_timed_with_the_tokens_of_plan() -> None:
    run = job(tp=2, micro_batch_size=3, seq_length=4096)
    timed, said = priced(run)
    # 4 Mi tokens are 1,024 sequences of 4,096; the batch is a multiple of 2 x 8 GPUs x 3: 22 x 48
    assert timed.training.global_batch_size == 1056 and "1056 samples (4.1 Mi tokens)" in said[0]
    fixed = job(tp=2, global_batch_size=64)
    assert priced(fixed)[0] is fixed
    found = estimate(fixed)
    assert step_time(found).step == Outcome((), found).time.step
    assert step_time(estimate(run)).step == step_time(estimate(timed)).step


def test_what_pays_for_itself() -> None:
    now = Outcome((), estimate(job(tp=2, global_batch_size=64)))
    made = {one.changes[0].name: one for one in outcomes(now, [(one,) for one in memory_changes(now.job)])}
    kept = worth(list(made.values()))
    for one in kept:
        others = [other for other in kept if other is not one and other.asks <= one.asks]
        assert not any(other.needed.high <= one.needed.high and other.time.step <= one.time.step for other in others), (
            "another is as small and as fast, and asks for nothing more"
        )
    assert len(kept) < len(made)


def test_what_a_group_takes_is_foreseen_by_its_parts() -> None:
    """Each change alone multiplies the figure; a pair that is known replaces the product of its two."""
    now = Outcome((), estimate(job(tp=2, micro_batch_size=2, global_batch_size=64)))
    singles = list(outcomes(now, [(one,) for one in list(memory_changes(now.job))[:4]]))
    groups = Groups(now, singles, 80 * GIB)
    one, other, third = (single.changes[0] for single in singles[:3])
    training = {single.changes[0]: single.estimate.phases["training"].high for single in singles}
    base = now.estimate.phases["training"].high
    foreseen = exp(groups._foreseen((one, other), "training"))
    assert foreseen == pytest.approx(training[one] * training[other] / base)
    pair = frozenset((one, other))
    groups.figures[pair] = {"training": log(base / 2)}
    assert exp(groups._foreseen((one, other, third), "training")) == pytest.approx(base / 2 * training[third] / base)
    groups.figures[frozenset((one,))].pop("training")
    assert groups._foreseen((one,), "training") == float("inf")


def test_advice_says_what_it_is() -> None:
    tight = job("meta-llama/Llama-3.1-70B", 16, tp=8, gpu="H100")
    found = advise(tight, limit=40 * GIB)
    assert repr(found).startswith("<Advice H100-80GB, 40.00 GiB: ") and repr(found.now).startswith(
        "<Outcome as it is: "
    )
    assert not found.without_layout and not found.faster
    open_layout = advise(job("meta-llama/Llama-3.1-405B", 8, gpu="H100"))
    assert open_layout.without_layout and open_layout.outcomes == ()
    assert not advise(job("Qwen/Qwen3-0.6B", 8)).without_layout, "it fits"


def test_the_allocator_is_first_where_only_fragmentation_is_in_the_way_and_only_then() -> None:
    run = job("Qwen/Qwen3-8B", 8, tp=2, global_batch_size=64)
    low, high = (getattr(estimate(run).verdict().device, side) for side in ("low", "high"))
    expandable = estimate(replace(run, env=replace(run.env, expandable_segments=True))).verdict().device.high
    between = (max(low, expandable) + high) // 2
    assert advise(run, limit=between).outcomes[0].changes == (allocator(run),)
    less = advise(run, limit=low - GIB)
    assert less.now.verdict(low - GIB).word != "fits only without fragmentation"
    assert all(one.needed.high <= low - GIB for one in less.outcomes)


def test_faster_changes_are_faster_and_fit() -> None:
    run = job("Qwen/Qwen3-8B", 8, tp=2, recompute_granularity="full", global_batch_size=128)
    found = advise(run)
    assert found.faster and found.outcomes
    steps = [one.time.step for one in found.outcomes]
    assert steps == sorted(steps) and all(step < 0.995 * found.now.time.step for step in steps)
    assert all(one.needed.high <= found.limit for one in found.outcomes)


def test_numbers_of_gpus_are_parts_of_a_node_then_whole_nodes() -> None:
    found = fewest((), 8)
    assert found[:10] == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
    assert [count // 8 for count in found[9:]] == [12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert fewest((), 4)[:5] == (1, 2, 4, 8, 12) and fewest((3, 5), 8) == (3, 5)


def test_changes_of_nothing_are_none() -> None:
    assert isinstance(allocator(job()), Change)
    assert values(memory_changes(job(expandable_segments=True)), "expandable_segments") == []
    assert values(
        memory_changes(job(create_attention_mask_in_dataloader=True)), "create_attention_mask_in_dataloader"
    ) == [False]
