"""All-to-all overlap: two microbatches at once, and what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, estimate
from megatron_memory_estimator.modules.layers import layer_unit
from megatron_memory_estimator.rank.peak import AFTER_DISPATCH, combined
from megatron_memory_estimator.rank.schedule import occupancy, warmup_steps
from megatron_memory_estimator.tape.ops import flattened

from .helpers import context, moe_config

OVERLAP: dict[str, Any] = {"overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 2}
INTERLEAVED: dict[str, Any] = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}


def job(num_gpus: int = 2, config: dict[str, Any] | None = None, **settings: Any) -> TrainingJob:
    return TrainingJob.from_config(
        config or moe_config(), num_gpus, **{"seq_length": 1024, "router_imbalance": 1, **OVERLAP, **settings}
    )


def test_one_more_forward_runs_before_the_first_backward() -> None:
    # Megatron-LM schedules.py: 2 * (pp - rank - 1) + (vp - 1) * group, plus one with all-to-all overlap
    assert warmup_steps(4, 2, 0, 16, 4, a2a_overlap=True) == 2 * 3 + 4 + 1
    assert occupancy(4, 2, 0, 16, 4, True).max_in_flight == 2 * 3 + 4 + 2
    alone = occupancy(1, 1, 0, 8, 1, True)
    assert [(step.direction, step.beside, alone.in_flight(step)) for step, _ in alone.held((0,))] == [
        ("F", -1, (1,)), ("F", 0, (2,)), ("B", -1, (1,)),
    ]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, INTERLEAVED, {**INTERLEAVED, "micro_batch_size": 4}])
def test_rows_add_up_to_the_peak(settings: dict[str, Any]) -> None:
    config = moe_config(moe_shared_expert_intermediate_size=512)
    found = estimate(job(4, config, global_batch_size=64, **settings))
    for stage in found.stages:
        assert sum(row.nbytes for row in stage.rows) == stage.peak_allocated_bytes
        assert sum(stage.breakdown_bytes.values()) == stage.peak_allocated_bytes


def test_layers_hand_over_one_by_one() -> None:
    """Forward layer i beside backward layer 3 - i: attention forward, experts backward, experts forward, attention backward."""
    plan = estimate(job(2, global_batch_size=16)).stages[0].rank.plans[0]
    pairs = [
        pair
        for pair in combined(plan, plan)
        if pair.forward and pair.backward and pair.forward.run == pair.backward.run == 1
    ]
    assert [(pair.forward.copy, pair.backward.copy) for pair in pairs if pair.forward and pair.backward] == [
        (i, 3 - i) for i in range(4) for _ in range(4)
    ]


def test_overlap_costs_memory_and_never_less_than_without() -> None:
    cases: list[dict[str, Any]] = [{}, INTERLEAVED]
    for settings in cases:
        on = estimate(job(4, global_batch_size=64, **settings))
        off = estimate(job(4, global_batch_size=64, **{**settings, "overlap_moe_expert_parallel_comm": False}))
        for a, b in zip(on.stages, off.stages, strict=True):
            assert a.peak_allocated_bytes >= b.peak_allocated_bytes


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"moe_token_dispatcher_type": "allgather"}, "alltoall or flex"),
        ({"expert_model_parallel_size": 1}, "expert_model_parallel_size above 1"),
        ({"pipeline_model_parallel_size": 2}, "needs virtual stages"),
        ({"recompute_granularity": "full"}, "excludes full recomputation"),
        ({"recompute_granularity": "selective", "recompute_modules": ("moe",)}, "recompute_modules moe"),
        ({"use_megatron_fsdp": True, **INTERLEAVED}, "use_megatron_fsdp needs pipeline_model_parallel_size=1, not 2"),
        ({"use_megatron_fsdp": True, "fsdp_double_buffer": True}, "excludes fsdp_double_buffer"),
        ({"use_megatron_fsdp": True, "cuda_graph_impl": "transformer_engine"}, "excludes CUDA graphs of layers"),
    ],
)
def test_what_overlap_needs(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        estimate(job(4, **settings))


def test_layer_inputs_stay_between_steps() -> None:
    """The dispatcher's probabilities pin the graph: input and gradient of 4 MoE layers, 2 * seq * hidden bytes each."""
    on, off = (estimate(job(2, overlap_moe_expert_parallel_comm=value)).stages[0] for value in (True, False))
    assert on.steady_allocated_bytes - off.steady_allocated_bytes == 4 * 2 * 2 * 1024 * 1024
    flex = [
        estimate(job(2, moe_token_dispatcher_type="flex", overlap_moe_expert_parallel_comm=v)).stages[0]
        for v in (True, False)
    ]
    assert flex[0].steady_allocated_bytes == flex[1].steady_allocated_bytes


def test_delayed_weight_gradients_hold_inputs_and_output_gradients() -> None:
    on, off = (
        estimate(job(2, delay_wgrad_compute=value)).stages[0].rank.plans[0].runs[1].trace for value in (True, False)
    )
    late = {event.op: event.nbytes for event in on.backward}
    early = {event.op: event.nbytes for event in off.backward}
    rows, hidden, width = 1024 * 2, 1024, 512
    fc1, fc2 = 2 * rows * (hidden + 2 * width), 2 * rows * (width + hidden)  # input and output gradient
    assert late["mlp.experts.linear_fc1"] - early["mlp.experts.linear_fc1"] == fc2
    # sort makes a gradient
    assert (
        late["mlp.backward_dw"] - early["mlp.dispatch.sort"]
        == fc1 + fc2 - 2 * rows * hidden - 2 * rows  # gradients that sort makes
    )
    assert late["mlp.dispatch.sort"] == early["mlp.dispatch.sort"]
    assert late["attn.backward_dw"] > early["input_layernorm"] == late["input_layernorm"]
    assert on.saved_bytes == off.saved_bytes
    with pytest.raises(LayoutError, match="delay_wgrad_compute needs overlap_moe_expert_parallel_comm"):
        estimate(job(2, delay_wgrad_compute=True, overlap_moe_expert_parallel_comm=False))


def test_everything_from_the_dispatch_on_is_behind_the_attention_node() -> None:
    """Megatron-LM `fine_grained_callables.py`: attention, router and shared experts in one node; dispatch, experts, combine behind it."""
    made = job(config=moe_config(moe_shared_expert_intermediate_size=512))
    parts = [op.part for op in flattened(layer_unit(context(made), made.model.kinds[0]).unit.items)]
    border = parts.index("dispatch")
    assert {"attn_norm", "qkv_linear", "core_attn", "router", "permute", "shared_experts"} & set(parts[:border])
    assert not AFTER_DISPATCH & set(parts[:border])
    assert set(parts[border:]) <= AFTER_DISPATCH
    assert "combine" in parts[border:] and parts[-1] == "moe_residual"


def test_two_microbatches_and_no_more_on_one_stage() -> None:
    """The peak is the largest pair of moments: of a forward that goes on, or over and kept whole, and of the backward beside it."""
    stage = estimate(job(2, global_batch_size=16)).stages[0]
    plan = stage.rank.plans[0]
    over = {False: 0, True: plan.saved_bytes}
    pairs = [
        (pair.forward.nbytes if pair.forward else over[pair.done]) + (pair.backward.nbytes if pair.backward else 0)
        for pair in combined(plan, plan)
    ]
    assert stage.peak.candidate.step is not None and stage.peak.candidate.step.beside == 0
    assert stage.peak.candidate.nbytes == max(pairs)
