"""CUDA graphs: pools of captured modules, static inputs and outputs, and the range of what a graph reserves."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Stage, estimate
from megatron_memory_estimator.device.reserved import graph_slack
from megatron_memory_estimator.rank.captures import capturing, graph_ends, outputs_in_pool, pool

from .helpers import small_job

H = 1024 * 1024 * 2
"""Bytes of a residual-stream tensor: 1,024 tokens of width 1,024 in bf16."""
ATTENTION: dict[str, Any] = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}


def stage(**settings: Any) -> Stage:
    return estimate(small_job(1, global_batch_size=4, **settings)).stages[0]


def ends(found: Stage) -> dict[str, int]:
    return {t.name: t.nbytes for t in graph_ends(found.rank)}


def test_nothing_without_graphs() -> None:
    assert pool(stage().rank) == (0, None) and ends(stage()) == {}


MASK = 1024 * 1024
"""Bytes of an attention mask: 1,024 x 1,024 booleans."""


def test_static_inputs_of_layers_in_flight() -> None:
    """Four layers, one microbatch in flight: an input and a mask each, and one output gradient for all. Outputs are in the pool. Without
    TransformerEngine 2.7 and Megatron-Core 0.15 every microbatch of the step has its own, outputs and both gradients too."""
    shared = {
        "CUDA graph static inputs": 4 * H,
        "CUDA graph static output gradient": H,
        "CUDA graph static attention masks": 4 * MASK,
    }
    assert ends(stage(**ATTENTION)) == shared
    assert ends(stage(**ATTENTION, megatron_core_version="0.15", transformer_engine_version="2.7")) == shared
    for old in ({"megatron_core_version": "0.14"}, {"transformer_engine_version": "2.6"}):
        older = ends(stage(**ATTENTION, **old))
        assert older.pop("CUDA graph static attention masks") == 4 * 4 * MASK
        assert len(older) == 4 and set(older.values()) == {4 * 4 * H}


def test_a_graph_without_attention_has_no_mask() -> None:
    found = ends(stage(**{**ATTENTION, "cuda_graph_modules": ("mlp",)}))
    assert found == {"CUDA graph static inputs": 4 * H, "CUDA graph static output gradient": H}


def test_graphs_of_layers_that_are_not_in_flight_at_once_share_inputs() -> None:
    """pp 2, vpp 2, one layer per chunk: the first rank warms up 2 * 1 + 2 chunks, the last 2, and one more runs."""
    job = small_job(
        2, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2, global_batch_size=4, **ATTENTION
    )
    first, last = (one.rank for one in estimate(job).stages)
    for rank, chunks in ((first, 5), (last, 3)):
        found = {t.name: t.nbytes for t in graph_ends(rank)}
        assert found["CUDA graph static inputs"] == chunks * H
        assert outputs_in_pool(rank)[0].nbytes == chunks * H


def test_the_capture_has_static_buffers_and_the_outputs_of_what_is_in_flight() -> None:
    found = capturing(stage(**ATTENTION).rank)
    rows = {row.name: row.nbytes for row in found.extras}
    assert rows["CUDA graph outputs"] == rows["CUDA graph static inputs"] == 4 * H
    assert found.nbytes == sum(rows.values())
    without = capturing(stage(**ATTENTION, cuda_graph_warmup_steps=0).rank)
    assert {row.name: row.nbytes for row in without.extras}["CUDA graph static inputs"] == 4 * H


def test_the_pool_is_what_captured_layers_keep() -> None:
    """A captured attention keeps what the ops from its norm to linear_proj keep; the MLP's tensors are not in the pool."""
    found = stage(**ATTENTION)
    layer = next(run for run in found.rank.plans[0].runs if run.first_layer == 0)
    names = {t.name for t in layer.graphed}
    assert any(name.startswith("self_attention.core_attention") for name in names)
    assert not any(name.startswith("mlp") for name in names)
    kept = sum(live.tensor.nbytes for live in layer.trace.saved)
    assert 0 < sum(t.nbytes for t in layer.graphed) < kept
    assert "hidden_states" in names, "the norm's input, which is the graph's static input"
    assert pool(found.rank)[0] == 4 * sum(t.nbytes for t in layer.graphed if t.name != "hidden_states")


def test_graphs_only_add_to_what_is_reserved() -> None:
    """With eager steps first, replays reuse what those steps reserved or come on top of it: a range, and never less."""
    found, plain = stage(**ATTENTION), stage()
    term = graph_slack(found.job, found.rank, found.peak)
    assert 0 <= term.low <= term.high
    assert found.reserved.low >= plain.reserved.low and found.reserved.high > plain.reserved.high


def test_without_warm_up_the_pool_comes_on_top() -> None:
    found = stage(**ATTENTION, cuda_graph_warmup_steps=0)
    term = graph_slack(found.job, found.rank, found.peak)
    assert term.low == pool(found.rank)[0]


def test_a_graph_of_the_whole_iteration_keeps_the_optimizer_step_apart() -> None:
    """bf16 gradients have fp32 copies in the step, 4 bytes an element, which the graph's pool has no room for; fp32 ones have none.

    Nothing of the eager warm-up stays: torch.cuda.graph empties the cache before it captures (pytorch `torch/cuda/graphs.py`).
    """
    settings: dict[str, Any] = {"cuda_graph_impl": "full_iteration"}
    found, plain = stage(**settings), stage()
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes
    assert graph_slack(found.job, found.rank, found.peak)[1:3] == (0, 0)
    found = stage(**settings, grad_reduce_in_bf16=True)
    term = graph_slack(found.job, found.rank, found.peak)
    passes = plain.peak_allocated_bytes - plain.peak.persistent
    assert passes < 4 * sum(found.num_parameters) == found.peak.candidate.nbytes
    assert (term.low, term.high) == (0, passes)


def test_nothing_of_a_capture_is_there_in_the_first_step() -> None:
    """TransformerEngine's graphs are captured after the warm-up steps; Megatron-Core's own in the first pass."""
    plain, te = stage(), stage(**ATTENTION)
    assert te.steady_allocated_bytes - plain.steady_allocated_bytes == sum(ends(te).values()) > 0
    assert te.first_step_peak_allocated_bytes == plain.first_step_peak_allocated_bytes
    early = stage(**ATTENTION, cuda_graph_warmup_steps=0)
    assert early.first_step_peak_allocated_bytes > plain.first_step_peak_allocated_bytes


@pytest.mark.parametrize("modules", [("attn",), ("mlp",), ("attn", "mlp")])
def test_wider_scopes_have_larger_pools(modules: tuple[str, ...]) -> None:
    both = pool(stage(**{**ATTENTION, "cuda_graph_modules": ("attn", "mlp")}).rank)[0]
    assert 0 < pool(stage(**{**ATTENTION, "cuda_graph_modules": modules}).rank)[0] <= both
