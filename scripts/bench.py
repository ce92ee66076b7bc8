"""Speed, as ratios measured side by side in one run: cold start, memory, the estimate itself, the server, and the planner."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

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


class Run(NamedTuple):
    """Wall and CPU seconds of a process, and its peak resident KiB."""

    wall: float
    cpu: float
    resident: int


def once(argv: list[str], codes: tuple[int, ...] = (0,), **environment: str) -> Run:
    """One process, what it prints thrown away. `codes` are the exit codes that are right."""
    start = time.perf_counter()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdout=quiet, stderr=quiet, env={**os.environ, **environment})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in codes, argv
    return Run(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def installed(folder: Path) -> Path:
    """The programs of a fresh environment with the wheel of this tree and nothing else."""
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(root)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    (wheel,) = folder.glob("*.whl")
    programs = folder / "venv" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(root / "constraints.txt"), str(wheel)], check=True)
    return programs


def cold_start(programs: Path) -> None:
    """The whole command against an interpreter that does nothing, in turn, both of a fresh environment."""
    python, tool = str(programs / "python"), str(programs / "megatron-memory")
    pairs = [(once([python, "-c", "pass"]), once([tool, *COMMAND])) for _ in range(RUNS + 1)][1:]
    base = statistics.median(a.wall for a, _ in pairs)
    ours = statistics.median(b.wall for _, b in pairs)
    ratio = statistics.median(b.wall / a.wall for a, b in pairs)
    memory = max(b.resident for _, b in pairs) / 1024
    print(f"python -c pass                {base * 1e3:7.1f} ms (median of {RUNS})")
    print(f"megatron-memory estimate      {ours * 1e3:7.1f} ms, {ratio:.2f} times that (at most 8)")
    print(f"peak resident memory          {memory:7.1f} MiB (at most 50)")


def in_process() -> None:
    """The estimate alone, imports done."""
    from megatron_memory_estimator import TrainingJob, estimate
    from megatron_memory_estimator.rank.schedule import occupancy

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
    spent = []
    for _ in range(RUNS):
        result = estimate(job)
        start = time.perf_counter()
        result.to_dict()
        spent.append(time.perf_counter() - start)
    print(f"its JSON document             {statistics.median(spent) * 1e3:7.1f} ms (at most 3)")


def plans() -> None:
    """The CPU seconds of whole commands that plan what users ask, each beside its aim; with and without NumPy."""
    argv = [sys.executable, "-m", "megatron_memory_estimator", "plan"]
    for aim, words in PLANS:
        spent = statistics.median(once([*argv, *words], (0, 3)).cpu for _ in range(3))
        print(f"plan {' '.join(words):60} {spent:6.2f} s of CPU (aim {aim:g})")
    for _, words in PLANS[:2]:
        start = [sys.executable, "-c", WITHOUT_NUMPY, "plan", *words]
        pairs = [(once([*argv, *words]).cpu, once(start).cpu) for _ in range(3)]
        ratio = statistics.median(alone / whole for whole, alone in pairs)
        print(f"plan {' '.join(words):60} {ratio:6.2f} times that without NumPy (aim 3)")


def against(checkout: Path) -> None:
    """Whole commands of this tree and of another checkout in turn: the ratio of CPU seconds, pair by pair."""
    trees = (checkout / "src", Path(__file__).parents[1] / "src")
    for tree in trees:
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree)], check=True)
    for words in (COMMAND, *(["plan", *words] for _, words in PLANS)):
        argv = [sys.executable, "-m", "megatron_memory_estimator", *words]
        runs = RUNS if words is COMMAND else 3
        pairs = [[once(argv, (0, 3), PYTHONPATH=str(tree)) for tree in trees] for _ in range(runs + 1)][1:]
        there, here = (statistics.median(pair[at].cpu for pair in pairs) for at in (0, 1))
        ratio = statistics.median(pair[1].cpu / pair[0].cpu for pair in pairs)
        print(f"{' '.join(words[:5]):60} {there:.3f} s there, {here:.3f} s here, ratio {ratio:.3f}")


def served() -> None:
    """The server: how soon it answers, an estimate after a change, and the distribution of many at once."""
    tool = str(Path(sys.executable).with_name("megatron-memory"))
    start = time.perf_counter()
    process = subprocess.Popen([tool, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().split("/ ")[0].rpartition(":")[2])
    try:
        asked(port, 0)
        print(f"megatron-memory serve, from its start to a first answer: {time.perf_counter() - start:.2f} s")
        for at in range(len(MODELS)):
            asked(port, at)
        spent = statistics.median(asked(port, 0) for _ in range(RUNS))
        print(f"an estimate over HTTP         {spent * 1e3:7.1f} ms (at most 50)")
        with ThreadPoolExecutor(AT_ONCE) as threads:
            times = sorted(threads.map(lambda at: asked(port, at), range(AT_ONCE)))
        shares = ", ".join(f"{share} % {times[AT_ONCE * share // 100 - 1]:.2f} s" for share in (10, 50, 90, 99, 100))
        print(f"{AT_ONCE} mixed estimates at once: {shares}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def asked(port: int, at: int) -> float:
    """Seconds of an estimate of one of the models."""
    model, num_gpus, settings = MODELS[at % len(MODELS)]
    body = json.dumps({"model": model, "num_gpus": num_gpus, "settings": settings})
    start = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/api/v1/estimate", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    spent = time.perf_counter() - start
    connection.close()
    assert answer.status == 200 and found["stages"], found
    return spent


AT_ONCE = 200
MODELS = (
    ("Qwen/Qwen3-8B", 8, {"tp": 2}), ("deepseek-ai/DeepSeek-V3", 1024, {"tp": 2, "pp": 16, "ep": 16}),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 16, {"tp": 2, "ep": 8}), ("meta-llama/Llama-3.1-70B", 64, {"tp": 8, "pp": 2}),
    ("Qwen/Qwen3-30B-A3B", 16, {"ep": 8}),
)  # fmt: skip
PLANS: tuple[tuple[float, list[str]], ...] = (
    (0.5, ["Qwen/Qwen3-8B", "--num-gpus", "8", "--gpu", "H100"]),
    (1, ["meta-llama/Meta-Llama-3-70B", "--num-gpus", "512", "--gpu", "H100"]),
    (1, ["Qwen/Qwen3-30B-A3B", "--num-gpus", "16", "--gpu", "H100"]),
    (3, ["openai/gpt-oss-120b", "--min-num-gpus", "--gpu", "H100"]),
    (3, ["deepseek-ai/DeepSeek-V3", "--num-gpus", "2048", "--gpu", "H100"]),
    (5, ["deepseek-ai/DeepSeek-V3", "--min-num-gpus", "--gpu", "H100"]),
    (3, ["deepseek-ai/DeepSeek-V4-Flash", "--num-gpus", "128", "--gpu", "GB200"]),
    (3, ["moonshotai/Kimi-K3", "--num-gpus", "1024", "--gpu", "GB300"]),
    (0.5, ["deepseek-ai/DeepSeek-V3", "--num-gpus", "8", "--gpu", "H100"]),
)
"""What users ask, and how many CPU seconds it may take."""
WITHOUT_NUMPY = (
    "import sys; sys.modules['numpy'] = None; from megatron_memory_estimator.cli import main; main(sys.argv[1:])"
)

if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # one core
    if sys.argv[1:]:
        against(Path(sys.argv[1]).resolve())
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        cold_start(installed(Path(folder)))
    in_process()
    served()
    plans()
