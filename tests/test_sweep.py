"""Many jobs planned here, by threads, by processes and by Dask: the same rows, with progress."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, plan, sweep

from .helpers import ROOT

MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")
AXES = {"tp": "1,2", "cp": "1", "pp": "1", "micro_batch_size": "1"}
JOBS = {
    f"{model} on {gpus} {gpu}": TrainingJob.from_hf(model, gpus, gpu=gpu, global_batch_size=64)
    for model in MODELS
    for gpu in ("H100", "B200")
    for gpus in (4, 8)
}


@contextmanager
def dask() -> Iterator[Executor]:
    distributed: Any = importlib.import_module("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
    client = distributed.Client(cluster)
    with cluster, client, client.get_executor() as executor:
        yield executor


@contextmanager
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


@contextmanager
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("made", [threads, processes, dask])
def test_rows_are_the_same_wherever_they_are_found(made: Callable[[], Iterator[Executor]]) -> None:
    told: list[tuple[int, int]] = []
    with made() as executor:  # type: ignore[attr-defined]
        rows = sweep(JOBS, AXES, executor=executor, progress=lambda done, of: told.append((done, of)), top=2)
    assert rows == sweep(JOBS, AXES, top=2)
    assert told == [(number, len(JOBS)) for number in range(1, len(JOBS) + 1)]


def test_the_example_names_every_job() -> None:
    spec = importlib.util.spec_from_file_location("sweep_on_dask", ROOT / "examples" / "sweep_on_dask.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert len(script.MODELS) * len(script.GPUS) * len(script.SIZES) == 1200
    jobs = script.jobs(["Qwen/Qwen3-0.6B"], ["H100"], [8])
    assert [row["job"] for row in sweep(jobs, AXES, top=1)] == ["Qwen/Qwen3-0.6B on 8 H100"]


def test_rows_are_those_of_plan_in_the_order_of_jobs() -> None:
    rows = sweep(JOBS, AXES, top=2)
    assert list(dict.fromkeys(row["job"] for row in rows)) == list(JOBS)
    name, job = next(iter(JOBS.items()))
    own = [row for row in rows if row["job"] == name]
    assert own == [{"job": name, "error": "", **row} for row in plan(job, AXES, top=2).table()]


def test_a_job_without_a_plan_has_a_row_that_says_why() -> None:
    jobs = [
        TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100"),
        TrainingJob.from_hf("Qwen/Qwen3-30B-A3B", 1, gpu="H100"),
    ]
    refused, none = sweep(jobs, {"tp": "3"}), sweep(jobs[1:], {"tp": "1"})
    assert [row["job"] for row in refused] == ["0", "1"] and all("no layout" in row["error"] for row in refused)
    assert none == [{"job": "0", "error": "no layout fits"}]
