"""The data loader's attention mask: one byte per pair of positions, cut along cp, and kept by what refers to it.

Megatron-LM `megatron/core/datasets/gpt_dataset.py` builds [1, s, s] of booleans, `megatron/core/utils.py` (get_batch_on_this_cp_rank)
copies a rank's part out of the whole, and `megatron/core/tensor_parallel/random.py` (CheckpointFunction) saves every argument.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Estimate, TrainingJob, UnsupportedError, estimate
from megatron_memory_estimator.rank.rank import Row
from megatron_memory_estimator.rank.rows import breakdown, parts_at_peak, rows_at_peak

from .helpers import small_config

S = 65536
FULL: dict[str, Any] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
CORE: dict[str, Any] = {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}


def estimated(num_gpus: int = 1, **settings: Any) -> Estimate:
    given: dict[str, Any] = {
        "seq_length": S,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "create_attention_mask_in_dataloader": True,
    }
    return estimate(TrainingJob.from_config(small_config(), num_gpus, **{**given, **settings}))


def masks(found: list[Row]) -> dict[str, tuple[int, int]]:
    """The masks among some rows: copies and bytes."""
    return {row.name: (row.copies, row.nbytes) for row in found if "attention_mask" in row.name}


def at_peak(found: Estimate, stage: int = 0) -> dict[str, tuple[int, int]]:
    one = found.stages[stage]
    rows = rows_at_peak(one.rank, one.peak)
    assert sum(row.nbytes for row in rows) == one.peak_allocated_bytes
    assert breakdown(rows) == parts_at_peak(one.rank, one.peak)
    return masks(rows)


def test_a_forward_has_the_mask_of_its_part_of_the_sequence() -> None:
    found = estimated(4, context_parallel_size=4, hidden_dropout=0.0)
    (plan,) = found.stages[0].rank.plans
    sizes = {t.name: (t.local_shape, t.nbytes) for t in plan.batch}
    assert sizes["batch.attention_mask"] == ((1, S // 4, S), S * S // 4)
    assert plan.held == ()


def test_the_whole_mask_stands_beside_its_part_before_the_forward() -> None:
    """16 GiB of mask beside 2 GiB of the rank's part, and what one microbatch before it keeps."""
    s = 2 * S
    found = estimated(16, context_parallel_size=8, pipeline_model_parallel_size=2, seq_length=s)
    stage = found.stages[0]
    assert stage.peak.candidate.label == "get_batch_on_this_cp_rank, 2 microbatches in flight"
    assert at_peak(found) == {"batch.attention_mask before cp": (1, s * s), "batch.attention_mask": (1, s * s // 8)}
    (plan,) = stage.rank.plans
    sent = s // 8 * 1024 * 2  # the hidden states of the microbatch before, on their way
    tokens = s // 8 * (8 + 8 + 8 + 4)
    kept = stage.peak.candidate.nbytes - s * s - s * s // 8 - tokens - plan.saved_bytes
    assert kept == sent  # the gradient of what it sent before, received for a backward


def test_one_rank_of_context_parallelism_cuts_nothing() -> None:
    assert estimated().stages[0].rank.plans[0].uncut == ()


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (FULL, 4),
        ({**FULL, "recompute_method": "block"}, 4),
        (CORE, 4),
        ({"recompute_granularity": "selective", "recompute_modules": ("layernorm",)}, 1),
        ({}, 1),
    ],
)
def test_a_checkpoint_keeps_the_mask_of_every_microbatch_in_flight(settings: dict[str, Any], copies: int) -> None:
    """Four stages: the first has four microbatches in flight, the ones in the middle read no inputs.

    The real classes of Megatron-Core 0.19.2 keep one mask of [1, 1, s, s] booleans for all layers with full recomputation (uniform and
    block) and with core_attn, and none with mlp or without recomputation.
    """
    off, on = (
        estimated(4, pipeline_model_parallel_size=4, create_attention_mask_in_dataloader=built, **settings)
        for built in (False, True)
    )
    assert at_peak(on) == {"batch.attention_mask": (copies, copies * S * S)}
    more = on.stages[0].peak_allocated_bytes - off.stages[0].peak_allocated_bytes
    assert more == copies * S * S if copies > 1 else 0 < more <= S * S
    assert at_peak(on, 1) == {}
    assert on.stages[1].peak_allocated_bytes == off.stages[1].peak_allocated_bytes


def test_the_softmax_of_torch_keeps_the_mask_that_it_applies() -> None:
    """Megatron-LM `megatron/core/fusions/fused_softmax.py` (forward_torch_softmax): masked_fill saves it, once for all layers."""
    settings: dict[str, Any] = {"transformer_impl": "local", "seq_length": 1024, "pipeline_model_parallel_size": 2}
    kernel, torch = (
        estimated(2, masked_softmax_fusion=fused, **settings).stages[0].rank.plans[0] for fused in (True, False)
    )
    assert kernel.held == ()
    assert [(t.name, t.nbytes) for t in torch.held] == [("batch.attention_mask", 1024 * 1024)]


def test_a_stage_that_reads_no_inputs_makes_masks_of_its_own() -> None:
    """forward_torch_softmax is given None there, and makes the causal mask for each layer, whatever the data loader does."""
    settings: dict[str, Any] = {"transformer_impl": "local", "seq_length": 8192, "pipeline_model_parallel_size": 4}
    off, on = (estimated(4, create_attention_mask_in_dataloader=built, **settings).stages[1] for built in (False, True))
    assert on.peak_allocated_bytes == off.peak_allocated_bytes
    assert any("torch_softmax.mask" in row.name and row.nbytes for row in rows_at_peak(on.rank, on.peak))


def test_a_sink_of_the_local_softmax_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="softmax_type=learnable is not modelled with transformer_impl=local"):
        estimate(TrainingJob.from_config(small_config(), 1, transformer_impl="local", softmax_type="learnable"))


def test_behind_the_backward_of_its_layers_no_mask_is_left() -> None:
    """The backward of the embedding comes behind that of the first layer, which frees the mask."""
    (plan,) = estimated(**FULL).stages[0].rank.plans
    assert plan.runs[plan.holder].first_layer == 0
    assert plan.inputs_at("B", plan.holder) == plan.held
    assert plan.inputs_at("B", plan.holder - 1) == ()


def test_with_all_to_all_overlap_every_microbatch_in_flight_keeps_its_inputs() -> None:
    """Megatron-LM `megatron/core/models/common/model_chunk_schedule_plan.py`: the plan of a microbatch, with its ModelChunkState, lives
    until its backward is over."""
    settings: dict[str, Any] = {"pp": 2, "vpp": 2, "ep": 2, "moe_token_dispatcher_type": "alltoall", "seq_length": 4096}
    settings |= {"create_attention_mask_in_dataloader": True, "global_batch_size": 64}
    on, off = (
        estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, overlap_moe_expert_parallel_comm=value, **settings))
        for value in (True, False)
    )
    (first, second), (other, _) = on.stages[0].rank.plans, off.stages[0].rank.plans
    assert first.held == first.batch and second.held == second.batch == ()
    assert first.held_bytes == 4096 * 4096 + 4096 * (8 + 8 + 8 + 4) and other.held == ()
    assert at_peak(on)["batch.attention_mask"][0] > 2
