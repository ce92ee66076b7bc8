"""The table of stages at every width: no number is cut, and every row adds up to its peak."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.report.stage_table import folded, stage_table

RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "deepseek-ai/DeepSeek-V3": (256, {"tp": 2, "pp": 16, "ep": 16, "num_layers_in_last_pipeline_stage": 1}),
    "meta-llama/Meta-Llama-3-70B": (64, {"tp": 8, "pp": 8}),
    "Qwen/Qwen3-8B": (8, {"tp": 1, "micro_batch_size": 64, "seq_length": 32768}),
}


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
@pytest.mark.parametrize("name", RUNS)
def test_no_number_of_a_stage_is_cut(name: str, width: int) -> None:
    gpus, settings = RUNS[name]
    stages = estimate(TrainingJob.from_hf(name, gpus, **settings)).stages
    page = io.StringIO()
    console = Console(file=page, width=width)
    table = stage_table(stages, console)
    console.print(table)
    text = page.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    names = [str(column.header) for column in table.columns]
    parts = [
        index
        for index, name in enumerate(names)
        if name not in ("stage", "layers", "params (B)", "steady", "peak", "when")
    ]
    columns = [list(column.cells) for column in table.columns]
    for row in zip(*columns, strict=True):
        peak = float(str(row[names.index("peak")]))
        assert sum(float(str(row[index])) for index in parts) == pytest.approx(peak, abs=0.005 * (len(parts) + 1))


def test_equal_neighbours_are_one_row() -> None:
    rows = [["0", "a"], ["1", "b"], ["2", "b"], ["3", "b"], ["4", "a"]]
    assert list(folded(rows)) == [["0", "a"], ["1-3", "b"], ["4", "a"]]
