"""`check`: its exit codes, its line, baselines, and the examples in front of sbatch and in a pull request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.device.terms import Range
from megatron_memory_estimator.estimator import Stage
from megatron_memory_estimator.job.hardware import GIB
from megatron_memory_estimator.report.check import DOES_NOT_FIT, FITS, TAKES_MORE, UNSURE
from megatron_memory_estimator.report.check import checked as checked_run

from .helpers import ROOT

DENSE = ("Qwen/Qwen3-8B", "--num-gpus", "8", "--tp", "2")


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code of a check, and what it prints."""
    code: object = 0
    try:
        main(["check", *words])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert type(code) is int
    return code, out or err


@pytest.mark.parametrize(
    ("words", "code", "starts"),
    [
        ((*DENSE, "--gpu", "H100"), FITS, "Trains on 8 H100-80GB, at least "),
        ((*DENSE, "--gpu", "A100-40GB"), DOES_NOT_FIT, "Cannot train on 8 A100-40GB, at least "),
        (
            ("meta-llama/Llama-3.1-8B", "--num-gpus", "8", "--gpu", "H100"),
            UNSURE,
            "Might not train on 8 H100-80GB, up to ",
        ),
        ((*DENSE, "--num-gpus", "3"), 2, "error: num_gpus=3 is not divisible"),
    ],
)
def test_one_line_and_one_code(
    words: tuple[str, ...], code: int, starts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = checked(capsys, *words)
    assert (found, text.count("\n")) == (code, 1)
    assert text.startswith(starts)


def test_a_run_that_trains_and_cannot_load_is_not_sure(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("Qwen/Qwen3-8B", "--num-gpus", "8", "--tp", "8", "--gpu", "RTX-4090", "--no-use-distributed-optimizer")
    few = ("--seq-length", "512", "--recompute-granularity", "full")
    code, text = checked(capsys, *words, *few)
    document = json.loads(checked(capsys, *words, *few, "--json")[1])
    assert code == document["exit_code"] == UNSURE
    assert document["verdict"] == "does not fit" and text.startswith("Trains on 8 RTX-4090-24GB, at least ")
    assert "Cannot resume with optimizer state, at least " in text and "; with --no-load-optim " in text
    assert checked(capsys, *words, *few, "--phases", "training")[0] == FITS


@pytest.mark.parametrize(("training", "code"), [(20, UNSURE), (85, DOES_NOT_FIT)])
def test_one_that_surely_cannot_load(training: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loading alone is too much the run trains from its start; where training is too, it does not."""
    found = estimate(TrainingJob.from_hf("Qwen/Qwen3-8B", 8, gpu="H100"))
    ranges = {"training": Range((training - 1) * GIB, training * GIB), "load": Range(90 * GIB, 95 * GIB)}
    monkeypatch.setattr(Stage, "phase_ranges", property(lambda stage: ranges))
    assert found.verdict().word == "does not fit"
    answer = checked_run(found)
    assert answer.code == code
    assert answer.reason.startswith("Trains on 8 H100-80GB, at least 59.1 GiB left: needs 19.0 to 20.0") == (
        code == UNSURE
    )
    assert ("loading takes 90.0 to 95.0 GiB on every GPU." in answer.reason) == (code == UNSURE)


def test_what_grew_is_held_against_a_baseline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = json.loads(checked(capsys, *DENSE, "--json")[1])
    for command in ("check", "estimate"):
        main([command, *DENSE, "--json"])
        (tmp_path / f"{command}.json").write_text(capsys.readouterr().out)
        held = ("--max-increase", str(tmp_path / f"{command}.json"))
        code, text = checked(capsys, *DENSE, *held)
        assert code == FITS and " Stage 0's peak is unchanged (" in text
        code, text = checked(capsys, *DENSE, "--micro-batch-size", "2", *held)
        now = json.loads(checked(capsys, *DENSE, "--micro-batch-size", "2", *held, "--json")[1])
        share = now["stages"][0]["peak_allocated_bytes"] / before["stages"][0]["peak_allocated_bytes"] - 1
        assert code == TAKES_MORE and f"({share:.2%}) above" in text
        assert now["increase"]["share"] == pytest.approx(share)
        just = f"{share * 100 + 0.01}%"
        assert checked(capsys, *DENSE, "--micro-batch-size", "2", *held, "--tolerance", just)[0] == FITS
        assert checked(capsys, *DENSE, "--recompute-granularity", "full", *held)[0] == FITS
        assert checked(capsys, *DENSE, "--pp", "2", *held)[0] == FITS, (
            "the highest peak of two stages against that of one"
        )
    assert checked(capsys, *DENSE, "--micro-batch-size", "2", "--gpu", "A100-40GB", *held)[0] == DOES_NOT_FIT


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "megatron-memory-check/1", "stages": []}', "[" * 5000,
     '{"schema": "megatron-memory-check/1", "stages": [{"pp_rank": 0, "peak_allocated_bytes": 0}]}',
     '{"schema": "megatron-memory-check/1", "stages": [{"pp_rank": 0, "peak_allocated_bytes": true}]}',
     '{"schema": "megatron-memory-check/1", "stages": 5}', '{"schema": "megatron-memory-plan/1", "stages": []}'],
)  # fmt: skip
def test_a_file_that_is_no_baseline(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)
    code, said = checked(capsys, *DENSE, "--max-increase", str(tmp_path / "b.json"))
    assert code == 2 and "is not the output of check --json or estimate --json" in said and said.count("\n") == 1


@pytest.mark.parametrize("tolerance", ["x", "-1%", "nan", "inf", "1000%"])
def test_a_tolerance_is_a_percentage(tolerance: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(capsys, *DENSE, "--tolerance", tolerance)
    assert code == 2 and "must be a percentage such as 1%" in said


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, the command on the path, and an sbatch that says what it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (
        ("sbatch", 'echo "queued: $*"'),
        ("pip", "true"),
        ("megatron-memory", f'exec {sys.executable} -m megatron_memory_estimator "$@"'),
    ):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    shutil.copy(ROOT / "tests" / "launch_scripts" / "llama8b_04_defaults_arithmetic.sh", tmp_path / "run.sh")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bash(*words: str, **env: str) -> tuple[int, str]:
    found = subprocess.run(["bash", *words], capture_output=True, text=True, env={**os.environ, **env}, check=False)
    return found.returncode, found.stdout + found.stderr


def test_a_job_queues_only_if_it_fits(programs: Path) -> None:
    script = str(ROOT / "examples" / "sbatch_if_it_fits.sh")
    code, said = bash(script, "run.sh", "--nodes", "2", GPU="H200")
    assert code == 0 and said.startswith("Trains on 16 H200-141GB, at least ") and "queued: --nodes 2 run.sh" in said
    code, said = bash(script, "run.sh", GPU="RTX-4090")
    assert code == DOES_NOT_FIT and said.endswith("not queued: run.sh\n")
    code, said = bash(script, "run.sh", GPU="A100-40GB")
    assert code == UNSURE and said.endswith("not queued: run.sh\n")
    code, said = bash(script, "run.sh", GPU="A100-40GB", TIGHT="1")
    assert code == 0 and "\nqueued: run.sh\n" in said
    code, said = bash(script, "no_such.sh", TIGHT="1")
    assert code == 2 and "not queued: no_such.sh" in said


def test_a_pull_request_may_not_take_more(programs: Path) -> None:
    """The steps of the workflow, one after the other in a repository with a branch main: also where a file that the run sources changes."""
    workflow: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "github_action.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    run, sizes = programs / "run.sh", programs / "sizes.sh"
    text = run.read_text()
    run.write_text(text.replace("set -euo pipefail\n", "set -euo pipefail\nsource sizes.sh\n", 1))
    sizes.write_text("MBS=1\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "run.sh", "sizes.sh"],
        ["commit", "-qm", "run"],
        ["branch", "-q", "origin/main"],
    ):
        subprocess.run([*git, *words], check=True)
    env = {**workflow["env"], "GPU": "H200", "GITHUB_BASE_REF": "main"}

    def ran(**more: str) -> tuple[int, str]:
        subprocess.run(["git", "worktree", "remove", "--force", "../main"], check=False, capture_output=True)
        (programs / "baseline.json").unlink(missing_ok=True)
        for step in steps:
            code, said = bash("-e", "-c", step, **{**env, **more})
            if code:
                break
        return code, said

    assert ran()[0] == 0
    sizes.write_text("MBS=2\n")
    code, said = ran()
    assert code == TAKES_MORE and "above the baseline's" in said
    (programs / "new.sh").write_text(run.read_text())
    assert ran(RUN="new.sh")[0] == 0, "a run that main does not have"
    shutil.copy(programs / "new.sh", run)
    subprocess.run([*git, "checkout", "-q", "--detach"], check=True)
    (programs / "new.sh").write_text("python pretrain_gpt.py --no-such-argument 1\n")
    for words in (["add", "new.sh"], ["commit", "-qm", "broken"], ["branch", "-f", "origin/main"]):
        subprocess.run([*git, *words], check=True)
    (programs / "new.sh").write_text(run.read_text())
    assert ran(RUN="new.sh")[0] == 0, "a run that is refused in main"


def test_a_file_that_is_not_read_makes_nothing_sure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Sizes with defaults may come from it: what it sets could be anything."""
    script = tmp_path / "run.sh"
    arguments = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --vocab-size 1000 "
        "--bf16 --tokenizer-type NullTokenizer"
    )
    script.write_text(
        f"source /no/such/cluster.sh\nREC=()\ntorchrun --nproc-per-node 8 pretrain_gpt.py {arguments} "
        '--micro-batch-size ${MBS:-1} "${REC[@]}"\n'
    )
    with pytest.raises(SystemExit) as stop:
        main(["check", str(script)])
    out, err = capsys.readouterr()
    assert stop.value.code == UNSURE and "'/no/such/cluster.sh' is sourced and not read" in out
    assert "warning: line 1: source /no/such/cluster.sh is not followed" in err
    script.write_text(script.read_text().replace("source /no/such/cluster.sh\n", ""))
    assert checked(capsys, str(script))[0] == FITS


def test_memory_that_a_run_may_take_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(capsys, *DENSE)[0] == FITS
    assert checked(capsys, *DENSE, "--head-room", "36%")[0] == UNSURE
    code, said = checked(capsys, *DENSE, "--max-memory", "20")
    assert code == DOES_NOT_FIT and "of 20.0 GiB" in said
    assert checked(capsys, *DENSE, "--head-room", "x")[0] == 2
