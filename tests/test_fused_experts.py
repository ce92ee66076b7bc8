"""Experts as one fused op, static rank capacity, and the paged stash: hand-worked bytes.

The model: 2 layers, hidden 1024, 8 experts of 512 (gated), top-2, 1,024 tokens on a rank, expert parallel 2: 2,048 rows for 4
experts, 512 each, so padding to 256 changes nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import Estimate, LayoutError, TrainingJob, estimate
from megatron_memory_estimator.tape.ops import flattened

from .helpers import moe_config

HYBRID_EP: dict[str, Any] = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
MXFP8: dict[str, Any] = {"fp8": "e4m3", "fp8_recipe": "mxfp8", "gpu": "B200"}
ROWS = 2048


def run(**settings: Any) -> Estimate:
    config = {**moe_config(), "num_layers": 2}
    given = {
        "seq_length": 1024,
        "expert_model_parallel_size": 2,
        "use_distributed_optimizer": True,
        "global_batch_size": 2,
        "router_imbalance": 1,
    }
    return estimate(TrainingJob.from_config(config, 2, **{**given, **HYBRID_EP, **settings}))


def kept(found: Estimate) -> dict[str, int]:
    """Bytes that the experts of the first layer keep, by name."""
    layer = found.stages[0].rank.plans[0].runs[1]
    return {
        live.tensor.name: live.tensor.nbytes for live in layer.trace.saved if live.tensor.name.startswith("mlp.experts")
    }


def stash(found: Estimate) -> int:
    return sum(w.nbytes for w in found.stages[0].rank.workspaces if w.name.startswith("paged stash"))


def test_mxfp8_keeps_both_inputs_by_columns_and_the_output_of_fc1() -> None:
    """TransformerEngine pytorch/ops/fused/grouped_mlp.py: columnwise data and one scale per 32, activation_in in bf16."""
    name = "mlp.experts.grouped_mlp"
    assert kept(run(use_transformer_engine_op_fuser=True, **MXFP8)) == {
        f"{name}.fc1.input mxfp8": ROWS * 1024,
        f"{name}.fc1.input mxfp8 scales": ROWS * 1024 // 32,
        f"{name}.fc1 output": ROWS * 2 * 512 * 2,
        f"{name}.fc2.input mxfp8": ROWS * 512,
        f"{name}.fc2.input mxfp8 scales": ROWS * 512 // 32,
        "mlp.experts.probs": ROWS * 4,
    }


def test_nvfp4_keeps_both_inputs_in_both_orientations() -> None:
    """The same file: half a byte a value and a scale of one byte per 16, by rows for one GEMM and by columns for the other; the activation
    between the two passes through 16 bits, and so does its gradient."""
    found = run(use_transformer_engine_op_fuser=True, fp4="e2m1", gpu="B200")
    name = "mlp.experts.grouped_mlp"
    each = {f"{name}.fc1.input": ROWS * 1024, f"{name}.fc2.input": ROWS * 512}
    sizes = kept(found)
    for label, values in each.items():
        assert sum(n for one, n in sizes.items() if one.startswith(label)) == 2 * (values // 2 + values // 16)
    unit = found.stages[0].rank.plans[0].runs[1].unit
    op = next(one for one in flattened(unit.items) if one.name == name)
    assert [t.nbytes for t in op.forward] == [ROWS * 512 * 2]
    assert ROWS * 2 * 512 * 2 in [t.nbytes for t in op.backward]


def test_without_mxfp8_the_ops_keep_what_unfused_experts_keep() -> None:
    """Basic ops one by one (bf16); 2,048 rows are a multiple of 256 per expert already."""
    assert sorted(kept(run(use_transformer_engine_op_fuser=True)).values()) == sorted(kept(run()).values())


def test_grouped_tensors_pad_every_expert_to_256_rows() -> None:
    found = run(moe_use_grouped_tensor=True, seq_length=1000)  # 2,000 rows, 500 each
    assert found.stages[0].rank.context.padded_expert_rows.size == 4 * 512


def test_rank_capacity_makes_the_rows_static() -> None:
    for imbalance in (1.0, 1.3):
        found = run(moe_expert_rank_capacity_factor=1.5, router_imbalance=imbalance)
        assert found.stages[0].rank.context.received_rows.size == 1.5 * ROWS


def test_the_stash_holds_balanced_rows_times_its_factor() -> None:
    """Two layers, one microbatch in flight: 1.25 times what they keep with balanced routing, nothing else of the experts stays."""
    settings: dict[str, Any] = {
        "use_transformer_engine_op_fuser": True,
        "moe_expert_rank_capacity_factor": 1.5,
        **MXFP8,
    }
    balanced = sum(kept(run(use_transformer_engine_op_fuser=True, **MXFP8)).values())
    found = run(moe_paged_stash=True, moe_paged_stash_buffer_size_factor_cuda=1.25, **settings)
    assert stash(found) == 1.25 * 2 * balanced
    assert not kept(found)
    assert stash(run(**settings)) == 0
    assert found.stages[0].peak_allocated_bytes < run(**settings).stages[0].peak_allocated_bytes


def test_the_host_part_of_the_stash() -> None:
    found = run(moe_expert_rank_capacity_factor=1.5, moe_paged_stash=True, moe_paged_stash_buffer_size_factor_cpu=0.5)
    term = next(term for term in found.stages[0].host if term.name.startswith("paged stash"))
    assert term.low == round(stash(found) / 1.1 * 0.5)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"moe_paged_stash": True}, "moe_paged_stash needs moe_expert_rank_capacity_factor"),
        ({"moe_expert_rank_capacity_factor": 1.5, "moe_token_dispatcher_type": "alltoall"}, "needs moe_token_dispatcher_type=flex"),
        ({"use_transformer_engine_op_fuser": True, "moe_grouped_gemm": False}, "needs transformer_impl=transformer_engine and moe_group"),
    ],
)  # fmt: skip
def test_rules(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(LayoutError, match=rule):
        run(**settings)


def test_the_rows_behind_a_fused_op_are_as_many_as_came() -> None:
    """2,000 rows of 4 experts, each padded to 512 where the dispatcher has not done that: padded before, cut back behind, 16 bits each."""
    alltoall = {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None}
    found = run(use_transformer_engine_op_fuser=True, seq_length=1000, **MXFP8, **alltoall)
    ops = {op.name: op for op in flattened(found.stages[0].rank.plans[0].runs[1].unit.items)}
    made = [t.nbytes for name in ("pad", "unpad") for t in ops[f"mlp.experts.{name}"].writes]
    assert made == [2 * 4 * 512 * 1024, 2 * 2000 * 1024]
