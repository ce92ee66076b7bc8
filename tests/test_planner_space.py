"""What a search looks through: every legal layout and no other, generated pipeline layouts, launch arguments of each."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import Model, TrainingJob, estimate, plan
from megatron_memory_estimator.job.pipeline import parse_layout
from megatron_memory_estimator.planner.counting import shapes
from megatron_memory_estimator.planner.launch import bridge_overrides, bridge_sections, megatron_lm, yaml_text
from megatron_memory_estimator.planner.search import sampled, search
from megatron_memory_estimator.planner.space.axes import DEGREES, Space
from megatron_memory_estimator.planner.space.borders import generated_layout, weights
from megatron_memory_estimator.planner.space.choices import options, precision_settings, styles
from megatron_memory_estimator.planner.space.defaults import completed
from megatron_memory_estimator.planner.space.legal import reasons
from megatron_memory_estimator.planner.space.modelled import recompute_sets
from megatron_memory_estimator.planner.space.points import Point, Shape, at_point
from megatron_memory_estimator.planner.space.words import space_of
from megatron_memory_estimator.throughput import throughput
from megatron_memory_estimator.throughput.schedule import Schedule, pipeline_seconds

from .bounds_of_jobs import bound_of
from .test_planner import EVERY_ARCHITECTURE

SPACE = Space(
    tensor_model_parallel_size=(1, 2, 3),
    pipeline_model_parallel_size=(1, 2, 4),
    virtual_pipeline_model_parallel_size=(1, 3),
    context_parallel_size=(1, 2, 5),
    expert_model_parallel_size=(1, 3, 8),
    expert_tensor_parallel_size=(1, 2),
    micro_batch_size=(1, 3),
    recompute=("none", "moe_act+layernorm", "full"),
    precision=("bf16", "mxfp8", "tensorwise"),
    cp_comm_type=("p2p", "a2a"),
    use_distributed_optimizer=(True, False),
    use_precision_aware_optimizer=(False, True),
)


FEWER = dataclasses.replace(SPACE, recompute=("none", "full"), precision=("bf16", "mxfp8"), micro_batch_size=(1,))


@pytest.mark.parametrize(
    ("some", "settings"),
    [(SPACE, {}), (FEWER, {"overlap_moe_expert_parallel_comm": True}), (FEWER, {"moe_token_dispatcher_type": "flex"})],
    ids=["plain", "overlap", "flex"],
)
def test_a_space_holds_every_legal_layout_and_no_other(some: Space, settings: dict[str, Any]) -> None:
    """Counted one by one with the rules themselves."""
    base = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 24, global_batch_size=24, gpu="H100", **settings)
    space = completed(some, base)
    found = search(base, space, best=1)
    legal = 0
    for shape in shapes(base, space):
        if not isinstance(shape, Shape):
            continue
        for point in (Point(*degrees) for degrees in product(*(getattr(space, axis) for axis in DEGREES))):
            for style in styles(space, tp=point[0] > 1, cp=point[1] > 1):
                layout = dataclasses.replace(at_point(shape.layout, point, style, moe=True), world_size=24)
                if layout.world_size % (layout.tp * layout.cp * layout.pp):
                    continue
                for micro in space.micro_batch_size:
                    count, rest = divmod(24, micro * layout.dp)
                    if rest or not count:
                        continue
                    choices = product(recompute_sets(base, space), options(space), space.precision)
                    for (_, training), option, precision in choices:
                        chosen = dataclasses.replace(
                            training,
                            micro_batch_size=micro,
                            **precision_settings(base, precision),
                            **option.settings(),
                        )
                        legal += not reasons(base, layout, chosen, count)
    assert found.legal == legal > 0


PUBLISHED = [("Et|(tt|)*30mL", 8, 4), ("Et*4|(t*4|)*14tmL", 16, 1)]
"""Layouts of DeepSeek-V3 in Megatron-Bridge's recipes, with their pipeline stages and chunks of one (tests/facts/recipes.jsonl)."""


def seconds(model: Model, text: str, pp: int) -> float:
    """A step of 12 groups of microbatches through the chunks of a layout, backwards twice as long as forwards."""
    layers, mtp, loss, _ = weights(model)
    left = iter(layers)
    loads = [
        sum(next(left) for _ in range(chunk.count("t"))) + mtp * chunk.count("m") + loss * chunk.count("L")
        for chunk in parse_layout(text)
    ]
    places = [way * load for rank in range(pp) for load in loads[rank::pp] for way in (1.0, 2.0)]
    found = pipeline_seconds(Schedule(pp, len(loads) // pp, pp), 12 * pp, places)
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize(("published", "pp", "vp"), PUBLISHED)
def test_no_published_layout_has_a_shorter_schedule(published: str, pp: int, vp: int) -> None:
    model = TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 1).model
    text = generated_layout(model, pp, vp)
    assert text is not None
    assert len(parse_layout(text)) == len(parse_layout(published)) == pp * vp
    assert seconds(model, text, pp) < seconds(model, published, pp)


@pytest.mark.parametrize(
    ("name", "pp", "vp"),
    [("deepseek-ai/DeepSeek-V3", 4, 2), ("deepseek-ai/DeepSeek-V3", 8, 2), ("Qwen/Qwen3-235B-A22B", 8, 4)],
)
def test_chunks_are_balanced_and_not_ranks_alone(name: str, pp: int, vp: int) -> None:
    """Ranks of equal work whose chunks are unequal wait for one another: a step is within 15 % of all work on all ranks evenly."""
    model = TrainingJob.from_hf(name, 1).model
    text = generated_layout(model, pp, vp)
    assert text is not None
    layers, mtp, loss, _ = weights(model)
    least = 12 * 3 * (sum(layers) + mtp + loss)
    assert least < seconds(model, text, pp) < 1.15 * least


def test_a_generated_layout_holds_every_layer_once() -> None:
    """The loss stands alone in the last chunk: with that of MTP it weighs as much as three layers."""
    model = TrainingJob.from_hf("deepseek-ai/DeepSeek-V3", 1).model
    text = generated_layout(model, 16, 2)
    assert text is not None
    chunks = parse_layout(text)
    assert chunks[0].startswith("E") and chunks[-1] == "L"
    assert "".join(chunks).count("t") == model.num_layers
    llama = TrainingJob.from_hf("meta-llama/Meta-Llama-3-70B", 1).model
    assert generated_layout(llama, 8, 16) is None, "fewer layers than chunks"


@pytest.mark.parametrize(("pp", "vp"), [(2, 1), (3, 2), (8, 1), (4, 3)])
def test_layers_that_share_an_indexer_stand_in_one_chunk(pp: int, vp: int) -> None:
    """GLM-5.2 picks keys in three layers, then in every fourth: no chunk begins with a layer that borrows them."""
    model = TrainingJob.from_hf("zai-org/GLM-5.2", 1).model
    text = generated_layout(model, pp, vp)
    assert text is not None
    first = 0
    for chunk in parse_layout(text):
        count = chunk.count("t")
        assert not count or "dsa_shared" not in model.kinds[first], (text, first)
        first += count
    assert first == model.num_layers


def test_a_search_finds_pipelines_of_shared_indexers_and_layouts_of_instances() -> None:
    job = TrainingJob.from_hf("zai-org/GLM-5.2", 192, gpu="GB200", global_batch_size=1152)
    space = Space(
        tensor_model_parallel_size=(1, 4), pipeline_model_parallel_size=(1, 3), virtual_pipeline_model_parallel_size=(1, 7),
        context_parallel_size=(1,), expert_model_parallel_size=(64,), micro_batch_size=(1, 4), recompute=("none", "full"),
    )  # fmt: skip
    assert any(plan.job.layout.pp == 3 for plan in search(job, space).plans)
    settings: dict[str, Any] = {"num_distributed_optimizer_instances": 2, "overlap_grad_reduce": True}
    job = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 64, gpu="H100", global_batch_size=256, **settings)
    few = dataclasses.replace(space, pipeline_model_parallel_size=(1, 2), expert_model_parallel_size=(8,))
    plans = search(job, few, best=3).plans
    assert plans and all(plan.job.layout.num_distributed_optimizer_instances == 2 for plan in plans)
    assert all(plan.needed == estimate(plan.job).needed for plan in plans)


@pytest.mark.parametrize("arrays", [True, False])
def test_instances_share_the_ranks_of_data_and_context_parallelism(arrays: bool) -> None:
    """One data-parallel rank of four context-parallel ranks has two instances: a bound is of these GPUs, not of twice as many."""
    degrees = {"tensor_model_parallel_size": 8, "context_parallel_size": 4, "sequence_parallel": True}
    settings: dict[str, Any] = {"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True, **degrees}
    found = estimate(
        TrainingJob.from_hf("meta-llama/Llama-3.2-3B", 32, gpu="H100", overlap_grad_reduce=True, **settings)
    )
    bound, step = bound_of(found.job, arrays=arrays), throughput(found).step
    assert 0.99 * step < bound.step <= step
    assert bound.peak <= found.peak_stage.peak_allocated_bytes


def test_a_hybrid_gets_chunks_by_borders_in_its_pattern() -> None:
    """Every chunk has a sub-layer, all together are the pattern; launch words and Bridge's overrides have the borders."""
    job = TrainingJob.from_hf("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 16, gpu="H100", global_batch_size=64)
    space = Space(
        tensor_model_parallel_size=(1,), pipeline_model_parallel_size=(2, 4), virtual_pipeline_model_parallel_size=(2, 3),
        context_parallel_size=(1,), expert_model_parallel_size=(4, 8), micro_batch_size=(1,), recompute=("none", "moe_act"),
    )  # fmt: skip
    plans = search(job, space, best=4, every=True).plans
    assert len(plans) == 4
    for one in plans:
        pattern = one.job.model.hybrid_layer_pattern or ""
        segments = pattern.split("|")
        assert all(segments) and "".join(segments) == job.model.hybrid_layer_pattern
        assert one.virtual == len(segments) // one.job.layout.pp in (2, 3)
        launch = megatron_lm(one.job)
        read = TrainingJob.from_megatron_args(launch.words(), 16, gpu="H100", **launch.beside)
        assert estimate(read).peak_stage.peak_allocated_bytes == one.peak_allocated_bytes
        assert f"model.hybrid_layer_pattern='{pattern}'" in bridge_overrides(one.job)
        assert estimate(one.job).needed == one.needed


@pytest.mark.parametrize("name", EVERY_ARCHITECTURE)
def test_launch_arguments_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Megatron-LM arguments, a YAML file of them and Megatron-Bridge sections, read back by the readers of `estimate`."""
    length = 1024 if "gpt2" in name else 4096
    base = TrainingJob.from_hf(name, 64, gpu="B200", seq_length=length, global_batch_size=256)
    base = dataclasses.replace(base, model=dataclasses.replace(base.model, towers=()))  # not of pretrain_gpt.py
    space = Space(
        tensor_model_parallel_size=(1, 2),
        context_parallel_size=(1, 2),
        pipeline_model_parallel_size=(2, 4),
        virtual_pipeline_model_parallel_size=(1, 2),
        expert_model_parallel_size=(8,) if base.model.num_moe_experts else (),
        micro_batch_size=(1, 2),
        recompute=("none", "moe_act+layernorm", "full"),
        precision=("bf16", "mxfp8"),
        cp_comm_type=("p2p",),
        use_precision_aware_optimizer=(False, True),
    )
    for one in sampled(base, space, 4, seed=5):
        expected = [stage.peak_allocated_bytes for stage in estimate(one.job).stages]
        launch = megatron_lm(one.job)
        file = tmp_path / "run.yaml"
        file.write_text(yaml_text(launch))
        jobs = [
            TrainingJob.from_megatron_args(launch.words(), 64, gpu="B200", **launch.beside),
            TrainingJob.from_megatron_args(str(file), 64, gpu="B200", **launch.beside),
            TrainingJob.from_bridge(bridge_sections(one.job), 64, gpu="B200"),
        ]
        for job in jobs:
            assert [stage.peak_allocated_bytes for stage in estimate(job).stages] == expected
        assert all(isinstance(word, str) for word in launch.words())


@pytest.mark.parametrize(("length", "usual", "wide"), [
    (4096, (1,), (1, 2, 4)), (8192, (1, 2), (1, 2, 4, 8)), (131072, (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64)),
])  # fmt: skip
def test_context_parallelism_leaves_a_rank_as_many_tokens_as_published_recipes_do(
    length: int, usual: tuple[int, ...], wide: tuple[int, ...]
) -> None:
    """4,096: of the performance recipes of Megatron-Bridge with context parallelism 8192 / 2, 32768 / 8 and 131072 / 32 leave so many."""
    job = TrainingJob.from_hf("Qwen/Qwen3-8B", 64, gpu="H100", seq_length=length, global_batch_size=64)
    assert space_of(job, {"num_gpus": "64"}).context_parallel_size == usual
    assert space_of(job, {"num_gpus": "64"}, everything=True).context_parallel_size == wide
    assert space_of(job, {"num_gpus": "64", "cp": "not:1"}).context_parallel_size == wide[1:]
    assert space_of(job, {"num_gpus": "64", "cp": "2-8"}).context_parallel_size == tuple(n for n in wide if 2 <= n <= 8)


def test_what_is_not_tried_of_context_parallelism_is_said() -> None:
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 8, gpu="H100", seq_length=4096, global_batch_size=64)
    axes = {"tp": "1", "pp": "1", "micro_batch_size": "1", "recompute": "none", "features": "none"}
    said = [note for note in plan(job, axes, top=1).assumptions if note.startswith("context_parallel_size up to 1")]
    assert len(said) == 1 and "(--cp 1,2,4 searches more)" in said[0]
    assert not any("context_parallel_size" in note for note in plan(job, {**axes, "cp": "1"}, top=1).assumptions)
