"""The tools answer the same without NumPy and without what only the command line needs: as in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator.service.answers import TOOLS, answered
from megatron_memory_estimator.service.schema import TOOLS as STATED

from .helpers import ROOT

DEEPSEEK = {
    "model": "deepseek-ai/DeepSeek-V3",
    "num_gpus": 1024,
    "settings": {"pp": 16, "ep": 64, "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1},
}
HYBRID = {"model": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "num_gpus": 64, "settings": {"ep": 8}}
QWEN = {"model": "Qwen/Qwen3-8B", "num_gpus": 16}
SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --vocab-size 50257 --overlap-grad-reduce "
    "--use-distributed-optimizer --tensor-model-parallel-size 2"
)
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *((tool, run) for tool in ("estimate", "explain", "advise") for run in (DEEPSEEK, HYBRID, QWEN)),
    ("estimate", {"text": SCRIPT}),
    ("estimate", {"text": "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 128\nmax_position_embeddings: 128\n"
                          "micro_batch_size: 1\nvocab_size: 1000\n", "num_gpus": 2}),
    ("compare", {"models": ["Qwen/Qwen3-8B"], "layouts": [{"tp": 2}, {"tp": 4}], "num_gpus": 8}),
    ("models", {"model": "qwen3"}),
    ("export", {**QWEN, "what": "report"}),
    ("megatron_config", {"model": "Qwen/Qwen3-8B"}),
    ("mbridge", {"hf_model_path": "Qwen/Qwen3-8B", "num_gpus": 8, "tp": 2}),
    *((name, tool.example) for name, tool in STATED.items() if tool.own_path and name != "plan"),
    ("plan", {**QWEN, "axes": {"tp": "1,2", "cp": "1", "pp": "1,2", "recompute": "none,full", "micro_batch_size": "1"}}),
]  # fmt: skip
BLOCKED = ("numpy", "rich", "click", "huggingface_hub", "mcp", "pydantic", "matplotlib", "pandas")
ALONE = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from megatron_memory_estimator.service.answers import answered
print(json.dumps([answered(request) for request in json.load(sys.stdin)]))
"""

COMMAND = "import sys; sys.modules['numpy'] = None; from megatron_memory_estimator.cli import main; main(sys.argv[1:])"


def requests() -> list[dict[str, Any]]:
    """Every tool, its whole document and its summary."""
    return [
        {"tool": tool, "arguments": {**arguments, **detail}, "folder": None, "seconds": 600, "hub": False}
        for tool, arguments in REQUESTS
        for detail in (({"detail": "full"}, {"detail": "summary"}) if STATED[tool].own_path else ({},))
    ]


def test_every_tool_answers_the_same_without_numpy() -> None:
    asked = requests()
    assert {request["tool"] for request in asked} == set(TOOLS)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, json.dumps(BLOCKED)], input=json.dumps(asked), capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    alone = json.loads(done.stdout)
    assert len(alone) == len(asked) > len(REQUESTS)
    for request, found in zip(asked, alone, strict=True):
        here = json.loads(json.dumps(answered(request)))
        assert "answer" in here, here
        assert found == here, request


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (
                "plan",
                "deepseek-ai/DeepSeek-V3",
                "--num-gpus",
                "2048",
                "--vpp",
                "1-16",
                "--recompute",
                "none,core_attn,mlp,moe,full",
                "--micro-batch-size",
                "1,2,4",
                "--cp",
                "1,2,4",
                "--ep",
                "1-256",
            ),
            "without NumPy a space of at most 80,000 legal layouts is searched",
        ),
        (
            ("plan", "Qwen/Qwen3-8B", "--num-gpus", "8", "--calibrate", "RUNS"),
            "calibration to measured steps needs NumPy",
        ),
    ],
)
def test_the_command_line_says_what_installs_numpy(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    measured = {"id": "one", "model": "Qwen/Qwen3-8B", "num_gpus": 8, "gpu": "H100", "tokens_per_s_gpu": 9000.0}
    runs.write_text(json.dumps(measured) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *(str(runs) if word == "RUNS" else word for word in words)], capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.endswith("; NumPy: pip install 'megatron-memory-estimator[plan]'\n")
