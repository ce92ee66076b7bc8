"""Megatron-FSDP and torch FSDP2: sharded state, and whole weights and gradients while a unit runs, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Stage, TrainingJob, estimate

from .helpers import small_job

LAYER = 1024 * (1536 + 1024 + 8192 + 4096) + 2 * 1024
REST = 2 * 32000 * 1024 + 1024
TOTAL = 4 * LAYER + REST
GPUS = 8


def stage(**settings: Any) -> Stage:
    given: dict[str, Any] = {"use_megatron_fsdp": True, "share_embeddings_and_output_weights": False}
    return estimate(small_job(GPUS, **{**given, "megatron_fsdp_main_grads_dtype": "fp32", **settings})).stages[0]


def parts(found: Stage) -> tuple[int, int, int]:
    return tuple(
        sum(s.nbytes for s in found.rank.states if s.part == part) for part in ("weights", "gradients", "optimizer")
    )  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "optimizer"),
    [
        ("no_shard", 1, 1, 1),
        ("optim", 1, 1, GPUS),
        ("optim_grads", 1, GPUS, GPUS),
        ("optim_grads_params", GPUS, GPUS, GPUS),
    ],
)
def test_state_by_strategy(strategy: str, weights: int, gradients: int, optimizer: int) -> None:
    """2 bytes of weights, 4 of fp32 gradients, 12 of master and moments, each spread over its ranks."""
    found = parts(stage(data_parallel_sharding_strategy=strategy))
    assert found == pytest.approx((2 * TOTAL / weights, 4 * TOTAL / gradients, 12 * TOTAL / optimizer), rel=1e-6)


def test_outer_sharding_spreads_the_optimizer_over_the_instances_too() -> None:
    found = stage(
        use_distributed_optimizer=True, num_distributed_optimizer_instances=2, outer_dp_sharding_strategy="optim"
    )
    assert parts(found) == pytest.approx((2 * TOTAL / 4, 4 * TOTAL / 4, 12 * TOTAL / 8), rel=1e-6)


@pytest.mark.parametrize(("dtype", "each"), [("auto", 2), ("bf16", 2), ("fp32", 4)])
def test_gradient_dtype(dtype: str, each: int) -> None:
    assert parts(stage(megatron_fsdp_main_grads_dtype=dtype))[1] == pytest.approx(each * TOTAL / GPUS, rel=1e-6)


def beside(found: Stage) -> tuple[dict[str, int], dict[str, int]]:
    layer = next(run for run in found.rank.plans[0].runs if run.first_layer == 0)
    forward, backward = layer.beside
    return {t.name: t.nbytes for t in forward}, {t.name: t.nbytes for t in backward}


def test_whole_weights_of_the_unit_and_of_those_ahead() -> None:
    """A communication unit of 10**9 elements by default: all four layers fit in its half, so all are whole."""
    forward, backward = beside(stage())
    assert forward == {"FSDP gathered weights": 2 * 4 * LAYER}
    assert backward == {**forward, "FSDP gradients before reduce-scatter": 4 * 4 * LAYER}


@pytest.mark.parametrize(
    ("model", "layer", "ahead", "waiting"),
    [
        ("Qwen/Qwen3-8B", 192_946_432, 3, 6),  # three reach half of 10**9 elements, six the whole
        ("meta-llama/Llama-3.1-405B", 3_187_703_808, 1, 2),  # two layers are more than 10**9
    ],
)
def test_the_default_communication_unit(model: str, layer: int, ahead: int, waiting: int) -> None:
    """`megatron_fsdp.py`: the larger of 10**9 elements and two layers. Layers are gathered ahead to half of it, gradients wait for it."""
    made = TrainingJob.from_hf(model, GPUS, use_megatron_fsdp=True, gpu="H100")
    forward, backward = beside(estimate(made).stages[0])
    assert forward == {"FSDP gathered weights": 2 * (1 + ahead) * layer}
    assert backward == {**forward, "FSDP gradients before reduce-scatter": 2 * (1 + waiting) * layer}


def test_a_small_communication_unit_prefetches_one_layer() -> None:
    forward, backward = beside(stage(suggested_communication_unit_size=2 * LAYER))
    assert forward == {"FSDP gathered weights": 2 * 2 * LAYER}
    assert backward["FSDP gradients before reduce-scatter"] == 4 * 3 * LAYER  # fp32, the unit's and two that wait


@pytest.mark.parametrize("strategy", ["no_shard", "optim"])
def test_nothing_is_gathered_where_weights_and_gradients_are_whole(strategy: str) -> None:
    assert beside(stage(data_parallel_sharding_strategy=strategy)) == ({}, {})


def test_double_buffers_stay_and_replace_the_gathers() -> None:
    found = stage(fsdp_double_buffer=True)
    assert beside(found) == ({}, {})
    buffers = {w.name: w.nbytes for w in found.rank.workspaces if w.name.startswith("FSDP double buffer")}
    assert buffers == {"FSDP double buffer of weights": 2 * 2 * LAYER, "FSDP double buffer of gradients": 2 * 4 * LAYER}


def test_torch_fsdp2_shards_everything_and_keeps_one_unit_ahead() -> None:
    found = stage(use_megatron_fsdp=False, use_torch_fsdp2=True, megatron_fsdp_main_grads_dtype="auto")
    assert parts(found)[0] == pytest.approx(2 * TOTAL / GPUS, rel=1e-6)
    assert beside(found)[0] == {"FSDP gathered weights": 2 * 2 * LAYER}


SECOND: dict[str, Any] = {
    "megatron_fsdp_version": 2, "megatron_core_version": "0.20", "use_distributed_optimizer": False, "gradient_accumulation_fusion": False,
    "megatron_fsdp_main_grads_dtype": "auto",
}  # fmt: skip


def test_the_second_version_rests_at_sixteen_bytes_and_has_four_whole_buffers() -> None:
    """`tests/unit_tests/distributed/mfsdp_v2/test_memory.py` (Megatron-LM main d98e8a64): at rest 2 W / N with weights and gradients of W,
    and 4 bytes each of main weights; above that a step has the weight in use, the next one, a whole gradient and what goes into the
    reduce-scatter, less than 5 W."""
    found = stage(**SECOND)
    # the step itself has a fp32 copy of the gradients too
    resting = sum(s.nbytes for s in found.rank.states if s.since != "step")
    assert resting == pytest.approx((2 + 2 + 4 + 8) * TOTAL / GPUS, rel=1e-6)
    forward, backward = beside(found)
    weight = 2 * LAYER
    assert forward == {"FSDP gathered weights": 2 * weight}
    assert backward == {**forward, "FSDP gradients before reduce-scatter": 2 * weight}
    assert sum(backward.values()) == 4 * weight


def test_experts_of_the_second_version_are_a_unit_of_their_own() -> None:
    """Qwen3-30B-A3B, ep 4 on 16 GPUs: 32 local experts of 3 x 2048 x 768 over 4 ranks, the rest of a layer over 16. A layer and its experts
    are whole while they run, and the rest of the next layer; gradients are two whole layers at most."""
    given = {
        "ep": 4,
        "seq_length": 1024,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
        **SECOND,
    }
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 16, gpu="H100", **given)).stages[0]
    experts = 32 * 3 * 2048 * 768
    rest = 2048 * (32 + 8) * 128 + 32 * 128 * 2048 + 128 * 2048 + 2 * 2048 + 2 * 128
    whole = 2 * 151936 * 2048 + 2048
    state = sum(s.nbytes for s in found.rank.states if s.since != "step")
    assert state == pytest.approx(16 * 48 * experts / 4 + 16 * (48 * rest + whole) / 16, rel=1e-5)
    forward, backward = beside(found)
    assert forward == {"FSDP gathered weights": 2 * (experts + 2 * rest)}
    assert backward == {**forward, "FSDP gradients before reduce-scatter": 2 * 2 * (experts + rest)}


def test_more_ranks_never_cost_more_state() -> None:
    sizes = [sum(parts(estimate(small_job(n, use_megatron_fsdp=True)).stages[0])) for n in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]


@pytest.mark.parametrize(
    ("recipe", "gpu", "columns"), [("tensorwise", "H100", LAYER), ("tensorwise", "B200", 0), ("mxfp8", "B200", 0)]
)
def test_gathered_fp8_weights_are_transposed_where_the_gemm_needs_it(recipe: str, gpu: str, columns: int) -> None:
    """Hopper reads fp8 in one orientation: a copy by columns in the backward; mxfp8 gathers both, Blackwell needs none."""
    found = stage(
        fp8="hybrid", fp8_recipe=recipe, fp8_param_gather=True, gpu=gpu, suggested_communication_unit_size=2 * LAYER
    )
    forward, backward = beside(found)
    assert forward == {"FSDP gathered weights": 2 * LAYER}, "one byte each, of the unit and one ahead"
    assert backward.get("FSDP gathered weights by columns", 0) == columns
