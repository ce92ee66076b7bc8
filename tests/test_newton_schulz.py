"""Scratch of Muon's step against the real class: TensorParallelMuon of Megatron-Core 0.19.2 with emerging-optimizers 0.3.0, whose tensors
were counted while it stepped one matrix (fp32 bytes of an element of the rank)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.job.training import Training
from megatron_memory_estimator.modules.context import Context
from megatron_memory_estimator.rank.build import context_of
from megatron_memory_estimator.states.newton_schulz import step_bytes, tp_mode
from megatron_memory_estimator.tape.tensor import Dim, Param

MEASURED: list[tuple[tuple[int, int], int, int, dict[str, Any], float]] = [
    ((64, 256), 1, 1, {}, 12.0),
    ((256, 64), 1, 1, {}, 12.0),
    ((300, 100), 1, 1, {}, 12.0),
    ((128, 128), 1, 1, {"muon_nesterov": True}, 16.0),
    ((64, 256), 4, 1, {"muon_tp_mode": "blockwise"}, 12.0),
    ((64, 256), 4, 1, {"muon_tp_mode": "duplicated"}, 64.0),
    ((256, 64), 4, 1, {"muon_tp_mode": "duplicated"}, 56.0),
    ((256, 64), 4, 1, {"muon_tp_mode": "duplicated", "muon_nesterov": True}, 60.0),
    ((128, 128), 1, 4, {"muon_tp_mode": "duplicated"}, 56.0),
    ((64, 256), 4, 1, {"muon_tp_mode": "distributed"}, 20.0),
    ((128, 128), 1, 4, {"muon_tp_mode": "distributed"}, 12.0),
    ((300, 100), 1, 1, {"muon_fp32_matmul_prec": "high"}, 12.0),
    ((128, 128), 1, 1, {"muon_fp32_matmul_prec": "high", "muon_nesterov": True}, 20.0),
    ((64, 256), 4, 1, {"muon_fp32_matmul_prec": "high", "muon_tp_mode": "duplicated"}, 96.0),
    ((256, 64), 4, 1, {"muon_fp32_matmul_prec": "highest", "muon_tp_mode": "duplicated"}, 66.0),
    ((128, 128), 1, 4, {"muon_fp32_matmul_prec": "high", "muon_tp_mode": "duplicated"}, 72.0),
    ((64, 256), 4, 1, {"muon_fp32_matmul_prec": "high", "muon_tp_mode": "distributed"}, 40.0),
    ((128, 128), 1, 4, {"muon_fp32_matmul_prec": "high", "muon_tp_mode": "distributed"}, 16.0),
]
"""Rows and columns of a rank, ranks that share either, settings, bytes."""
SPLIT = [
    (2, 4, 16, 64, 1, "medium", 12.0),
    (4, 4, 32, 128, 1, "medium", 12.0),
    (1, 1, 32, 256, 1, "medium", 8.0),
    (8, 4, 16, 64, 4, "medium", 41 + 1 / 3),
    (4, 4, 16, 64, 4, "medium", 37 + 1 / 3),
    (2, 4, 16, 64, 1, "high", 12.0),
    (8, 4, 16, 64, 4, "high", 49 + 1 / 3),
    (4, 4, 16, 64, 4, "high", 48.0),
]
"""Query groups, heads of each, head dim, columns, tensor-parallel ranks (which duplicate), precision of products, bytes."""


def matrix(rows: int, columns: int, row_ways: int, column_ways: int, name: str = "mlp.linear_fc1.weight") -> Param:
    first = Dim("out", rows * row_ways, ("tp",) if row_ways > 1 else (), row_ways)
    return Param(name, (first, Dim("in", columns * column_ways, ("tp",) if column_ways > 1 else (), column_ways)), "tp")


def context(**settings: Any) -> Context:
    return context_of(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, **settings))


@pytest.mark.parametrize(("shape", "row_ways", "column_ways", "settings", "each"), MEASURED)
def test_a_matrix(
    shape: tuple[int, int], row_ways: int, column_ways: int, settings: dict[str, Any], each: float
) -> None:
    found = step_bytes(context().model, Training(**settings), matrix(*shape, row_ways, column_ways))
    assert found == each * shape[0] * shape[1]


@pytest.mark.parametrize(("groups", "heads", "d", "columns", "ways", "precision", "each"), SPLIT)
def test_query_key_and_value_apart(
    groups: int, heads: int, d: int, columns: int, ways: int, precision: str, each: float
) -> None:
    small = {
        "num_query_groups": groups,
        "num_attention_heads": groups * heads,
        "kv_channels": d,
        "hidden_size": columns,
    }
    model = context(**small).model
    rows = groups * (heads + 2) * d // ways
    mode = Training(muon_tp_mode="duplicated" if ways > 1 else "blockwise", muon_fp32_matmul_prec=precision)
    found = step_bytes(model, mode, matrix(rows, columns, ways, 1, "self_attention.linear_qkv.weight"))
    assert found == pytest.approx(each * rows * columns)


def test_the_largest_matrix_of_the_rank_is_a_tensor_of_the_step() -> None:
    """Qwen3-8B: fc1 of [24,576, 4,096], by a rank of tp 2 a half of it; newer versions gather the whole."""
    given: dict[str, Any] = {"tp": 2, "optimizer": "muon"}
    for version, size in (("0.19", 12 * 12_288 * 4096), ("0.20", 14 * 24_576 * 4096)):
        job = TrainingJob.from_hf("Qwen/Qwen3-8B", 8, megatron_core_version=version, **given)
        states = [s for s in estimate(job).stages[0].rank.states if s.tensor.startswith("Newton-Schulz")]
        assert [(s.tensor, s.nbytes, s.since) for s in states] == [
            ("Newton-Schulz of mlp.linear_fc1.weight", size, "optimizer")
        ]
    assert tp_mode(Training(megatron_core_version="0.19")) == "blockwise"


def test_a_rank_that_owns_none_of_them_has_no_scratch() -> None:
    """28 layers of 4 matrices each over 128 data-parallel ranks: some own none."""
    given: dict[str, Any] = {"optimizer": "muon", "use_distributed_optimizer": True}
    job = TrainingJob.from_hf("Qwen/Qwen3-0.6B", 128, **given, data_parallel_rank=127)
    rank = estimate(job).stages[0].rank
    owns = [item for buffer in rank.buffers for item in buffer.owns if item.group == 0]
    assert bool(owns) is any(s.tensor.startswith("Newton-Schulz") for s in rank.states)
