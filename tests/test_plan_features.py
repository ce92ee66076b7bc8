"""Features as an axis of a search: what published recipes turn on, what is on in a plan, and what it is worth."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate, plan
from megatron_memory_estimator.planner.base import base_job
from megatron_memory_estimator.planner.paying import PAYS, paying, worth
from megatron_memory_estimator.planner.search import sampled, search
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.choices import PRECISIONS
from megatron_memory_estimator.planner.space.features import (
    BASICS,
    FEATURES,
    kind_of,
    published,
    sets_of,
    variants,
    with_features,
)
from megatron_memory_estimator.throughput import throughput

from .helpers import FACTS, SWEEP
from .test_plan import printed
from .test_planner import same_figures, worth_a_line

MODELS = {
    "dense": "Qwen/Qwen3-8B",
    "moe": "Qwen/Qwen3-30B-A3B",
    "mla": "moonshotai/Moonlight-16B-A3B",
    "hybrid": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
}
GPUS = {"hopper": "H100", "blackwell": "GB200"}
RECIPE = {"bf16": "bf16", "fp8": "tensorwise", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


def job_of(kind: str, generation: str, precision: str, gpus: int = 16) -> TrainingJob:
    given = {name: value for name, value in PRECISIONS[RECIPE[precision]].items() if value}
    job = TrainingJob.from_hf(MODELS[kind], gpus, gpu=GPUS[generation], **given)
    return base_job(job, (gpus,), 128)[0]


@pytest.mark.parametrize(("kind", "model"), MODELS.items())
def test_kinds_of_models(kind: str, model: str) -> None:
    assert kind_of(TrainingJob.from_hf(model, 8)) == kind


def test_every_published_set_can_be_on() -> None:
    """Each row names features, and each of them has something for a job of each kind, generation and precision of the row."""
    for row in published():
        assert set(row.features) <= set(FEATURES) and row.models and set(row.generations) <= set(GPUS)
        for kind in row.kinds:
            for generation in row.generations:
                for precision in row.precisions:
                    job = job_of(kind, generation, precision)
                    names = (*BASICS[:2], *row.features)
                    groups = {FEATURES[name].group for name in names}
                    on = with_features(job, names).features
                    assert {FEATURES[name].group for name in on} == groups, (row, kind, precision)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(("generation", "precision"), [("hopper", "bf16"), ("blackwell", "mxfp8")])
def test_each_set_of_a_word_is_searched_once(kind: str, generation: str, precision: str) -> None:
    job = job_of(kind, generation, precision)
    names = [sorted(one.features) for one in variants(job, [RECIPE[precision]], ["published"])]
    assert len(names) == len({tuple(one) for one in names}) >= 1
    safe = variants(job, [RECIPE[precision]], ["safe"])
    assert all(not FEATURES[name].numerics and not FEATURES[name].experimental for one in safe for name in one.features)
    every = {frozenset(one.features) for one in variants(job, [RECIPE[precision]], ["all"])}
    assert {frozenset(one) for one in names} <= every
    (nothing,) = variants(job, [RECIPE[precision]], ["none"])
    assert not nothing.features and nothing.job.training == job.training


def test_what_was_given_is_not_changed() -> None:
    job = TrainingJob.from_hf(MODELS["moe"], 8, gpu="GB200", cuda_graph_impl="none", moe_paged_stash=False)
    for one in variants(base_job(job, (8,), 64)[0], ["mxfp8"], ["published"]):
        assert one.job.training.cuda_graph_impl == "none" and not one.job.training.moe_paged_stash


def test_older_gpus_have_what_all_recipes_have() -> None:
    job = TrainingJob.from_hf(MODELS["moe"], 8, gpu="A100-80GB")
    assert list(sets_of(job, "published")) == [BASICS]


FEW = Space(
    tensor_model_parallel_size=(1, 2),
    pipeline_model_parallel_size=(1, 2),
    virtual_pipeline_model_parallel_size=(1, 2),
    context_parallel_size=(1,),
    expert_model_parallel_size=(1, 8),
    micro_batch_size=(1, 2),
    recompute=("none", "moe_act+layernorm", "layernorm"),
)


def drawn_space(kind: str, draw: random.Random) -> Space:
    words = draw.choice([("published",), ("all",), ("published", "none"), ("safe",)])
    more = draw.choice([{}, {"tensor_model_parallel_size": (1,), "micro_batch_size": (1, 4)}])
    experts = {} if kind != "dense" else {"expert_model_parallel_size": (1,), "recompute": ("none", "mlp", "layernorm")}
    if kind == "hybrid":
        experts = {"recompute": ("none", "layernorm")}
    return Space(**{**vars(FEW), "features": words, **more, **experts})


CASES = [(kind, *one) for kind in MODELS for one in (("hopper", "bf16"), ("hopper", "fp8"), ("blackwell", "mxfp8"))]


@pytest.mark.parametrize(("kind", "generation", "precision"), CASES)
def test_layouts_with_features_have_the_figures_of_estimate(kind: str, generation: str, precision: str) -> None:
    """420 layouts in the long sweep."""
    draw = random.Random(f"{kind} {generation} {precision}")
    base = job_of(kind, generation, precision)
    for one in sampled(base, drawn_space(kind, draw), 35 if SWEEP else 4, seed=draw.randrange(99)):
        same_figures(one)
        for phase in ("training", "load", "save"):
            assert phase in base.env.phases


@pytest.mark.parametrize(("kind", "generation", "precision"), CASES if SWEEP else CASES[::4])
def test_a_search_over_features_finds_the_best(kind: str, generation: str, precision: str) -> None:
    """Every layout with every set evaluated."""
    draw = random.Random(f"best {kind} {generation} {precision}")
    base = job_of(kind, generation, precision)
    space = drawn_space(kind, draw)
    found = search(base, space, best=6)
    every = [one for one in sampled(base, space, found.legal, seed=0) if one.needed.high <= found.limit]
    expected = worth_a_line(every, "throughput", 6)
    assert [(one.step, one.needed) for one in found.plans] == [(one.step, one.needed) for one in expected]


@pytest.fixture(scope="module")
def planned() -> Any:
    job = TrainingJob.from_hf(
        "Qwen/Qwen3-30B-A3B", 8, gpu="GB300", fp8="e4m3", fp8_recipe="mxfp8", global_batch_size=512
    )
    return plan(job, {"tp": "1", "pp": "1", "cp": "1", "micro_batch_size": "4,8"}, top=3).found


def test_what_a_feature_is_worth_is_a_difference_of_two_runs(planned: Any) -> None:
    """The plan without its fp8 attention, estimated as any other run."""
    (first, *_) = planned.plans
    assert {"graph-of-iteration", "a2a-overlap", "hybridep", "fp8-attention"} <= set(first.features)
    by_name = {one.feature: one for one in worth(first, planned.asked)}
    alone = dataclasses.replace(
        first.job, training=dataclasses.replace(first.job.training, fp8_dot_product_attention=False)
    )
    other = estimate(alone)
    one = by_name["fp8-attention"]
    assert one.takes == first.needed.high - other.needed.high
    assert one.saves == pytest.approx(1 - first.step / throughput(other).step, abs=1e-6)
    assert by_name["a2a-overlap"].saves > by_name["bf16-gradients"].saves


def test_features_that_would_pay_are_named() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, gpu="H100", global_batch_size=512)
    found = plan(job, {"tp": "1", "pp": "1", "cp": "1", "features": "none"}, top=1).found
    more = paying(found.plans[0], found)
    assert more and more == sorted(more, key=lambda one: -one.saves)
    assert all(one.saves >= PAYS for one in more)
    assert "hybridep" in {one.feature for one in more}


def test_the_document_and_the_text_say_what_is_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "plan", "Qwen/Qwen3-30B-A3B", "--num-gpus", "8", "--gpu", "GB300", "--precision", "mxfp8", "--global-batch-size", "512",
        "--tp", "1", "--pp", "1", "--cp", "1", "--top", "2",
    )  # fmt: skip
    found = json.loads(printed(capsys, *words, "--json"))
    (first, *_) = found["plans"]
    assert "graph-of-iteration" in first["features"] and "bf16-gradients" in first["numerics"]
    assert first["settings"]["cuda_graph_impl"] == "full_iteration"
    assert {one["feature"] for one in found["feature_worth"]} <= set(first["features"])
    assert all(one["source"] and one["says"] for one in found["feature_worth"])
    assert (
        "--cuda-graph-impl" in first["launch"]["megatron_lm"] and "--moe-paged-stash" in first["launch"]["megatron_lm"]
    )
    text = printed(capsys, *words)
    assert "CUDA graph of the iteration" in text and "* changes the numbers" in text
    assert "In plan 1, CUDA graph of the iteration" in printed(capsys, *words, "-v")
    safe = printed(capsys, *words, "--features", "safe")
    assert "* changes" not in safe and "Would pay in plan 1" in safe


def test_an_unknown_feature_is_refused_with_the_nearest() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8)
    with pytest.raises(ConfigError, match=r"features: 'bf16-gradient' is none of .*Did you mean .bf16-gradients"):
        plan(job, {"features": "bf16-gradient"})


def test_nine_of_ten_published_runs_are_matched_by_name() -> None:
    """With features of other models' recipes: within 5 % of the predicted rate of the recipe, or faster (scripts/plan_published.py)."""
    named = [
        one for one in map(json.loads, (FACTS / "published_plans.jsonl").read_text().splitlines()) if "named_gap" in one
    ]
    near = [one for one in named if one["named_gap"] <= 0.05]
    assert len(named) >= 33 and len(near) >= 0.9 * len(named)
