"""Run files of other frameworks where users hand them over: the command, Python, MCP's texts; which files are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import EstimatorError, TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import QuestionsError
from megatron_memory_estimator.inputs.hf.load import load_named
from megatron_memory_estimator.inputs.runs.files import job_from_text

from .helpers import ROOT

VERL = ROOT / "examples" / "verl_grpo.sh"
CHAIN = "policy: {megatron_cfg: {enabled: true, tensor_model_parallel_size: 2}}\ndefaults: base.yaml\n"
BASE = """policy:
  model_name: Qwen/Qwen3-8B
  max_total_sequence_length: 2048
  train_micro_batch_size: 1
  train_global_batch_size: 64
  sequence_packing: {enabled: false}
  megatron_cfg: {enabled: true}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def test_the_same_job_of_a_file_and_of_its_text() -> None:
    of_file = TrainingJob.from_file(VERL)
    of_text = job_from_text(VERL.read_text(), None, {}, load_named)
    assert (of_file.model, of_file.layout, of_file.training, of_file.rollout) == (
        of_text.model, of_text.layout, of_text.training, of_text.rollout
    )  # fmt: skip
    assert any("run of verl" in said for said in of_file.assumptions)


def test_a_variable_of_the_caller_wins() -> None:
    assert TrainingJob.from_file(VERL, set_variables={"SHARE": "0.3"}).rollout.rollout_memory_share == 0.3
    assert TrainingJob.from_file(VERL).rollout.rollout_memory_share == 0.6
    assert TrainingJob.from_file(VERL, rollout_memory_share=0.4).rollout.rollout_memory_share == 0.4


def test_the_command_says_whose_run_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main(["estimate", str(VERL), "--assumptions"])
    assert "assumed: read as a run of verl (docs/reference/dialects/verl.md)" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["estimate", str(VERL), "--", "--micro-batch-size", "2"])
    assert ended.value.code == 2 and "is a run of verl" in capsys.readouterr().err


def test_files_are_opened_beside_a_file_and_never_beside_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "run.yaml").write_text(CHAIN)
    found = TrainingJob.from_file(tmp_path / "run.yaml")
    assert (found.name, found.layout.tp) == ("Qwen/Qwen3-8B", 2)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EstimatorError, match=r"base\.yaml"):
        job_from_text(CHAIN, None, {}, load_named)


def test_the_model_of_a_file_that_names_none(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("NPROC_PER_NODE=8 megatron sft --model $MODEL --max_length 2048 --tensor_model_parallel_size 2\n")
    with pytest.raises(QuestionsError) as asked:
        TrainingJob.from_file(script)
    assert "--model" in str(asked.value) or "--set MODEL" in str(asked.value)
    given = TrainingJob.from_file(script, run_model="Qwen/Qwen3-8B")
    assert given.name == "Qwen/Qwen3-8B" and estimate(given).stages
    assert TrainingJob.from_file(script, set_variables={"MODEL": "Qwen/Qwen3-8B"}).layout == given.layout
