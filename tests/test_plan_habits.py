"""What `plan` takes from published recipes, which chunks it tries, and the tight layouts that it offers apart."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate, plan
from megatron_memory_estimator.planner.base import base_job
from megatron_memory_estimator.planner.search import sampled
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.planner.space.features import BASICS, with_features

from .test_plan import printed

SMALL = ("--num-gpus", "16", "--global-batch-size", "256", "--top", "2", "--tp", "1", "--cp", "1", "--pp", "1,2")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(capsys, "plan", "Qwen/Qwen3-30B-A3B", *SMALL, *words, "--json"))
    return found


def test_the_allocator_and_the_dispatcher_of_published_recipes_are_taken_and_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = document(capsys, "--gpu", "H100")
    said = " ".join(found["assumptions"])
    assert "as in published recipes" in said and "HybridEP" in said and "bf16 gradients change numbers" in said
    first = found["plans"][0]
    assert first["settings"]["expandable_segments"] is True
    assert first["settings"]["moe_token_dispatcher_type"] == "flex"
    assert first["launch"]["environment"] == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": str(first["layout"]["expert_model_parallel_size"]),
    }
    assert "--moe-flex-dispatcher-backend" in first["launch"]["megatron_lm"]
    text = printed(capsys, "plan", "Qwen/Qwen3-30B-A3B", *SMALL, "--gpu", "H100", "--show", "1")
    assert "in its environment: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in text


def test_what_is_given_holds_over_habits(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "--gpu", "H100", "--no-expandable-segments", "--moe-token-dispatcher-type", "alltoall",
        "--no-overlap-grad-reduce",
    )  # fmt: skip
    given = {"gradient-overlap", "expandable-segments", "hybridep"}
    assert not given & {name for one in found["plans"] for name in one["features"]}
    buffers = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", nccl_ub=True)
    assert with_features(buffers, BASICS).features == ("gradient-overlap",)
    sharded = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100", use_megatron_fsdp=True)
    assert with_features(sharded, BASICS).features == ("expandable-segments",)


@pytest.mark.parametrize(("model", "gpu", "gpus", "taken"), [
    ("Qwen/Qwen3-30B-A3B", "H100", 8, True), ("Qwen/Qwen3-30B-A3B", "GB300", 8, True),
    ("Qwen/Qwen3-30B-A3B", "A100-80GB", 8, False),  # Bridge has it there; no recipe takes it
    ("Qwen/Qwen3-30B-A3B", "H100", 1, False), ("Qwen/Qwen3-8B", "H100", 8, False),
])  # fmt: skip
def test_the_flex_dispatcher_is_taken_where_recipes_take_it(model: str, gpu: str, gpus: int, *, taken: bool) -> None:
    job = TrainingJob.from_hf(model, gpus, gpu=gpu)
    assert ("hybridep" in with_features(job, BASICS).features) is taken
    other = TrainingJob.from_hf(model, gpus, gpu=gpu, moe_token_dispatcher_type="alltoall")
    assert "hybridep" not in with_features(other, BASICS).features


AXES = {"tp": "1", "cp": "1", "recompute": "none,moe_act,full"}


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_tight_plans_that_are_better_than_the_first_stand_apart(objective: str) -> None:
    """They are what `--tight` ranks above the first plan that fits."""
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, gpu="H100", moe_token_dispatcher_type="alltoall")
    found = plan(job, AXES, global_batch_size=512, objective=objective, every=True, top=1).found
    whole = plan(job, AXES, global_batch_size=512, objective=objective, every=True, top=50, tight=True).found
    first = whole.plans.index(next(one for one in whole.plans if one.needed.high <= found.limit))
    assert found.plans == [whole.plans[first]]
    assert found.apart == whole.plans[:first][:3]
    assert not whole.apart
    if objective == "throughput":
        assert found.apart and all(one.needed.low <= found.limit < one.needed.high for one in found.apart)


def test_a_search_offers_tight_plans_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--gpu",
        "H100",
        "--no-expandable-segments",
        "--moe-token-dispatcher-type",
        "alltoall",
        "--recompute",
        "none,moe_act,full",
    )
    apart = document(capsys, *words)["tight_plans"]
    assert apart and all(one["verdict"] != "fits" for one in apart)
    text = printed(capsys, "plan", "Qwen/Qwen3-30B-A3B", *SMALL, *words)
    assert "Faster, but may not fit" in text and f"{apart[0]['tokens_per_s_gpu']:,.0f} tokens/s/GPU" in text


@pytest.mark.parametrize(("model", "values"), [
    ("meta-llama/Meta-Llama-3-70B", {1, 2, 4, 5, 8, 10, 20, 40}),  # divisors of 80 / pp, of stages that divide 256
    ("Qwen/Qwen3-235B-A22B", {1, 12, 47}),  # 94 layers; 12 chunks a stage in the recipes of Megatron-Bridge
])  # fmt: skip
def test_every_number_of_chunks_that_splits_evenly_is_tried(model: str, values: set[int]) -> None:
    job = TrainingJob.from_hf(model, 1, gpu="H100", global_batch_size=1024)
    tried = set(completed(Space(num_gpus=(256,)), job).virtual_pipeline_model_parallel_size)
    assert values <= tried
    assert all(vp <= 12 or any(job.model.num_layers % (pp * vp) == 0 for pp in range(2, 65)) for vp in tried)


def test_short_answers_offer_them_too() -> None:
    from megatron_memory_estimator.planner.found import Found, Plan
    from megatron_memory_estimator.report.plans import rows_of
    from megatron_memory_estimator.report.summary import plan_summary

    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, gpu="H100", moe_token_dispatcher_type="alltoall")
    found: Found = plan(job, AXES, global_batch_size=512, top=1).found
    first: Plan = found.apart[0]
    (line, *_) = plan_summary(found, rows_of(found), ())["better_but_tight"]
    assert line.startswith(f"tp {first.job.layout.tp}, ") and f"{first.tokens_per_s_gpu:,.0f} tokens/s/GPU" in line


GROUPED = ["Qwen/Qwen3-8B", "Qwen/Qwen2.5-7B", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B"]


@pytest.mark.parametrize("model", GROUPED)
def test_recomputed_core_attention_is_not_tried_where_it_keeps_more_than_it_drops(model: str) -> None:
    base = TrainingJob.from_hf(model, 16, gpu="H100", seq_length=4096, global_batch_size=64)
    words = completed(Space(num_gpus=(16,)), base).recompute
    assert words and not any("core_attn" in word for word in words)
    asked = completed(Space(num_gpus=(16,), recompute=("core_attn",)), base).recompute
    assert asked == ("core_attn",)
    for drawn in sampled(base, Space(num_gpus=(16,), recompute=("none",)), 8, seed=1):
        training = dataclasses.replace(
            drawn.job.training, recompute_granularity="selective", recompute_modules=("core_attn",)
        )
        with_it, without = estimate(dataclasses.replace(drawn.job, training=training)), estimate(drawn.job)
        for one, other in zip(with_it.stages, without.stages, strict=True):
            assert one.peak_allocated_bytes >= other.peak_allocated_bytes


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("Qwen/Qwen3-8B", {"attention_backend": "unfused"}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {}),
        ("deepseek-ai/DeepSeek-V3", {}),
    ],
)
def test_it_is_tried_where_it_may_help(model: str, settings: dict[str, Any]) -> None:
    """Scores that no fused kernel drops; an output gate, which keeps the packed output in any case; latent attention."""
    base = TrainingJob.from_hf(model, 16, gpu="H100", seq_length=4096, global_batch_size=64, **settings)
    assert "core_attn" in completed(Space(num_gpus=(16,)), base).recompute


@pytest.mark.parametrize(
    ("gpus", "stages", "batch"), [(24, {1, 2, 3, 4, 6, 8, 12, 24}, 1152), (40, {1, 2, 4, 5, 8, 10, 20, 40}, 1280)]
)
def test_numbers_of_gpus_that_are_no_powers_of_two(gpus: int, stages: set[int], batch: int) -> None:
    """Stages divide the GPUs, and the batch that is not given divides into micro batches of several sequences on every rank."""
    job = TrainingJob.from_hf("zai-org/GLM-4.5-Air", gpus, gpu="H200")
    assert set(completed(Space(num_gpus=(gpus,)), job).pipeline_model_parallel_size) == stages
    base, said = base_job(job, (gpus,), None)
    assert base.training.global_batch_size == batch
    assert f"global_batch_size not given: {batch}" in said[0]
    for usual in (8, 64, 2048):
        assert base_job(job, (usual,), None)[0].training.global_batch_size == max(1024, usual)
