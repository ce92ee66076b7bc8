"""Parts of the planner by hand: what advice changes, what a launch says, what a space means, when a checkpoint pays."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.planner import sample_lengths
from megatron_memory_estimator.planner.changes import _number, _pipeline, allocator, memory_changes
from megatron_memory_estimator.planner.found import Found
from megatron_memory_estimator.planner.largest import MOST_SEQUENCES, _values
from megatron_memory_estimator.planner.launch import _hydra, _ranks_joined, _unspoken, bridge_overrides
from megatron_memory_estimator.planner.search import search, too_large
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.planner.space.features import FEATURES, _overlap
from megatron_memory_estimator.planner.space.words import space_of
from megatron_memory_estimator.planner.whole_run import best_interval, share_of_steps
from megatron_memory_estimator.throughput import throughput

from .bounds_of_jobs import bound_of
from .helpers import moe_job, small_job


def test_a_change_says_what_it_changes() -> None:
    job = small_job(8)
    assert allocator(job).settings == (("expandable_segments", True),)
    alone = (("sequence_parallel", True),)
    assert alone not in {change.settings for change in memory_changes(job)}
    wide = small_job(8, tensor_model_parallel_size=2, sequence_parallel=False)
    assert alone in {change.settings for change in memory_changes(wide)}
    assert _number(job, "virtual_pipeline_model_parallel_size", 2).name.endswith("2 instead of 1")


def test_layers_that_a_pipeline_does_not_divide_are_split_unevenly() -> None:
    """A pipeline of four stages for 32 layers, and for 30."""
    for layers, ends in ((32, (None, None)), (30, (7, 7))):
        (change,) = _pipeline(TrainingJob.from_hf("meta-llama/Llama-3.1-8B", 8, num_layers=layers), 4)
        found = dict(change.settings)
        names = [f"num_layers_in_{end}_pipeline_stage" for end in ("first", "last")]
        assert tuple(found[name] for name in names) == ends


def test_the_batch_that_is_assumed_may_be_any() -> None:
    assert list(_values(small_job(8), "micro_batch_size")) == list(range(1, MOST_SEQUENCES + 1))
    assert list(_values(small_job(8, global_batch_size=96), "micro_batch_size")) == [1, 2, 3, 4, 6, 12]


def test_overrides_say_what_the_run_has_and_nothing_more() -> None:
    tracker = "rng.te_rng_tracker=true"
    plain, graphed = (
        bridge_overrides(small_job(8, **more)) for more in ({}, {"cuda_graph_impl": "transformer_engine"})
    )
    assert tracker not in plain and tracker in graphed
    share = {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True, "use_distributed_optimizer": True}
    offloaded = bridge_overrides(small_job(8, optimizer_offload_fraction=0.5, **share))
    assert "optimizer.optimizer_offload_fraction=0.5" in offloaded
    assert not any("offload_fraction" in word for word in plain)
    assert [_hydra(value) for value in (True, ("a", "b"), 4)] == ["true", "'[a,b]'", "4"]


@pytest.mark.parametrize(("gpu", "ranks"), [("H100", 8), ("GB200", 64)])
def test_ranks_of_a_dispatcher_are_a_power_of_two(gpu: str, ranks: int) -> None:
    """A domain has 8 GPUs, and 72."""
    assert _ranks_joined(small_job(8, gpu=gpu)) == ranks


def test_arguments_that_megatron_refuses_stay_unsaid() -> None:
    assert "mtp_num_layers" in {*_unspoken(TrainingJob.from_hf("Qwen/Qwen3-Next-80B-A3B-Instruct", 8))}
    assert "mtp_num_layers" not in {*_unspoken(small_job(8))}


@pytest.mark.parametrize(
    ("recipe", "padded"), [("blockwise", "blockwise"), ("mxfp8", "mxfp8"), ("delayed", "tensorwise")]
)
def test_microbatches_are_padded_as_their_recipe_wants(
    recipe: str, padded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def padded_(packing: str, microbatch: Any, shards: Any) -> int:
        seen.append(shards.fp8)
        return 0

    monkeypatch.setattr(sample_lengths, "padded", padded_)
    gpu = "B200" if recipe == "mxfp8" else "H100"
    sample_lengths._padded(small_job(8, fp8="e4m3", fp8_recipe=recipe, gpu=gpu), [5])
    sample_lengths._padded(small_job(8), [5])
    assert seen == [padded, ""]


def test_a_space_that_is_too_large_without_numpy_names_its_longest_axes() -> None:
    space = completed(Space(), small_job(8))
    found = Found(dataclasses.replace(space, micro_batch_size=(1, 2, 4, 8, 16, 32, 64)), 0)
    said = str(too_large(found))
    assert "micro_batch_size (7 values)" in said and "(1 values)" not in said


def test_a_word_that_no_axis_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="hlaf"):
        completed(Space(recompute=("hlaf",)), small_job(8))
    for word, value in (("yes", True), ("on", True), ("true", True), ("no", False), ("off", False)):
        assert space_of(small_job(8), {"sequence_parallel": word}).sequence_parallel == (value,)


def test_features_are_on_where_a_run_may_have_them() -> None:
    plain = small_job(8, use_distributed_optimizer=True)
    assert _overlap(plain) == {"overlap_grad_reduce": True, "overlap_param_gather": True}
    assert not _overlap(small_job(8, use_megatron_fsdp=True, gradient_accumulation_fusion=False))
    assert not _overlap(small_job(8, use_torch_fsdp2=True))
    assert not _overlap(small_job(8, optimizer="sgd"))
    assert FEATURES["graph-of-iteration"].experimental
    one, two = (FEATURES["hybridep"].settings(moe_job(gpus, gpu="H100")) for gpus in (1, 2))
    assert not one and two


def test_the_best_interval_of_checkpoints_is_daly_s() -> None:
    """Daly 2006: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 18M) - d, with d = 500 and M = 1,000: 694.4 seconds. It costs least."""
    assert best_interval(1.0, 500.0, 1000.0) == 694
    shares = [share_of_steps(float(steps), 50.0, 0.0, 1000.0) for steps in range(100, 1000, 10)]
    assert abs(100 + 10 * shares.index(max(shares)) - best_interval(1.0, 50.0, 1000.0)) <= 10


def test_what_is_found_says_its_first_plan() -> None:
    found = search(
        small_job(8, global_batch_size=32), Space(tensor_model_parallel_size=(1,), pipeline_model_parallel_size=(1,))
    )
    assert repr(found).startswith(f"<Found {len(found.plans)} plans of ") and repr(found.plans[0]) in repr(found)


@pytest.mark.parametrize("settings", [{}, {"pipeline_model_parallel_size": 4}, {"recompute_granularity": "full"}])
@pytest.mark.parametrize("make", [small_job, moe_job])
def test_a_bound_is_near_what_it_bounds(make: Any, settings: dict[str, Any]) -> None:
    """A bound that is far below is legal and useless: a search evaluates what it does not rule out."""
    more = {"recompute_method": "uniform", "recompute_num_layers": 1} if "recompute_granularity" in settings else {}
    found = estimate(make(8, micro_batch_size=4, seq_length=4096, global_batch_size=64, **settings, **more))
    bound = bound_of(found.job, arrays=False)
    assert 0.9 * found.peak_stage.peak_allocated_bytes < bound.peak <= found.peak_stage.peak_allocated_bytes
    assert 0.9 * throughput(found).step < bound.step <= throughput(found).step
