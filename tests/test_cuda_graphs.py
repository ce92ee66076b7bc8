"""CUDA graphs: pools of captured modules, static inputs and outputs, and the range of what a graph reserves."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Stage, estimate
from megatron_memory_estimator.device.reserved import graph_slack
from megatron_memory_estimator.rank.captures import graph_ends, pool

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


def test_static_inputs_and_outputs_per_layer_and_slot() -> None:
    """Four layers, one microbatch in flight: one input and one output each; before Megatron-Core 0.17 every microbatch of the
    step has its own, and gradients too (PR 2391)."""
    assert ends(stage(**ATTENTION)) == {"CUDA graph static inputs": 4 * H, "CUDA graph static outputs": 4 * H}
    older = ends(stage(**ATTENTION, megatron_core_version="0.16"))
    assert len(older) == 4 and set(older.values()) == {4 * 4 * H}


def test_the_pool_is_what_captured_layers_keep() -> None:
    """A captured attention keeps what the ops from its norm to linear_proj keep; the MLP's tensors are not in the pool."""
    found = stage(**ATTENTION)
    layer = next(run for run in found.rank.plans[0].runs if run.first_layer == 0)
    names = {t.name for t in layer.graphed}
    assert any(name.startswith("self_attention.core_attention") for name in names)
    assert not any(name.startswith("mlp") for name in names)
    kept = sum(live.tensor.nbytes for live in layer.trace.saved)
    assert 0 < sum(t.nbytes for t in layer.graphed) < kept
    assert pool(found.rank)[0] == 4 * sum(t.nbytes for t in layer.graphed)


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


def test_a_graph_of_the_whole_iteration_is_a_range() -> None:
    found, plain = stage(cuda_graph_impl="full_iteration"), stage()
    assert found.peak_allocated_bytes == plain.peak_allocated_bytes
    term = graph_slack(found.job, found.rank, found.peak)
    assert (term.low, term.high) == (0, found.peak.nbytes - found.peak.persistent)


@pytest.mark.parametrize("modules", [("attn",), ("mlp",), ("attn", "mlp")])
def test_wider_scopes_have_larger_pools(modules: tuple[str, ...]) -> None:
    both = pool(stage(**{**ATTENTION, "cuda_graph_modules": ("attn", "mlp")}).rank)[0]
    assert 0 < pool(stage(**{**ATTENTION, "cuda_graph_modules": modules}).rank)[0] <= both
