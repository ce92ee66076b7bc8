"""The simulation: lifetimes follow from declarations, and every byte of a peak is a declared tensor."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from megatron_memory_estimator import estimate
from megatron_memory_estimator.rank.peak import find_peak
from megatron_memory_estimator.rank.rows import rows_at_peak
from megatron_memory_estimator.tape.events import WAITING
from megatron_memory_estimator.tape.ops import Op, Recompute, Unit
from megatron_memory_estimator.tape.simulate import alive_at, trace
from megatron_memory_estimator.tape.tensor import Dim, Tensor, tensor

from .helpers import moe_job, small_job


def t(name: str, size: int) -> Tensor:
    return tensor(name, (Dim("n", size),), "uint8")._replace(dtype="bf16", nbytes=size)


X, Y, Z, W, V = t("x", 100), t("y", 10), t("z", 1), t("w", 1000), t("v", 5)


def test_a_tensor_lives_to_its_last_reader_unless_saved() -> None:
    unit = Unit("u", (Op("a", (X,), (Y,), (X,)), Op("b", (Y,), (Z,))), X, Z)
    found = trace(unit)
    assert [event.nbytes for event in found.forward] == [110, 111]
    assert found.saved_bytes == 100


def test_backward_holds_gradients_and_frees_what_was_saved() -> None:
    unit = Unit("u", (Op("a", (X,), (Y,), (X,)), Op("b", (Y,), (Z,), (Y,))), X, Z)
    # b: saved x, y; gradients of z and y. a: saved x; gradients of y and x
    # the first event waits: saved x and y, and the gradient of z
    assert [event.nbytes for event in trace(unit).backward] == [100 + 10 + 1, 100 + 10 + 1 + 10, 100 + 10 + 100]


def test_scratch_lives_only_inside_its_op() -> None:
    unit = Unit("u", (Op("a", (X,), (Y,), forward=(W,)), Op("b", (Y,), (Z,), backward=(W,))), X, Z)
    found = trace(unit)
    assert [event.nbytes for event in found.forward] == [1110, 11]
    assert found.backward[1].nbytes == 1 + 10 + 1000


def test_a_checkpoint_keeps_its_inputs_and_runs_again() -> None:
    inner = (Op("a", (X,), (Y,), (X, Y)), Op("b", (Y,), (Z,), (Y,)))
    found = trace(Unit("u", (Recompute("c", inner),), X, Z))
    assert found.saved_bytes == 100
    assert [event.phase for event in found.backward] == ["backward", "recompute", "recompute", "backward", "backward"]


def test_a_discarded_output_returns_when_its_hook_runs() -> None:
    region = Recompute("c", (Op("a", (X,), (Y,), (X,)),), hook="b")
    items = (region, Op("b", (Y,), (Z,), (Y,)))
    found = trace(Unit("u", items, X, Z))
    assert found.saved_bytes == 100
    assert found.backward[1][:3] == ("recompute", "a", 100 + 10 + 1)


def test_residual_gradients_share_one_storage() -> None:
    unit = Unit("u", (Op("a", (X,), (Y,)), Op("add", (Y, X), (Z,), passes=(Y, X))), X, Z)
    assert [event.nbytes for event in trace(unit).backward] == [1, 1, 1 + 100]


JOBS: list[dict[str, Any]] = [
    {},
    {"recompute_granularity": "full"},
    {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]},
    {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
]


@pytest.mark.parametrize("settings", JOBS, ids=str)
@pytest.mark.parametrize("pp", [1, 2])
def test_rows_add_up_to_the_peak_and_to_rest(settings: dict[str, Any], pp: int) -> None:
    for stage in estimate(small_job(2 * pp, pipeline_model_parallel_size=pp, **settings)).stages:
        assert sum(row.nbytes for row in stage.rows) == stage.peak_allocated_bytes
        assert sum(stage.breakdown_bytes.values()) == stage.peak_allocated_bytes
        assert sum(row.nbytes for row in stage.steady_rows) == stage.steady_allocated_bytes


def test_every_event_can_be_explained() -> None:
    for run in estimate(moe_job()).stages[0].rank.plans[0].runs:
        for index, event in enumerate(run.trace.forward + run.trace.backward):
            assert sum(live.tensor.nbytes for live in alive_at(run.unit, index)) == event.nbytes


def test_removing_one_declaration_changes_the_peak() -> None:
    stage = estimate(moe_job(seq_length=4096)).stages[0]
    plan = stage.rank.plans[0]
    run = next(r for r in plan.runs if r.first_layer >= 0)
    slim = tuple(
        op._replace(saves=tuple(s for s in op.saves if s.name != "input_layernorm.output"))
        if isinstance(op, Op)
        else op
        for op in run.unit.items
    )
    unit = run.unit._replace(items=slim)
    runs = tuple(r._replace(unit=unit, trace=trace(unit)) if r is run else r for r in plan.runs)
    rank = dataclasses.replace(stage.rank, plans=(dataclasses.replace(plan, runs=runs),))
    found = find_peak(rank)
    assert found.nbytes < stage.peak_allocated_bytes
    assert sum(row.nbytes for row in rows_at_peak(rank, found)) == found.nbytes
    assert not any("input_layernorm.output" in row.name for row in rows_at_peak(rank, found))


def test_one_storage_is_counted_once() -> None:
    """Names of kept tensors are unique in each unit."""
    for run in estimate(moe_job()).stages[0].rank.plans[0].runs:
        names = [live.tensor.storage for live in run.trace.saved]
        assert len(names) == len(set(names))


def test_a_hook_that_nothing_answers_is_an_error() -> None:
    x, y, z = (tensor(name, (Dim("n", 8),)) for name in "xyz")
    region = Recompute("norm", (Op("norm", (x,), (y,), (x,)),), hook="linear")
    trace(Unit("layer", (region, Op("linear", (y,), (z,), (y,))), x, z))
    with pytest.raises(AssertionError, match="norm: no op behind it is linear"):
        trace(Unit("layer", (region, Op("linnear", (y,), (z,), (y,))), x, z))


def test_the_role_of_every_tensor_that_is_alive() -> None:
    unit = Unit("u", (Op("a", (X,), (Y,), (X,)), Op("b", (Y,), (Z,), backward=(W,))), X, Z)
    assert [[(live.tensor.name, live.role) for live in alive_at(unit, index)] for index in range(5)] == [
        [("x", "saved"), ("y", "in use")],
        [("x", "saved"), ("y", "in use"), ("z", "in use")],
        [("x", "saved"), ("grad:z", "gradient")],
        [("x", "saved"), ("grad:z", "gradient"), ("grad:y", "gradient"), ("w", "scratch")],
        [("x", "saved"), ("grad:y", "gradient"), ("grad:x", "gradient")],
    ]
    assert [(live.tensor.name, live.role, live.saved_by[0].name) for live in trace(unit).saved] == [("x", "saved", "a")]


def test_what_nobody_reads_is_freed_at_once() -> None:
    unit = Unit("u", (Op("a", (X,), (Y, W)), Op("b", (Y,), (Z,))), X, Z)
    assert [event.nbytes for event in trace(unit).forward] == [1110, 11]


def test_the_output_of_a_checkpoint_lives_to_its_last_reader() -> None:
    """Of a checkpoint of two ops the tensor between them is freed, its output is there for the op behind it and freed then."""
    inner = (Op("a", (X,), (W,), (X,)), Op("b", (W,), (Y,), (W,)))
    found = trace(Unit("u", (Recompute("c", inner), Op("d", (Y,), (Z,)), Op("e", (Z,), (V,))), X, V))
    assert [event.nbytes for event in found.forward] == [1100, 1110, 100 + 10 + 1, 100 + 1 + 5]
    assert found.saved_bytes == 100


def test_a_checkpoint_may_keep_less_than_its_inputs() -> None:
    """It keeps a shard of 5 of its input of 100 and has the whole of it in the shard's place while its ops run and go back; the gradient
    of 1 of its output stays as long (Megatron-LM `random.py`, CheckpointFunction.backward: the shard's data is replaced)."""
    inner = (Op("a", (X,), (Y,)), Op("b", (Y,), (Z,), (Y,)))
    found = trace(Unit("u", (Recompute("c", inner, stored=(V,)),), X, Z))
    assert found.saved_bytes == 5
    assert [(event.phase, event.op, event.nbytes) for event in found.backward] == [
        ("backward", WAITING, 1 + 5),
        ("recompute", "a", 1 + 100 + 10),
        ("recompute", "b", 1 + 100 + 10 + 1),
        ("backward", "b", 1 + 100 + 10 + 1 + 10),
        ("backward", "a", 1 + 100 + 1 + 10 + 100),
    ]


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({}, ["backward of mlp.linear_fc2 of layer 3"]),
        ({"pipeline_model_parallel_size": 2},
         ["backward of mlp.linear_fc2 of layer 1, 2 microbatches in flight", "backward of mlp.linear_fc2 of layer 3"]),
        ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
         ["backward of mlp.linear_fc2 of layer 2, chunk 1, 5 microbatches in flight",
          "backward of mlp.linear_fc2 of layer 3, chunk 1, 3 microbatches in flight"]),
        ({"vocab_size": 32000}, ["forward of output.loss_func"]),
    ],
)  # fmt: skip
def test_a_peak_is_named_by_its_op_its_layer_and_its_chunk(settings: dict[str, Any], labels: list[str]) -> None:
    """Of equal layers the last: the others are saved already, or saved still. What is no layer has none."""
    made = small_job(2, **{"global_batch_size": 8, "vocab_size": 128, **settings})
    assert [stage.peak.candidate.label for stage in estimate(made).stages] == labels
