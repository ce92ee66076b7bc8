"""The search without NumPy finds what the search with arrays finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from megatron_memory_estimator import EstimatorError, LayoutError, TrainingJob
from megatron_memory_estimator.errors import NumPyError, StoppedError
from megatron_memory_estimator.planner import plain
from megatron_memory_estimator.planner.found import Found
from megatron_memory_estimator.planner.search import search
from megatron_memory_estimator.planner.space.axes import Space

from .helpers import SWEEP
from .test_planner import EVERY_ARCHITECTURE, PRECISION, SETS

OFFLOADED: dict[str, Any] = {"fine_grained_activation_offloading": True, "offload_modules": ("core_attn",)}
SEEDS = 100 if SWEEP else 4


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
        "folded": draw.random() < 0.6,
    }
    return base, space, asked


def test_it_finds_what_arrays_find() -> None:
    legal = plans = refused = 0
    for number in range(SEEDS):
        base, space, asked = drawn(number)
        arrays, found = (outcome(engine, base, space, asked) for engine in (search, plain.search))
        if isinstance(arrays, str) or isinstance(found, str):
            assert found == arrays
            refused += 1
            continue
        the_same(found, arrays)
        legal, plans = legal + found.legal, plans + len(found.plans)
    assert refused < SEEDS / 3 and legal > 50 * SEEDS and plans > 3 * SEEDS


def outcome(engine: Callable[..., Found], base: TrainingJob, space: Space, asked: dict[str, Any]) -> Found | str:
    """What a search finds, or why it refuses."""
    try:
        return engine(base, space, **asked)
    except EstimatorError as error:
        return f"{type(error).__name__}: {error}"


def the_same(found: Found, arrays: Found) -> None:
    """Plans with those beside them, the front and the least, figures to the byte and the nanosecond, and counts by rule in order."""
    assert found.plans == arrays.plans
    assert found.front == arrays.front
    assert found.least == arrays.least
    counts = (found.legal, found.fits, found.tight, found.too_large, list(found.illegal.items()))
    assert counts == (arrays.legal, arrays.fits, arrays.tight, arrays.too_large, list(arrays.illegal.items()))
    assert (found.space, found.limit, found.objective) == (arrays.space, arrays.limit, arrays.objective)


SMALL = Space(
    tensor_model_parallel_size=(1, 2),
    pipeline_model_parallel_size=(1, 2),
    virtual_pipeline_model_parallel_size=(1,),
    context_parallel_size=(1,),
    micro_batch_size=(1,),
    recompute=("none", "full"),
)


def test_plans_that_are_nearly_as_good_stand_beside_those_of_their_idea() -> None:
    space = Space(
        pipeline_model_parallel_size=(2, 4),
        tensor_model_parallel_size=(1, 2),
        micro_batch_size=(1,),
        recompute=("none", "full"),
    )
    found, arrays = (engine(base_job(), space, folded=True) for engine in (plain.search, search))
    the_same(found, arrays)
    assert sum(len(one.alike) for one in found.plans) > 5


def base_job() -> TrainingJob:
    return TrainingJob.from_hf("Qwen/Qwen3-8B", 16, seq_length=4096, global_batch_size=64)


def test_a_large_space_is_refused_with_its_size() -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-8B", 32, seq_length=4096, global_batch_size=64)
    legal = search(base).legal
    assert legal > plain.MOST
    with pytest.raises(NumPyError) as refused:
        plain.search(base)
    text = str(refused.value)
    assert f"at most {plain.MOST:,} legal layouts" in text and f"{legal:,}" in text
    assert "recompute (16 values)" in text and refused.value.reason.endswith("where NumPy is installed")


def test_a_space_of_exactly_the_most_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    legal = plain.search(base_job(), SMALL).legal
    monkeypatch.setattr(plain, "MOST", legal)
    assert plain.search(base_job(), SMALL).legal == legal > 5
    monkeypatch.setattr(plain, "MOST", legal - 1)
    with pytest.raises(NumPyError):
        plain.search(base_job(), SMALL)


def test_it_says_how_far_it_is_and_can_be_stopped() -> None:
    shares: list[float] = []
    found = plain.search(base_job(), SMALL, progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 2
    with pytest.raises(StoppedError, match=rf"1 of {found.legal} layouts were evaluated") as stopped:
        plain.search(base_job(), SMALL, progress=lambda *_: None, stop=stopping_after_one_layout())
    assert "narrow the space" in str(stopped.value)


def stopping_after_one_layout() -> Callable[[], bool]:
    """Says True once the second layout is begun: it is asked more often while the legal ones are found."""
    asked = 0

    def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    before = -plain.search(base_job(), SMALL, stop=count).legal + asked
    asked = 0
    return lambda: count() or asked > before + 1


def test_an_interrupt_ends_it_with_the_best_so_far() -> None:
    def interrupt(share: float, found: Found) -> None:
        raise KeyboardInterrupt

    found = plain.search(base_job(), SMALL, progress=interrupt)
    assert found.interrupted and 0 < found.fits + found.tight + found.too_large < found.legal


def test_nothing_legal_names_the_rules() -> None:
    space = Space(tensor_model_parallel_size=(3,))
    with pytest.raises(LayoutError) as plainly:
        plain.search(base_job(), space)
    with pytest.raises(LayoutError) as arrays:
        search(base_job(), space)
    assert str(plainly.value) == str(arrays.value)
