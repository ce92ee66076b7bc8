"""The agent skill: its script, the commands of its document, and those that the earlier skill documents."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_memory_estimator import TrainingJob, estimate

from .helpers import ROOT, records

SKILL = ROOT / "skills" / "megatron-memory-estimator"
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000,
}  # fmt: skip


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A documented command in the skill's folder, with a real file for /path/to/config.json and no network."""
    config = folder / "config.json"
    config.write_text(json.dumps(LLAMA))
    command, _, target = command.replace("/path/to/config.json", str(config)).partition(" > ")
    words = shlex.split(command)
    starts = {"python": [sys.executable], "megatron-memory": [sys.executable, "-m", "megatron_memory_estimator"]}
    done = subprocess.run(
        starts[words[0]] + words[1:], cwd=SKILL, capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if target:
        json.loads(done.stdout)
    return done


def documented() -> list[str]:
    """Every command in the skill's code blocks."""
    found = []
    for page in (SKILL / "SKILL.md", *(SKILL / "references").glob("*.md")):
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL):
            joined = block.replace("\\\n", " ")
            found += [
                " ".join(line.split()) for line in joined.splitlines() if line.strip() and not line.startswith("#")
            ]
    return found


@pytest.mark.parametrize("command", documented())
def test_commands_of_the_skill(command: str, tmp_path: Path) -> None:
    done = run(command, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "GiB" in done.stdout or "MiB" in done.stdout or '"total_gb"' in done.stdout


@pytest.mark.parametrize("record", records("skill_commands.json"), ids=lambda r: str(r["command"])[35:])
def test_commands_of_the_earlier_skill(record: dict[str, Any], tmp_path: Path) -> None:
    done = run(record["command"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    if "--json" in record["command"]:
        assert json.loads(done.stdout)["parallelism"] == {"tp": 4, "pp": 4, "ep": 8, "cp": 1}
    else:
        assert "Peak Memory per GPU" in done.stdout


def test_there_are_eighteen_earlier_commands() -> None:
    assert len(records("skill_commands.json")) == 18
    failed = [record for record in records("skill_commands.json") if record["original"].startswith("exit 1")]
    assert len(failed) == 12


def test_the_skill_says_what_the_tools_are() -> None:
    import anyio

    from megatron_memory_estimator.device.verdict import VERDICTS
    from megatron_memory_estimator.mcp_server import server

    page, main = (SKILL / "references" / "mcp.md").read_text(), (SKILL / "SKILL.md").read_text()
    tools = {tool.name: set(tool.input_schema["properties"]) for tool in anyio.run(server().list_tools)}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(tools)
    assert {"model", "text", "num_gpus", "settings", "detail"} <= tools["estimate"] & tools[
        "plan"
    ] and "fewest_gpus" in tools["plan"]
    assert [word for word in VERDICTS if f"| {word} |" not in main] == []
    (asked,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert set(json.loads(asked)) <= tools["estimate"]


def script(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/estimate_from_hf.py", *words], cwd=SKILL, capture_output=True, text=True, check=False
    )


def test_json_has_the_earlier_keys_and_the_largest_stage() -> None:
    done = script("deepseek-ai/DeepSeek-V3", "--tp", "4", "--pp", "4", "--ep", "8", "--num-gpus", "128", "--json")
    found = json.loads(done.stdout)
    assert set(found) == {"model_type", "parallelism", "training", "reports", "peak", "estimate"}
    assert found["training"] == {"micro_batch_size": 1, "seq_length": 4096, "num_gpus": 128}
    keys = {"pp_rank", "parameters_b", "activation_b", "weight_grad_gb", "weight_grad_optim_gb", "activation_gb",
            "total_gb", "model_breakdown", "details"}  # fmt: skip
    assert [set(report) for report in found["reports"]] == [keys] * 4
    for report in found["reports"]:
        assert report["weight_grad_optim_gb"] + report["activation_gb"] == pytest.approx(report["total_gb"], rel=1e-12)
        assert "\x1b" not in report["model_breakdown"]
    top = max(report["total_gb"] for report in found["reports"])
    assert found["peak"]["total_gb"] == top == found["estimate"]["peak"]["allocated_bytes"] / 2**30


def test_decides_and_says() -> None:
    assert "num_gpus not given: 8" in script("Qwen/Qwen3-8B", "--tp", "2").stdout
    assert "num_gpus not given: 16" in script("Qwen/Qwen3-8B", "--tp", "4", "--pp", "4").stdout
    text = script("deepseek-ai/DeepSeek-V3", "--tp", "4", "--pp", "4", "--ep", "8", "--num-gpus", "128").stdout
    assert re.search(r"assumed: .*61.* layers|assumed: .*split", text)
    assert re.search(r"Does not fit on: .*A100-80GB", text)
    done = script("deepseek-ai/DeepSeek-V3", "--pp", "4", "--num-gpus", "128", "--strict")
    assert (done.returncode, done.stdout) == (2, "")


def test_options_are_real() -> None:
    base = TrainingJob.from_hf("Qwen/Qwen3-8B", 16, pipeline_model_parallel_size=4)
    words = ["Qwen/Qwen3-8B", "--pp", "4", "--num-gpus", "16", "--json"]

    def peaks(*more: str) -> list[int]:
        stages = json.loads(script(*words, *more).stdout)["estimate"]["stages"]
        return [stage["peak_allocated_bytes"] for stage in stages]

    plain = peaks()
    assert plain == [stage.peak_allocated_bytes for stage in estimate(base).stages]
    assert peaks("--vpp", "3")[0] > plain[0]
    assert peaks("--recompute-granularity", "full")[0] < plain[0]
    assert (
        peaks("--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "2")[0]
        < plain[0]
    )
    assert peaks("--no-distributed-optimizer")[0] > plain[0]
    assert peaks("--recompute-granularity", "selective", "--recompute-modules", "mlp,core_attn")[0] < plain[0]


def test_custom_config() -> None:
    done = script("--custom-config", json.dumps(LLAMA), "--tp", "2", "--json")
    found = json.loads(done.stdout)
    assert found["model_type"] == "llama" and found["estimate"]["model"]["num_parameters"]["total"] == 6738415616


WRONG = [
    (["deepseek-ai/DeepSeek-V3", "--tp", "4", "--pp", "4", "--ep", "64", "--num-gpus", "128"], "expert"),
    (["Qwen/Qwen3-8B", "--tpp", "2"], "did you mean --tp?"),
    (["Qwen/Qwen3-8B", "--tp", "x"], "invalid int value"),
    ([], "give either a model"),
    (["Qwen/Qwen3-8B", "--custom-config", "{}"], "not both"),
    (["--custom-config", "{"], "--custom-config is not valid JSON"),
    (["Qwen/Qwen3-8B", "--recompute-method", "block"], "needs --recompute-granularity full"),
    (["Qwen/Qwen3-8B", "--num-gpus", "0"], "num_gpus"),
    (["Qwen/Qwen3-8B", "--strict"], "num_gpus"),
    (["Qwen/Qwen3-8B", "--recompute-granularity", "selective", "--recompute-modules", ""], "at least one module"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=lambda x: str(x)[:40])
def test_mistakes(words: list[str], sentence: str) -> None:
    done = script(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sentence in done.stderr


def test_a_batch_that_eight_gpus_do_not_divide() -> None:
    done = script("Qwen/Qwen3-8B", "--global-batch-size", "4")
    assert done.returncode == 0 and "num_gpus not given" in done.stdout


def test_the_script_alone_says_what_it_needs(tmp_path: Path) -> None:
    alone = tmp_path / "estimate.py"
    alone.write_text((SKILL / "scripts" / "estimate_from_hf.py").read_text())
    done = subprocess.run([sys.executable, "-I", "-S", str(alone), "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and "install the package" in done.stderr


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        words = [sys.executable, "scripts/estimate_from_hf.py", "Qwen/Qwen3-8B", "--json"]
        done = subprocess.run(words, cwd=SKILL, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: cannot write to standard output")
