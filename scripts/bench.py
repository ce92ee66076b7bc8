"""Speed, as ratios measured side by side in one run: cold start, memory, and the estimate itself."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 15
COMMAND = [
    "estimate",
    "Qwen/Qwen3-235B-A22B",
    "--tp",
    "4",
    "--pp",
    "8",
    "--ep",
    "8",
    "--num-gpus",
    "128",
    "--num-layers-in-first-pipeline-stage",
    "11",
    "--num-layers-in-last-pipeline-stage",
    "11",
    "--json",
]


def once(argv: list[str]) -> tuple[float, int]:
    """Wall seconds and peak resident KiB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    _, status, usage = _wait(process)
    assert status == 0, argv
    return time.perf_counter() - start, usage.ru_maxrss


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int, resource.struct_rusage]:
    import os

    pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, usage


def cold_start() -> None:
    """The whole command against an interpreter that does nothing, in turn."""
    tool = str(Path(sys.executable).with_name("megatron-memory"))
    pairs = [(once([sys.executable, "-c", "pass"]), once([tool, *COMMAND])) for _ in range(RUNS + 1)][1:]
    base = statistics.median(a[0] for a, _ in pairs)
    ours = statistics.median(b[0] for _, b in pairs)
    ratio = statistics.median(b[0] / a[0] for a, b in pairs)
    memory = max(b[1] for _, b in pairs) / 1024
    print(f"python -c pass                {base * 1e3:7.1f} ms (median of {RUNS})")
    print(f"megatron-memory estimate      {ours * 1e3:7.1f} ms, {ratio:.2f} times that (at most 10)")
    print(f"peak resident memory          {memory:7.1f} MiB (at most 50)")


def in_process() -> None:
    """The estimate alone, imports done."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.schedule import occupancy

    times = []
    for _ in range(RUNS):
        job = TrainingJob.from_hf(
            "Qwen/Qwen3-235B-A22B", num_gpus=128, tensor_model_parallel_size=4, pipeline_model_parallel_size=8,
            expert_model_parallel_size=8, num_layers_in_first_pipeline_stage=11, num_layers_in_last_pipeline_stage=11,
        )  # fmt: skip
        occupancy.cache_clear()
        start = time.perf_counter()
        result = estimate(job)
        _ = result.peak_stage.peak_allocated_bytes
        times.append(time.perf_counter() - start)
    print(f"estimate() of that job        {statistics.median(times) * 1e3:7.1f} ms (at most 20)")


if __name__ == "__main__":
    cold_start()
    in_process()
