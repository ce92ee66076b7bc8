"""Uneven routing of dropless experts: the factors of a phase, the range beside the peak, and the worst case."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob, estimate
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.modules.routing import factors
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.routing import Routing, routing

from .helpers import moe_config, moe_job

SPREAD: dict[str, Any] = {
    "seq_length": 1024, "expert_model_parallel_size": 4, "use_distributed_optimizer": True,
}  # fmt: skip


def job(**changes: Any) -> TrainingJob:
    return TrainingJob.from_config({**moe_config(), "num_moe_experts": 16}, 4, **{**SPREAD, **changes})


def range_of(**changes: Any) -> Routing:
    found = routing(estimate(job(**changes)))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("phase", "experts_per_rank", "most", "expected"),
    [
        ("pretraining", 4, 8, (1.03, 1.12, 1.3)),  # as measured: DeepSeek-V3 proxy, 1.12
        ("early", 16, 8, (1.075, 1.2, 1.5)),  # sqrt(4/16) of the excess
        ("early", 1, 8, (1.195, 1.52, 2.3)),  # 1.3 times the excess
        ("fine_tuning", 2, 2, (1.1, 1.4, 2.0)),  # two ranks cannot get more than twice the mean
        ("forced_balance", 4, 8, (1.0, 1.01, 1.03)),
    ],
)
def test_factors_of_a_phase(phase: str, experts_per_rank: int, most: float, expected: tuple[float, ...]) -> None:
    found = factors(Training(routing_phase=phase), experts_per_rank, most)
    assert found == pytest.approx(expected)


def test_one_recomputed_layer_averages_nothing() -> None:
    full = Training(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    assert factors(full, 4, 8) == pytest.approx((1.03, 1.3, 1.3))


def test_the_range_is_what_the_factor_gives() -> None:
    found = range_of(routing_phase="fine_tuning")
    assert found.factors == (1.1, 1.4, 2.5)
    for factor, peak in zip(found.factors, found.peaks, strict=True):
        assert estimate(job(router_imbalance=factor)).peak_stage.peak_allocated_bytes == peak
    balanced = estimate(job(router_imbalance="balanced")).peak_stage.peak_allocated_bytes
    assert balanced < found.peaks[0] < found.peaks[1] < found.peaks[2]


def test_the_headline_is_typical_routing() -> None:
    """16 experts on 4 ranks, 4 each: the factor of converged pretraining as it is, 1.12."""
    now = estimate(job())
    assert context_of(job()).router_imbalance == 1.12
    assert now.peak_stage.peak_allocated_bytes == range_of().peaks[1]
    assert now.to_dict() | {"routing": None, "training": None, "assumptions": None} == estimate(
        job(router_imbalance=1.12)
    ).to_dict() | {"routing": None, "training": None, "assumptions": None}
    assert any("1.12 times the rows of balanced routing" in note for note in now.job.assumptions)


def test_saved_expert_rows_grow_by_the_factor() -> None:
    def input_bytes(**changes: Any) -> int:
        rows = estimate(job(**changes)).peak_stage.rows
        return sum(row.nbytes for row in rows if row.part == "activations" and row.name.endswith("mlp.experts.input"))

    assert input_bytes(router_imbalance=1.5) == pytest.approx(1.5 * input_bytes(router_imbalance=1), rel=1e-3)


def test_worst_routing_sends_every_token_to_one_rank() -> None:
    """4 ranks of 1,024 tokens, top-2 of 4 local experts: 8,192 rows, 4 times the mean of 2,048."""
    worst = estimate(job(router_imbalance="worst"))
    assert worst.peak_stage.peak_allocated_bytes == estimate(job(router_imbalance=4.0)).peak_stage.peak_allocated_bytes
    assert worst.peak_stage.rank.context.received_rows.size == 8192
    assert job(router_imbalance="balanced").training.router_imbalance == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"router_imbalance": 1.2},
        {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
        {"expert_model_parallel_size": 1},
    ],
)
def test_no_range_where_routing_decides_nothing(changes: dict[str, Any]) -> None:
    assert routing(estimate(job(**changes))) is None


def test_forced_balance_names_its_phase() -> None:
    assert range_of(moe_router_force_load_balancing=True).phase == "forced_balance"


def test_an_impossible_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"router_imbalance=0\.5 must be at least 1"):
        job(router_imbalance=0.5)


@pytest.mark.parametrize(("dtype", "more"), [(None, 270_336), ("fp32", 540_672)])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_z_loss_keeps_the_logits_of_the_gate(dtype: str | None, more: int, score: str) -> None:
    """The real classes of Megatron-Core 0.19.2 keep 270,338 and 540,676 bytes more for 4,096 tokens and 32 experts, a scalar among them."""
    given: dict[str, Any] = {"moe_router_dtype": dtype, "moe_router_score_function": score, "seq_length": 4096}
    kept = []
    for coefficient in (None, 0.001):
        job = moe_job(2, num_moe_experts=32, moe_router_topk=4, moe_z_loss_coeff=coefficient, **given)
        kept.append(
            next(run.trace.saved_bytes for run in estimate(job).stages[0].rank.plans[0].runs if "moe" in run.unit.name)
        )
    assert kept[1] - kept[0] == more
