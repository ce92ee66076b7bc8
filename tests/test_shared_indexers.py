"""Sparse attention whose layers share the keys that one indexer picks (dsa_indexer_topk_freq)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import LayoutError, TrainingJob, count_parameters, estimate

GLM = "zai-org/GLM-5"


def job(**settings: Any) -> TrainingJob:
    return TrainingJob.from_hf(GLM, 64, seq_length=4096, expert_model_parallel_size=32, **settings)


def test_groups_begin_behind_the_offset() -> None:
    """Layers 1 to 3 have indexers (3 begins the first group of 4: 3 to 6), then 7, 11, ..."""
    kinds = job(dsa_indexer_topk_freq=4, dsa_indexer_skip_topk_offset=3).model.kinds
    owners = [layer + 1 for layer, kind in enumerate(kinds) if kind.startswith("dsa+")]
    assert owners == [1, 2, 3, *range(7, 79, 4)]


def test_layers_without_an_indexer_have_none_of_its_parameters() -> None:
    """GLM-5: an indexer has 2048*32*128 + 6144*128 + 2*128 + 6144*32 parameters; 78 - 21 layers lose theirs."""
    each = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    own = count_parameters(job().model).total
    shared = count_parameters(job(dsa_indexer_topk_freq=4, dsa_indexer_skip_topk_offset=3).model).total
    assert own - shared == (78 - 21) * each


def test_sharing_keeps_one_set_of_keys_per_group() -> None:
    found = estimate(job(dsa_indexer_topk_freq=4, dsa_indexer_skip_topk_offset=3)).stages[0]
    indices = [row for row in found.rows if row.name.endswith("core_attention.topk_indices")]
    copies = sum(row.copies for row in indices)
    assert copies == 22  # 21 decoder layers, and the MTP layer has its own
    assert {row.nbytes // row.copies for row in indices} == {4096 * 2048 * 4}


def test_the_newest_keys_stay_between_two_steps() -> None:
    full: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    for settings in ({}, full):
        shared = estimate(job(dsa_indexer_topk_freq=4, dsa_indexer_skip_topk_offset=3, **settings)).stages[0]
        resting = [row for row in shared.steady_rows if row.name == "shared topk_indices"]
        assert [row.nbytes for row in resting] == [22 * 4096 * 2048 * 4]
        at_peak = [row for row in shared.rows if row.name == "shared topk_indices"]
        assert bool(at_peak) == bool(settings)  # elsewhere the microbatch in flight keeps the same storage


def test_a_stage_cannot_begin_inside_a_group() -> None:
    with pytest.raises(LayoutError, match="layer 39 begins a pipeline stage but takes its keys from an earlier layer"):
        estimate(job(dsa_indexer_topk_freq=4, dsa_indexer_skip_topk_offset=3, pipeline_model_parallel_size=2))
