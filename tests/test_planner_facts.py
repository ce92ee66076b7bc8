"""Small facts of the planner: what it prints of itself, where its words end, what its spaces hold, and which splits are shortest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, advise, plan
from megatron_memory_estimator.job.hardware import GIB
from megatron_memory_estimator.job.pipeline import parse_layout
from megatron_memory_estimator.planner.changes import rollout_changes
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.planner.space.borders import Work, generated_layout, weights
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.planner.space.features import FEATURES
from megatron_memory_estimator.planner.space.words import space_of


def test_a_plan_prints_its_layout_its_rate_and_its_gibibytes() -> None:
    found = plan(TrainingJob.from_hf("Qwen/Qwen3-8B", 16, global_batch_size=64))
    for one in found.found.plans:
        said = repr(one)
        assert said.startswith(f"<Plan {one.degrees}, recompute {one.recompute}, {one.precision}: ")
        assert said.endswith(f"tokens/s/GPU, {one.peak_allocated_bytes / GIB:.2f} GiB allocated>")
        assert ("vpp" in said) == (one.virtual > 1)
    assert repr(found) == repr(found.found).replace("<Found ", "<Planned ", 1)


@pytest.mark.parametrize(
    ("settings", "without"),
    [({}, True), ({"tp": 8}, False), ({"tp": 1, "pp": 1}, False), ({"seq_length": 512, "gpu": "B300"}, False)],
)
def test_advice_points_to_plans_where_nothing_was_laid_out_and_nothing_fits(
    settings: dict[str, Any], without: bool
) -> None:
    """Llama-3.1-70B on 8 GPUs never fits by data parallelism alone, Qwen3-0.6B always does."""
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B" if "gpu" in settings else "meta-llama/Llama-3.1-70B", 8, **settings)
    assert advise(job, most=1).without_layout == without


@pytest.mark.parametrize(("word", "fine"), [("999999999999", True), ("1000000000000", False), ("-1", False)])
def test_numbers_of_an_axis_end_below_a_million_million(word: str, fine: bool) -> None:
    job, words = TrainingJob.from_hf("Qwen/Qwen3-8B", 8), {"tensor_model_parallel_size": word}
    if fine:
        assert space_of(job, words).tensor_model_parallel_size == (int(word),)
    else:
        with pytest.raises(ConfigError, match="must be a whole number, a list such as"):
            space_of(job, words)


def test_a_complete_space_has_the_axes_that_are_for_the_model() -> None:
    moe, dense = (
        TrainingJob.from_hf(name, 64, global_batch_size=64) for name in ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B")
    )
    for job, experts in ((moe, (1, 2, 4, 8)), (dense, (1,))):
        every = completed(Space(num_gpus=(64,)), job, everything=True)
        assert every.expert_tensor_parallel_size == experts
        assert every.use_precision_aware_optimizer == (False, True)
        assert every.use_distributed_optimizer == (True, False)
        assert completed(Space(num_gpus=(64,)), job).expert_tensor_parallel_size == (1,)


def test_experimental_features_are_those_that_their_sources_call_so() -> None:
    experimental = {name for name, row in FEATURES.items() if row.experimental}
    assert experimental == {
        "paged-stash", "graph-of-iteration", "fused-experts", "offloaded-experts", "offloaded-attention", "megatron-fsdp",
    }  # fmt: skip


def test_an_engine_is_spread_over_no_more_gpus_than_there_are() -> None:
    """8 GPUs: two copies of four become one of eight, and not of sixteen, although 4 + 4 is 8."""
    job = TrainingJob.from_hf(
        "Qwen/Qwen3-8B", 8, tp=4, rollout_engine="vllm", rollout_memory_share=0.5, rollout_tensor_parallel_size=4
    )
    words = [one.name for one in rollout_changes(job) if "copy of the engine's weights" in one.name]
    assert words == ["one copy of the engine's weights on 8 GPUs instead of 4"]


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Qwen/Qwen3-0.6B", {"num_layers": 7}),
    "mtp": ("deepseek-ai/DeepSeek-V3", {"num_layers": 7, "moe_layer_freq": [0, 0, 0, 1, 1, 1, 1]}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_of_all_splits_the_generated_one_has_the_lightest_heaviest_stage(name: str, pp: int) -> None:
    """Against every split of seven layers over stages of one chunk, each with a layer but those that hold MTP or the loss. No split is
    lighter by more than the rest that microbatches leave between stages."""
    model_id, settings = MODELS[name]
    model = TrainingJob.from_hf(model_id, 8, **settings).model
    each, mtp, loss, embedding = work = weights(model)
    text = generated_layout(model, pp, 1, work)
    assert text is not None
    chunks = parse_layout(text)
    counts = [chunk.count("t") for chunk in chunks]
    assert sum(counts) == len(each) and chunks[0].startswith("E") and chunks[-1].endswith("L")
    assert all(count or "m" in chunk or "L" in chunk for count, chunk in zip(counts, chunks, strict=True))

    def heaviest(split: tuple[int, ...], behind: int) -> float:
        ends = [0, *itertools.accumulate(split)]
        stages = [sum(each[a:b]) for a, b in itertools.pairwise(ends)]
        stages[0] += embedding
        stages[-1] += loss
        stages[-1 - behind] += mtp
        return max(stages)

    ways = [split for split in itertools.product(range(len(each) + 1), repeat=pp) if sum(split) == len(each)]
    legal = [
        heaviest(split, behind)
        for behind in ((0, 1) if mtp else (0,))
        for split in ways
        if all(n or at >= pp - 1 - behind for at, n in enumerate(split)) and not (behind and split[-1])
    ]
    behind = 1 if mtp and "m" in chunks[-2] else 0
    assert heaviest(tuple(counts), behind) <= min(legal) * 1.15


def test_a_split_of_fewer_layers_than_chunks_is_none() -> None:
    model = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, num_layers=3).model
    assert generated_layout(model, 4, 1) is None
    assert generated_layout(model, 1, 1) is None
    alike = Work([1.0] * 3, 0.0, 0.0, 0.0)
    assert generated_layout(model, 3, 1, alike) is None, "the even split"
