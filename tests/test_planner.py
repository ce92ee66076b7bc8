"""A search finds what looking at every layout finds, with the figures of `estimate`, over models of every architecture."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, EstimatorError, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.planner import search as searching
from megatron_memory_estimator.planner.found import Plan
from megatron_memory_estimator.planner.search import sampled, search
from megatron_memory_estimator.planner.sharing import Known, Question, asked
from megatron_memory_estimator.planner.space.axes import Space
from megatron_memory_estimator.throughput import throughput

from .helpers import ROOT, SWEEP

SMALL = Space(
    tensor_model_parallel_size=(1, 2, 3),
    pipeline_model_parallel_size=(1, 2),
    virtual_pipeline_model_parallel_size=(1, 2),
    context_parallel_size=(1, 2),
    expert_model_parallel_size=(1, 2, 8),
    micro_batch_size=(1, 2),
    recompute=("none", "moe_act+layernorm", "full"),
)


def same_figures(plan: Plan) -> None:
    """The figures of a plan are those of `estimate` and `throughput`, to the byte."""
    single = estimate(plan.job)
    assert plan.peak_allocated_bytes == single.peak_stage.peak_allocated_bytes
    assert plan.needed == single.needed
    timed = throughput(single)
    assert plan.step == pytest.approx(timed.step)
    assert plan.tokens_per_s_gpu == pytest.approx(timed.tokens_per_s_gpu)


EVERY_ARCHITECTURE = [
    "Qwen/Qwen3-8B",
    "meta-llama/Meta-Llama-3-70B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "Qwen/Qwen3.5-35B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B",
    "openai/gpt-oss-20b",
    "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2-Instruct",
    "moonshotai/Moonlight-16B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "zai-org/GLM-4.5-Air",
    "zai-org/GLM-5",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen2.5-7B",
    "openai-community/gpt2",
    "inclusionAI/Ling-flash-2.0",
]
PRECISION = {"A100": ["bf16"], "H100": ["bf16", "tensorwise", "blockwise"], "B200": ["bf16", "delayed", "mxfp8"]}
POINTS = 100 if SWEEP else 10
SETS = ("none", "core_attn", "moe_act+layernorm", "mlp", "full", "block:2", "uniform:2", "moe+layernorm")


@pytest.mark.parametrize("number", range(len(EVERY_ARCHITECTURE)))
def test_random_points_of_a_space_have_the_bytes_of_estimate(number: int) -> None:
    """2,000 points over 20 models in the long sweep; axes and settings are drawn anew for every model."""
    draw = random.Random(number)
    gpu = draw.choice(list(PRECISION))
    base = TrainingJob.from_hf(
        EVERY_ARCHITECTURE[number],
        64,
        gpu=gpu,
        seq_length=1024 if "gpt2" in EVERY_ARCHITECTURE[number] else 4096,
        global_batch_size=192,
        overlap_grad_reduce=draw.random() < 0.5,
        cross_entropy_loss_fusion=draw.random() < 0.5,
        moe_token_dispatcher_type=draw.choice(["alltoall", "flex", "allgather"]),
        create_attention_mask_in_dataloader=number % 2 == 0,
    )
    moe = bool(base.model.num_moe_experts)
    space = Space(
        num_gpus=(64, 96),
        tensor_model_parallel_size=(1, *draw.sample((2, 4), 1)),
        context_parallel_size=(1, *draw.sample((2, 4), 1)),
        pipeline_model_parallel_size=tuple(draw.sample((1, 2, 3, 4, 8), 3)),
        virtual_pipeline_model_parallel_size=(1, *draw.sample((2, 3, 4), 1)),
        expert_model_parallel_size=(1, *draw.sample((2, 4, 8, 16), 2)) if moe else (),
        expert_tensor_parallel_size=tuple(draw.sample((1, 2), 1)) if moe else (),
        micro_batch_size=(1, draw.choice((2, 3))),
        recompute=("none", *draw.sample(SETS[1:], 3)),
        precision=tuple(draw.sample(PRECISION[gpu], 1)),
        use_distributed_optimizer=(True, False),
        use_precision_aware_optimizer=(False, True),
        sequence_parallel=tuple(draw.sample((True, False), 2 if draw.random() < 0.3 else 1)),
        cp_comm_type=tuple(draw.sample(("p2p", "a2a", "all_gather"), 2)),
        optimizer_offload_fraction=(0.0, 0.5),
    )
    plans = sampled(base, space, POINTS, seed=number)
    assert len(plans) == POINTS
    for plan in plans:
        same_figures(plan)


@pytest.mark.parametrize("spec", [{"attention_backend": "unfused"}, {"transformer_impl": "local"}])
@pytest.mark.parametrize("te", ["2.10", "2.20"])
def test_layouts_whose_scores_no_kernel_takes_are_told_apart(spec: dict[str, Any], te: str) -> None:
    """12 heads over tp 2 are 6, over tp 4 are 3: with a micro batch of 1 the softmax kernels take neither."""
    base = TrainingJob.from_config(
        {"num_layers": 2, "hidden_size": 1536, "num_attention_heads": 12, "ffn_hidden_size": 4096, "vocab_size": 32000,
         "seq_length": 1024, "max_position_embeddings": 1024, "global_batch_size": 64, "transformer_engine_version": te, **spec},
        8,
    )  # fmt: skip
    space = Space(tensor_model_parallel_size=(1, 2, 4), micro_batch_size=(1, 2, 4), recompute=("none", "core_attn"))
    plans = sampled(base, space, 18, seed=1)
    assert len({plan.job.layout.tp for plan in plans}) == 3
    for plan in plans:
        same_figures(plan)


@pytest.mark.parametrize(
    "more",
    [{"fp32_residual_connection": True}, {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 512}],
    ids=["what a stage receives is held by the schedule", "experts one after the other"],
)
def test_what_depends_on_stages_and_on_experts_is_told_apart(more: dict[str, Any]) -> None:
    base = TrainingJob.from_config(
        {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "ffn_hidden_size": 2048, "vocab_size": 32000,
         "seq_length": 1024, "max_position_embeddings": 1024, "global_batch_size": 64, "moe_grouped_gemm": False, **more},
        16,
    )  # fmt: skip
    space = Space(
        pipeline_model_parallel_size=(1, 2, 4),
        virtual_pipeline_model_parallel_size=(1, 2),
        expert_model_parallel_size=(1, 2, 8) if "num_moe_experts" in more else (),
        micro_batch_size=(1, 2),
        recompute=("none", "core_attn", "full", "block:1"),
    )
    for plan in sampled(base, space, 24, seed=3):
        same_figures(plan)


def test_a_search_gives_the_figures_of_estimate() -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 32, seq_length=4096, global_batch_size=64, gpu="H200")
    found = search(base, SMALL, best=20)
    assert found.examined == found.legal + sum(found.illegal.values())
    assert 0 < found.evaluated < found.legal / 3
    assert len(found.plans) > 4
    for plan in found.plans:
        same_figures(plan)
        assert plan.needed.high <= found.limit
    assert found.least is None


GIB = 2**30


def worth_a_line(plans: list[Plan], objective: str, best: int) -> list[Plan]:
    """Of all plans the best in order, each better than those before it by a GiB, or where memory is the order by 1 % of a step."""
    keys: dict[str, Callable[[Plan], tuple[float, float]]] = {
        "throughput": lambda one: (one.step, one.needed.high),
        "memory": lambda one: (one.peak_allocated_bytes, one.step),
        "head-room": lambda one: (one.needed.high, one.step),
    }
    key, found, most = keys[objective], list[Plan](), float("inf")
    for one in sorted(plans, key=key):
        other = key(one)[1]
        if other <= most and len(found) < best:
            found.append(one)
            most = other - GIB if objective == "throughput" else other / 1.01
    return found


def drawn(number: int) -> tuple[TrainingJob, Space, dict[str, Any]]:
    """A random model of every architecture, a small space of it, and what is asked of the search."""
    draw = random.Random(number)
    gpu, name = draw.choice(list(PRECISION)), EVERY_ARCHITECTURE[number % len(EVERY_ARCHITECTURE)]
    base = TrainingJob.from_hf(
        name,
        64,
        gpu=gpu,
        seq_length=1024 if "gpt2" in name else 4096,
        global_batch_size=192,
        overlap_grad_reduce=draw.random() < 0.5,
        moe_token_dispatcher_type=draw.choice(["alltoall", "flex", "allgather"]),
        **(OFFLOADED if draw.random() < 0.1 else {}),
    )
    moe = bool(base.model.num_moe_experts)
    space = Space(
        num_gpus=tuple(draw.sample((16, 64, 96), draw.choice((1, 2)))),
        tensor_model_parallel_size=(1, draw.choice((2, 4))),
        context_parallel_size=(1, 2)[: draw.choice((1, 2))],
        pipeline_model_parallel_size=tuple(draw.sample((1, 2, 3, 4, 8), 2)),
        virtual_pipeline_model_parallel_size=(1, *draw.sample((2, 3), draw.choice((0, 1)))),
        expert_model_parallel_size=tuple(draw.sample((1, 2, 4, 8, 16), 2)) if moe else (),
        micro_batch_size=(1, 2)[: draw.choice((1, 2))],
        recompute=("none", *draw.sample(SETS[1:], 2)),
        precision=(draw.choice(PRECISION[gpu]),),
        use_precision_aware_optimizer=(False, True)[: draw.choice((1, 1, 2))],
        cp_comm_type=("p2p",),
        optimizer_offload_fraction=(0.0, 0.5)[: draw.choice((1, 1, 2))],
    )
    asked = {
        "best": draw.choice((1, 5, 20)),
        "objective": draw.choice(("throughput", "memory", "head-room")),
        "tight": draw.random() < 0.3,
    }
    return base, space, asked


OFFLOADED: dict[str, Any] = {"fine_grained_activation_offloading": True, "offload_modules": ("core_attn",)}
SEEDS = 100 if SWEEP else 5


@pytest.mark.parametrize("arrays", [True, False], ids=["with NumPy", "without"])
def test_no_layout_is_better_than_those_that_a_search_finds(arrays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layout of the space evaluated: the same plans, and in the same order."""
    monkeypatch.setattr(searching, "_has_numpy", lambda: arrays)
    compared = refused = 0
    for number in range(SEEDS if arrays else SEEDS // 2):
        base, space, asked_for = drawn(number)
        try:
            found = search(base, space, **asked_for)
        except EstimatorError:
            refused += 1
            continue
        every = sampled(base, space, found.legal, seed=0)
        assert len(every) == found.legal
        end = "low" if asked_for["tight"] else "high"
        fitting = [one for one in every if getattr(one.needed, end) <= found.limit]
        expected = worth_a_line(fitting, asked_for["objective"], asked_for["best"])
        keys = [(one.step, one.peak_allocated_bytes, one.needed) for one in expected]
        assert [(one.step, one.peak_allocated_bytes, one.needed) for one in found.plans] == keys, number
        surely_not = sum(one.needed.low > found.limit for one in every)
        assert found.too_large <= surely_not
        if found.least is not None:
            assert found.least.needed.low <= 1.021 * min(one.needed.low for one in every)
        compared += len(expected)
    assert refused < SEEDS / 3 and compared > SEEDS


@pytest.mark.parametrize("objective", ["memory", "head-room"])
def test_the_objective_decides_the_order(objective: str) -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, seq_length=4096, global_batch_size=64)
    found = search(base, SMALL, objective=objective)
    values = [plan.peak_allocated_bytes if objective == "memory" else plan.needed.high for plan in found.plans]
    assert values == sorted(values)
    steps = [plan.step for plan in found.plans]
    assert len(values) > 3 and steps == sorted(steps, reverse=True)


def test_layouts_that_are_ruled_out_are_counted_by_rule() -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, seq_length=4096, global_batch_size=64)
    found = search(base, SMALL)
    heads = "num_attention_heads is not divisible by tensor_model_parallel_size"
    pipelines, experts, sequences, micro_batches, recompute = 3, 3, 3, 2, 2  # sequences: whole, p2p, a2a
    assert found.illegal[heads] == pipelines * experts * sequences * micro_batches * recompute, "all with tp 3"


def test_a_space_without_a_legal_layout_names_the_rules() -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, seq_length=4096, global_batch_size=64)
    with pytest.raises(LayoutError, match="no layout of the space is legal"):
        search(base, Space(tensor_model_parallel_size=(3,)))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Space(micro_batch_size=(0,)), "micro_batch_size: 0 must be a whole number of at least 1"),
        (Space(precision=("fp9",)), "precision: 'fp9' is not one of"),
        (Space(recompute=("mlps",)), 'Did you mean "mlp"'),
        (Space(recompute=("mla_up_proj",)), "nothing of mla_up_proj exists in this model"),
        (Space(optimizer_offload_fraction=(2.0,)), "must be between 0 and 1"),
    ],
)
def test_an_axis_that_makes_no_sense_is_refused(space: Space, message: str) -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, seq_length=4096, global_batch_size=64)
    with pytest.raises(ConfigError, match=message):
        search(base, space)


def test_declarations_ask_about_recomputation_by_method() -> None:
    """Traced units are shared between sets of recomputation by what was asked; a setting that is read would not be noted."""
    package = ROOT / "src" / "megatron_memory_estimator"
    asking = [*(package / "modules").glob("*.py"), package / "rank" / "boundary.py", package / "rank" / "workspaces.py"]
    assert len(asking) > 20
    for file in asking:
        assert not re.search(r"\.recompute_(granularity|method|num_layers|modules)\b", file.read_text()), file


def test_a_training_notes_what_it_is_asked() -> None:
    training = asked(Training(recompute_granularity="selective", recompute_modules=("mlp",)))
    assert training.recomputes("mlp") and not training.recomputes("moe_act")
    assert not training.recomputes_layers() and not training.recomputes_whole_layers()
    assert training.answers == {
        Question("module", "mlp"): True,
        Question("module", "moe_act"): False,
        Question("every layer"): False,
        Question("whole layers"): False,
    }
    made: list[str] = []
    known = Known()

    def make() -> str:
        made.append("layer")
        return "recomputed" if training.recomputes("mlp") else "kept"

    assert known.find("unit", training, make) == known.find("unit", training, make) == "recomputed"
    other = asked(Training())
    assert known.find("unit", other, lambda: "other") == "other"
    assert made == ["layer"]
