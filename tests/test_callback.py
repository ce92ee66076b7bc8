"""The comparison from inside a training loop, with a stand-in for torch's memory functions; CPU torch is in tests/trace."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_memory_estimator import ConfigError, Estimate, TrainingJob, estimate
from megatron_memory_estimator.callback import compare_at_step, explained
from megatron_memory_estimator.job.hardware import GIB
from megatron_memory_estimator.validation.replay import replay
from megatron_memory_estimator.validation.runs import read_runs

from .helpers import ROOT, small_job


class Torch:
    """torch as rank `rank` of several sees it: what each has allocated, and its peak."""

    def __init__(self, figures: list[tuple[int, int]], rank: int = 0, *, gpu: bool = True) -> None:
        self.figures, self.rank = figures, rank
        self.cuda = SimpleNamespace(
            is_available=lambda: gpu,
            memory_allocated=lambda: self.figures[self.rank][0],
            max_memory_allocated=lambda: self.figures[self.rank][1],
        )
        self.distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: len(self.figures) > 1,
            get_rank=lambda: self.rank,
            get_world_size=lambda: len(self.figures),
            all_gather_object=self._gather,
        )

    def _gather(self, found: list[Any], own: Any) -> None:
        assert own == (self.rank, *self.figures[self.rank])
        found[:] = [(rank, *figures) for rank, figures in enumerate(self.figures)]


def figures(result: Estimate, *, first: bool = False, more: int = 0) -> list[tuple[int, int]]:
    """What torch would count on every rank, were the estimate right to so many bytes."""
    each = result.job.layout.world_size // len(result.stages)
    return [
        (
            stage.steady_allocated_bytes,
            (stage.first_step_peak_allocated_bytes if first else stage.peak_allocated_bytes) + more,
        )
        for stage in result.stages
        for _ in range(each)
    ]


def test_two_steps_print_every_stage_and_become_a_measured_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = estimate(small_job(4, pipeline_model_parallel_size=2, global_batch_size=8))
    out, record = io.StringIO(), tmp_path / "runs.jsonl"
    after_step = compare_at_step(result, record=record, stream=out)
    for first in (True, False):
        monkeypatch.setitem(sys.modules, "torch", Torch(figures(result, first=first)))
        after_step(1 if first else 2)
        after_step(3)
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"memory after step {step}, stage {stage}, rank {2 * stage}" for step in (1, 2) for stage in (0, 1)
    ]
    assert all(line.count("(+0.00 %)") == 2 for line in lines)
    assert f"peak {result.stages[0].first_step_peak_allocated_bytes / GIB:.3f} GiB" in lines[0]
    last, every = map(replay, read_runs(str(record)))
    for pair in (last.steady, last.peak, last.first_step, every.peak):
        assert pair is not None and pair.measured == pair.estimated


def test_runs_that_follow_have_ids_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, result = tmp_path / "runs.jsonl", estimate(small_job())
    monkeypatch.setitem(sys.modules, "torch", Torch(figures(result)))
    for _ in range(2):
        after_step = compare_at_step(result, record=record, stream=io.StringIO())
        after_step(1)
        after_step(2)
    assert [run.rank for run in read_runs(str(record))] == ["last", "last"]


def test_a_difference_names_the_tensors_that_are_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the bytes of one more copy of the fp32 main parameters: they are among the three."""
    result = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, tp=2, gpu="H100"))
    (state,) = {row.nbytes for row in result.stages[0].rows if row.name.startswith("main_param")}
    out = io.StringIO()
    after_step = compare_at_step(result, record=None, stream=out)
    monkeypatch.setitem(sys.modules, "torch", Torch(figures(result, more=state)))
    after_step(2)
    _, why = out.getvalue().splitlines()
    assert why.startswith(f"  peak: {state / GIB:.3f} GiB more than estimated; nearest in size: ")
    assert why.count(" GiB)") == 3 and f"main_param dense chunk 0 ({state / GIB:.3f} GiB)" in why
    assert explained(result.stages[0].rows, -state, 2 * state).startswith(
        f"{state / GIB:.3f} GiB less than estimated; "
    )
    assert not explained(result.stages[0].rows, 2**20, 2**30), "too small to be worth a name"


def test_ranks_that_are_not_the_first_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = estimate(small_job(2, pipeline_model_parallel_size=2, global_batch_size=8))
    monkeypatch.setitem(sys.modules, "torch", Torch(figures(result), rank=1))
    out = io.StringIO()
    compare_at_step(result, steps=(2,), record=tmp_path / "runs.jsonl", stream=out)(2)
    assert not out.getvalue() and not list(tmp_path.iterdir())


def test_what_cannot_be_compared_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = estimate(small_job(2, pipeline_model_parallel_size=2, global_batch_size=8))
    without: Torch | None = None
    for torch, said in (
        (without, "this process has no torch or no GPU, nothing was measured"),
        (Torch(figures(result), gpu=False), "this process has no torch or no GPU, nothing was measured"),
        (Torch(figures(result) * 2), "4 ranks run, the estimate is of 2 GPUs, nothing is compared"),
    ):
        monkeypatch.setitem(sys.modules, "torch", torch)
        out = io.StringIO()
        compare_at_step(result, record=tmp_path / "runs.jsonl", stream=out)(2)
        assert out.getvalue() == f"memory after step 2: {said}\n"
    assert not list(tmp_path.iterdir())


def test_a_run_is_a_job_a_file_or_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused one is refused before the loop; torch is not imported for any of them."""
    monkeypatch.setitem(sys.modules, "torch", None)
    script = ROOT / "tests" / "launch_scripts" / "llama8b_04_defaults_arithmetic.sh"
    words = ["--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "64",
             "--max-position-embeddings", "64", "--micro-batch-size", "1", "--vocab-size", "128"]  # fmt: skip
    mapping = {word.removeprefix("--"): int(value) for word, value in zip(words[::2], words[1::2], strict=True)}
    for run in (small_job(), estimate(small_job()), script, str(script), words, mapping):
        compare_at_step(run)(7)
    with pytest.raises(ConfigError, match="no such file"):
        compare_at_step("no_such.sh")


def test_a_line_is_strict_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = estimate(TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 8, ep=8, gpu="H200"))
    monkeypatch.setitem(sys.modules, "torch", Torch(figures(result)))
    record = tmp_path / "runs.jsonl"
    compare_at_step(result, steps=(2,), record=record, stream=io.StringIO())(2)
    last, every = map(json.loads, record.read_text().splitlines())
    assert every["rank"] == "all" and len(every["measured"]["per_rank_max_allocated_bytes"]) == 8
    assert set(last["measured"]) == {"allocated_bytes", "max_allocated_bytes"}, "step 1 was not asked for"
    for found in map(replay, read_runs(str(record))):
        assert found.peak is not None and found.peak.measured == found.peak.estimated
