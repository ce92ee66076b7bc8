"""Figures read off the real Megatron-Core classes and schedules: parameters, buffers, saved tensors, in-flight counts."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.rank.schedule import occupancy

from .helpers import record_job, records


def name(record: dict[str, Any]) -> str:
    shown = {k: v for k, v in record["settings"].items() if k.endswith("_size") and "vocab" not in k}
    return f"{record['model']}-{shown}-{record.get('rank', 0)}"


@pytest.mark.parametrize("record", records("parameters_per_rank.json"), ids=name)
def test_parameters_of_a_rank_are_exact(record: dict[str, Any]) -> None:
    stage = estimate(record_job(record)).stages[record["pp_rank"]]
    assert stage.num_parameters == (record["dense"], record["expert"])


@pytest.mark.parametrize("record", records("ddp_buffers.json"), ids=name)
def test_ddp_buffers_and_optimizer_shards_are_exact(record: dict[str, Any]) -> None:
    stage = estimate(record_job(record)).stages[record["pp_rank"]]
    found = [
        {"chunk": b.chunk, "group": b.group, "numel": b.numel, "numel_unpadded": b.numel_unpadded}
        for b in stage.rank.buffers
    ]
    assert found == record["buffers"]
    owned = [s.numel for s in stage.rank.states if s.name.startswith("exp_avg ")]
    whole = [b.numel_unpadded for b in stage.rank.buffers]
    assert owned == [n if n is not None else full for n, full in zip(record["owned_elements"], whole, strict=True)]


@pytest.mark.parametrize("record", records("ddp_buffers.json"), ids=name)
def test_state_bytes_are_the_live_bytes_after_setup(record: dict[str, Any]) -> None:
    """The rest is small constants: rotary frequencies, and YaRN tables of MLA layers."""
    rank = estimate(record_job(record)).stages[record["pp_rank"]].rank
    state = sum(s.nbytes for s in rank.states if s.since in ("setup", "first step"))
    tables = sum(w.nbytes for w in rank.workspaces if w.name.startswith("rotary cos"))
    assert 0 <= record["live_bytes"] - state - tables < 16384


@pytest.mark.parametrize("record", records("saved_bytes.json"), ids=name)
def test_saved_bytes_of_a_microbatch_within_a_thousandth(record: dict[str, Any]) -> None:
    plan = estimate(record_job(record)).stages[0].rank.plans[0]
    assert plan.saved_bytes == pytest.approx(record["total_saved_bytes"], rel=1e-3)


@pytest.mark.parametrize("record", records("saved_bytes.json"), ids=name)
def test_saved_bytes_of_each_layer_within_a_thousandth(record: dict[str, Any]) -> None:
    layers = [n for part, n in record["by_part"].items() if part.startswith("decoder")]
    runs = estimate(record_job(record)).stages[0].rank.plans[0].runs
    ours = [run.trace.saved_bytes for run in runs for _ in range(run.copies) if run.first_layer >= 0]
    assert sum(ours) == pytest.approx(sum(layers), rel=1e-3)


@pytest.mark.parametrize("record", records("in_flight.json"), ids=str)
def test_in_flight_counts_are_exact(record: dict[str, Any]) -> None:
    pp, vp = record["pp"], record["vpp"] or 1
    group = record["microbatch_group_size_per_vp_stage"] or pp
    found = occupancy(pp, vp, record["pp_rank"], record["num_microbatches"], group)
    assert found.num_warmup == record["num_warmup"]
    assert found.max_in_flight == record["max_in_flight_chunks"]
    assert list(found.per_chunk) == record["per_chunk_max"]


@pytest.mark.parametrize("record", records("in_flight.json"), ids=str)
def test_no_occupancy_is_lost(record: dict[str, Any]) -> None:
    """The occupancies that no other one exceeds are among the steps of the schedule."""
    pp, vp = record["pp"], record["vpp"] or 1
    group = record["microbatch_group_size_per_vp_stage"] or pp
    found = occupancy(pp, vp, record["pp_rank"], record["num_microbatches"], group)
    states = {found.in_flight(step) for step, _ in found.held((0,) * vp, every=True)}
    assert {tuple(state) for state in record["maximal_states"]} <= states
