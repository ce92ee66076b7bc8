"""One cause, one question: what a script's launch waits for is asked for by the variable or the word that decides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import TrainingJob
from megatron_memory_estimator.errors import ConfigError, QuestionsError

LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 2048 --bf16 "
    "--max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --save out/$1$SLURM_ARRAY_TASK_ID"
)


def read(folder: Path, script: str, **given: str) -> TrainingJob:
    (folder / "run.sh").write_text(script)
    return (
        TrainingJob.from_file(folder / "run.sh", set_variables=given)
        if given
        else TrainingJob.from_file(folder / "run.sh")
    )


def asked(folder: Path, script: str) -> dict[str, str]:
    """What is asked, by the option that answers it."""
    with pytest.raises(QuestionsError) as error:
        read(folder, script)
    return {one.option: one.what for one in error.value.questions}


def test_one_variable_that_decides_three_things_is_one_question(tmp_path: Path) -> None:
    script = f"""DEVICE=${{DEVICE:-$(python3 -c 'import torch_npu' && echo npu || echo gpu)}}
case "$DEVICE" in
  npu) TP=1; LENGTH=4096; MORE=--recompute-activations ;;
  gpu) TP=2; LENGTH=2048 ;;
esac
{LAUNCH} --tensor-model-parallel-size $TP --seq-length $LENGTH $MORE"""
    (found,) = asked(tmp_path, script).items()
    assert found[0] == "--set DEVICE=npu"
    assert found[1] == (
        "DEVICE is not known, and decides --tensor-model-parallel-size, --seq-length and --recompute-activations; "
        "the script compares it with npu or gpu"
    )
    assert read(tmp_path, script, DEVICE="gpu").layout.tp == 2


def test_a_script_that_stops_asks_for_all_that_lets_it_pass(tmp_path: Path) -> None:
    script = f"""if [ -z "$DATA" ]; then echo "DATA must be set"; exit 1; fi
[[ $MODE == train || $MODE == debug ]] || {{ echo "usage: MODE=train"; exit 2; }}
{LAUNCH} --data-path $DATA"""
    found = asked(tmp_path, script)
    assert list(found) == ["--set DATA=x", "--set MODE=train"]
    assert found["--set DATA=x"] == "the script stops at line 1, before it starts a training: DATA must be set"
    assert found["--set MODE=train"].endswith("usage: MODE=train; MODE may be train or debug")
    assert read(tmp_path, script, DATA="x", MODE="train").layout.world_size == 8


def test_a_word_without_which_a_script_stops_is_asked_for_with_its_values(tmp_path: Path) -> None:
    script = f"""case "${{1:-}}" in
  small) L=2 ;;
  large) L=4 ;;
  *) echo "usage: run.sh small|large"; exit 1 ;;
esac
{LAUNCH} --num-layers $L"""
    assert asked(tmp_path, script) == {
        "--set 1=small": "the script stops at line 4, before it starts a training: usage: run.sh small|large; word 1 may be small or large"
    }


def test_a_script_that_no_value_lets_pass_says_where_it_stops(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stops at line 2, before it starts a training") as error:
        read(tmp_path, f"mytrainer $1 | tee log\nexit ${{PIPESTATUS[0]}}\n{LAUNCH}")
    assert not isinstance(error.value, QuestionsError)


def test_tasks_of_an_array_that_differ_are_asked_for_and_others_are_one_run(tmp_path: Path) -> None:
    header = "#!/bin/bash\n#SBATCH --array=1-5:2%1\n"
    lengths = "LENGTHS=(0 1024 0 2048 0 4096)\n"
    script = f"{header}{lengths}{LAUNCH} --seq-length ${{LENGTHS[$SLURM_ARRAY_TASK_ID]}}"
    assert asked(tmp_path, script) == {
        "--set SLURM_ARRAY_TASK_ID=1": "each task of the array of jobs is a run of its own: SLURM_ARRAY_TASK_ID is 1, 3 or 5"
    }
    assert read(tmp_path, script, SLURM_ARRAY_TASK_ID="5").training.seq_length == 4096
    assert read(tmp_path, f"{header}{lengths}{LAUNCH}").training.seq_length == 2048


def test_what_a_command_makes_of_an_unset_variable_stays_unknown_and_a_port_is_not_asked_for(tmp_path: Path) -> None:
    port = "JOB=$(echo $PBS_JOBID | cut -d. -f1)\nexport MASTER_PORT=$((10000 + ($JOB % 50000)))\n"
    assert read(tmp_path, port + LAUNCH).layout.world_size == 8
    with pytest.raises(QuestionsError, match="JOB"):
        read(tmp_path, f"{port}{LAUNCH} --num-layers $((4 + $JOB))")


def test_a_repository_is_the_script_s_own_folder(tmp_path: Path) -> None:
    """`source ../../scripts/models/X.sh`: files below the folder that holds `.git` are opened; without it they are asked for."""
    (tmp_path / "examples/math").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/sizes.sh").write_text("TP=2\n")
    script = f'source "$(dirname "$0")/../../scripts/sizes.sh"\n{LAUNCH} --tensor-model-parallel-size $TP'
    with pytest.raises(QuestionsError, match="--follow"):
        read(tmp_path / "examples/math", script)
    (tmp_path / ".git").mkdir()
    assert read(tmp_path / "examples/math", script).layout.tp == 2


def test_a_tokenizer_of_a_catalogued_model_has_at_most_its_config_s_rows(tmp_path: Path) -> None:
    words = LAUNCH.replace(
        "--vocab-size 32000", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model zai-org/GLM-4.5-Air"
    )
    found = read(tmp_path, words)
    assert found.model.vocab_size == 151552
    assert any("config of zai-org/GLM-4.5-Air is taken" in said for said in found.warnings)
