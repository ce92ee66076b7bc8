"""Write what the tool answers, one file per question: for two commits side by side, `python scripts/outputs.py FOLDER` and `diff -r`.

Asked are measured runs, published recipes and rates, bundled models in several layouts, random jobs, and the commands that print
JSON. `memory/` holds estimates and every row of `explain`, `seconds/` step times, `commands/` plans, advice and comparisons. Only
what users can reach is used, so that the same questions can be asked of any commit. Takes minutes; `--part I/N` writes a share.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "tests" / "facts"
RUNS = ROOT / "src" / "megatron_memory_estimator" / "validation" / "runs.jsonl"
TE = {"transformer_engine_version": "2.17"}
RANDOM_JOBS = 400
LAYOUTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (8, {}),
    (64, {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2}),
    (64, {"tensor_model_parallel_size": 2, "context_parallel_size": 2, "recompute_granularity": "selective"}),
    (256, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4, "expert_model_parallel_size": 8}),
    (256, {"pipeline_model_parallel_size": 2, "recompute_granularity": "full", "recompute_method": "uniform",
           "recompute_num_layers": 1, "global_batch_size": 1024}),
)  # fmt: skip
COMMANDS = (
    "plan Qwen/Qwen3-8B --num-gpus 64 --json",
    "plan deepseek-ai/DeepSeek-V3 --num-gpus 2048 --gpu H100 --json",
    "plan Qwen/Qwen3-30B-A3B --num-gpus 32,64 --gpu B200 --complete --json",
    "plan meta-llama/Meta-Llama-3-70B --num-gpus 64 --precision bf16,tensorwise --json",
    "plan Qwen/Qwen3-Next-80B-A3B-Instruct --num-gpus 64 --json",
    "plan deepseek-ai/DeepSeek-V3.2 --num-gpus 512 --gpu H200 --json",
    "plan nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --num-gpus 32 --json",
    "advise Qwen/Qwen3-235B-A22B --num-gpus 128 --tp 4 --pp 8 --ep 8 --num-layers-in-first-pipeline-stage 11 "
    "--num-layers-in-last-pipeline-stage 11 --json",
    "advise meta-llama/Meta-Llama-3-8B --num-gpus 8 --json",
    "advise deepseek-ai/DeepSeek-V3 --num-gpus 256 --tp 2 --pp 8 --ep 32 --num-layers-in-last-pipeline-stage 5 --json",
    "estimate Qwen/Qwen3-8B --num-gpus 8",
    "explain Qwen/Qwen3-8B --num-gpus 8 --tp 2",
    "compare Qwen/Qwen3-8B --num-gpus 8 --layout tp=2 --layout tp=4 --json",
    "validate --json",
    "models --json",
    "gpus --json",
)

Question = tuple[str, Callable[[], TrainingJob]]


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file."""
    yield from (json.loads(line) for line in path.read_text().splitlines())


def bridge(one: dict[str, Any]) -> Callable[[], TrainingJob]:
    """The job of a published Bridge config."""
    return lambda: TrainingJob.from_bridge(
        one["bridge"], one["num_gpus"], gpu=one["gpu"], env=one.get("env", {}), **{**TE, **one.get("settings", {})}
    )


def arguments(one: dict[str, Any]) -> Callable[[], TrainingJob]:
    """The job of measured Megatron-LM arguments."""
    return lambda: TrainingJob.from_megatron_args(
        one["args"], one["num_gpus"], gpu=one["gpu"], env=one.get("env", {}), **one.get("settings", {})
    )


def questions() -> Iterator[Question]:
    """Every job that is asked about, by name."""
    for one in records(RUNS):
        yield f"run {one['id']}", bridge(one) if one.get("bridge") else arguments(one)
    for name in ("recipes", "throughput"):
        for number, one in enumerate(records(FACTS / f"{name}.jsonl")):
            yield f"{name} {number}", bridge(one)
    from megatron_memory_estimator.inputs.catalog import entries

    for model in entries():
        for number, (gpus, settings) in enumerate(LAYOUTS):
            yield f"model {model} {number}", lambda m=model, n=gpus, s=settings: TrainingJob.from_hf(m, n, **s)  # type: ignore[misc]
    sys.path.insert(0, str(ROOT))
    from tests.random_jobs import random_job

    for seed in range(RANDOM_JOBS):
        yield f"random {seed}", random_job(Random(seed)).job


def plain(value: Any) -> Any:
    """Tuples and dataclasses as JSON."""
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else list(value)


def memory_and_seconds(question: Callable[[], TrainingJob]) -> tuple[Any, Any]:
    """The estimate with every row of every stage, and its step time; or why it is refused."""
    from megatron_memory_estimator.throughput import throughput

    try:
        found = estimate(question())
        rows = {f"{s.pp_rank} {at}": s.at(at) for s in found.stages for at in ("peak", "steady")}
        return [found.to_dict(), rows], throughput(found)
    except EstimatorError as error:
        return str(error), None


def printed(command: str) -> str:
    """What a command prints, without what it took."""
    from megatron_memory_estimator.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command.split())
        except SystemExit as stop:
            print("exit", stop.code)
    try:
        found = json.loads(out.getvalue())
        if isinstance(found, dict):
            found.pop("seconds", None)
        return json.dumps(found, indent=1)
    except ValueError:
        return out.getvalue() + err.getvalue()


def main() -> None:
    """Write every answer of a share."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--part", default="1/1")
    given = options.parse_args()
    share, shares = map(int, given.part.split("/"))

    def write(kind: str, name: str, text: str) -> None:
        path = given.folder / kind / (name.replace("/", "_").replace(" ", "_") + ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    for number, (name, question) in enumerate(questions()):
        if number % shares == share - 1:
            memory, seconds = memory_and_seconds(question)
            write("memory", name, json.dumps(memory, default=plain, indent=0))
            write("seconds", name, json.dumps(seconds, default=plain, indent=0))
    for number, command in enumerate(COMMANDS):
        if number % shares == share - 1:
            write("commands", command, printed(command))


if __name__ == "__main__":
    main()
