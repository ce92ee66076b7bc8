"""Commands to copy, by verb; a test runs each of them. `run.sh`, `train.log` and `config.json` stand for files of one's own."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "estimate": (
        "estimate Qwen/Qwen3-8B --num-gpus 8 --tp 2 --gpu H100",
        "estimate DeepSeek-V3 --num-gpus 128 --tp 4 --pp 4 --ep 8",
        "estimate config.json --tp 4 --recompute-granularity full",
        "estimate run.sh --set NNODES=2",
    ),
    "check": (
        "check Qwen/Qwen3-8B --num-gpus 8 --tp 2 --gpu H100",
        "check run.sh --gpu H100 --json",
    ),
    "plan": (
        "plan Qwen/Qwen3-8B --num-gpus 8 --gpu H100",
        "plan Qwen/Qwen3-8B --gpu H100 --min-num-gpus --tp 1,2,4",
        "plan Qwen3-30B-A3B --num-gpus 16 --ep 8,16 --recompute full",
        "plan run.sh --num-gpus 16 --show 2 --launch yaml",
    ),
    "advise": (
        "advise Qwen/Qwen3-8B --num-gpus 8 --gpu A100-40GB",
        "advise Qwen3-32B --num-gpus 16 --tp 8 --global-batch-size 256",
        "advise run.sh --head-room 5%",
    ),
    "explain": (
        "explain Qwen/Qwen3-8B --num-gpus 8 --tp 2",
        "explain Qwen3-8B --num-gpus 8 --pp 4 --stage 0 --at steady",
    ),
    "timeline": (
        "timeline Qwen/Qwen3-8B --num-gpus 8 --pp 4 --stage 0",
        "timeline Qwen3-30B-A3B --num-gpus 8 --ep 8 --axis events",
        "timeline run.sh --format csv",
    ),
    "compare": (
        "compare Qwen3-8B --num-gpus 8 --layout tp=2 --layout pp=2",
        "compare Qwen/Qwen3-8B Qwen/Qwen3-14B --num-gpus 8",
        "compare run.sh --layout pp=2 --layout tp=2 --format csv",
    ),
    "models": (
        "models nemotron",
        "models Qwen/Qwen3-8B",
        "models --format csv",
    ),
    "validate": (
        "validate",
        "validate --log train.log run.sh",
    ),
    "record": (
        "record --log train.log run.sh",
        "record --snapshot snapshot.pickle --rank 0 run.sh",
    ),
    "why": (
        "why --measured 85.3GiB Qwen/Qwen3-8B --num-gpus 8 --tp 2",
        "why --measured 71204MiB --kind nvidia-smi run.sh",
    ),
    "snapshot": (
        "snapshot snapshot.pickle",
        "snapshot snapshot.pickle run.sh",
        "snapshot snapshot.pickle --at end --top 30",
        "snapshot snapshot.pickle --json",
    ),
    "serve": (
        "serve --open",
        "serve --port 0 --allow-hub",
    ),
    "site": ("site --out page", "site --out page --pyodide ~/pyodide-314.0.7.tgz"),
    "mcp": ("mcp --folder ~/configs",),
    "gpus": (
        "gpus",
        "gpus --format csv",
    ),
    "help": (
        "help",
        "help plan",
    ),
}  # fmt: skip

START = tuple(EXAMPLES[verb][0] for verb in ("estimate", "advise", "plan", "explain", "compare", "models"))
"""An example for each of the questions that people come with."""
