"""Words of a script's caller that decide a branch: asked for with their values, never taken as empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_memory_estimator import TrainingJob, estimate
from megatron_memory_estimator.cli import main
from megatron_memory_estimator.errors import QuestionsError

LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000"
)
FOUR_LINES = f"""DTYPE=$1
if [ "$DTYPE" = bf16 ]; then P=--bf16; else P=; fi
if [ "$2" = true ]; then D=--use-distributed-optimizer; fi
{LAUNCH} $P $D
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "w.sh"
    path.write_text(text)
    return path


def read(folder: Path, text: str, **given: str) -> TrainingJob:
    return TrainingJob.from_file(
        written(folder, text), set_variables={k.removeprefix("_"): v for k, v in given.items()}
    )


def test_four_lines_are_asked_for_their_two_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were answered at once: fp32, a replicated optimizer, 27.3 GiB for 8.9."""
    with pytest.raises(SystemExit) as stop:
        main(["estimate", str(written(tmp_path, FOUR_LINES))])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "error: 2 things must be settled: word 1 (DTYPE) of the script's caller decides the run: bf16; word 2 of the script's caller "
        "decides the "
        "run: true. Give: --set 1=bf16 --set 2=true\n"
    )
    job = read(tmp_path, FOUR_LINES, _1="bf16", _2="true")
    assert (job.training.params_dtype, job.training.use_distributed_optimizer) == ("bf16", True)
    assert estimate(job).stages[0].peak_allocated_bytes / 2**30 == pytest.approx(8.9, abs=0.1)
    empty = read(tmp_path, FOUR_LINES, _1="", _2="")
    assert (empty.training.params_dtype, empty.training.use_distributed_optimizer) == ("fp32", False)


@pytest.mark.parametrize(
    "condition",
    [
        "if [ $1 = 8B ]; then L=--bf16; fi",
        'if [[ $1 == "8B" ]]; then L=--bf16; fi',
        'if [ 8B = "$1" ]; then L=--bf16; fi',
        'if test "$1" != 8B; then L=; else L=--bf16; fi',
        "case $1 in 8B|70B) L=--bf16 ;; esac",
        'SIZE=$1; case "${SIZE}" in 70B) L= ;; 8B) L=--bf16 ;; esac',
        'f() { if [ "$X" = 8B ]; then L=--bf16; fi; }; X=$1; f',
        '[ "$1" = 8B ] && L=--bf16',
        'if [ "$1" = 8B ] && [ -n "$1" ]; then L=--bf16; fi',
        'if [ "$1" -gt 7 ]; then L=--bf16; fi',
    ],
)
def test_every_condition_on_a_word_is_a_question(condition: str, tmp_path: Path) -> None:
    with pytest.raises(QuestionsError, match=r"word 1( \(SIZE\))? of the script's caller decides the run: .*--set 1="):
        read(tmp_path, f"{condition}\n{LAUNCH} $L\n")


def test_a_word_behind_a_word_is_asked_for_too(tmp_path: Path) -> None:
    text = f'if [ "$1" = train ]; then if [ "$2" = bf16 ]; then L=--bf16; fi; fi\n{LAUNCH} $L\n'
    with pytest.raises(QuestionsError, match=r"word 1 .*: train; word 2 .*: bf16\. Give: --set 1=train --set 2=bf16"):
        read(tmp_path, text)


def test_words_come_instead_of_what_follows_from_them(tmp_path: Path) -> None:
    text = f"""SIZE=$2
if [ $SIZE = 8B ]; then LAYERS=32; elif [ $SIZE = 70B ]; then LAYERS=80; fi
{LAUNCH.replace("--num-layers 16", "--num-layers $LAYERS").replace("--micro-batch-size 1", "--micro-batch-size $3")}
"""
    with pytest.raises(QuestionsError) as caught:
        read(tmp_path, text)
    assert [one.option for one in caught.value.questions] == ["--set 2=8B", "--set 3=VALUE"]
    assert "8B or 70B" in str(caught.value) and "LAYERS" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        'if [ "$1" = debug ]; then set -x; fi',
        'if [ "$1" = debug ]; then L="--log-interval 1 --seed 7"; fi',
        'if [ -z "$1" ]; then OUT=/tmp; else OUT=$1; fi; L="--save $OUT"',
        'P=${1:-bf16}; if [ "$P" = bf16 ]; then L=--bf16; fi',
        "case $1 in *) L=--bf16 ;; esac",
    ],
)
def test_a_word_that_changes_no_byte_is_not_asked_for(line: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"{line}\n{LAUNCH} $L\n").model.num_layers == 16


def test_a_variable_of_the_environment_is_empty_and_said_to_be(tmp_path: Path) -> None:
    job = read(tmp_path, f'if [ "$USE_BF16" = 1 ]; then L=--bf16; fi\n{LAUNCH} $L\n')
    assert job.training.params_dtype == "fp32"
    assert "$USE_BF16 is set nowhere and taken as empty; 1 changes the run" in job.warnings


def test_the_text_of_a_script_is_asked_the_same() -> None:
    from megatron_memory_estimator.service.answers import answered

    request = {"tool": "estimate", "arguments": {"text": FOUR_LINES}, "folder": None, "seconds": 60}
    assert "word 1 (DTYPE) of the script's caller decides the run: bf16" in str(answered(request))


def test_a_word_that_is_compared_as_a_number_is_asked_for_as_one_with_its_variable(tmp_path: Path) -> None:
    text = (
        f"TP=$1\nL=\nif [ $TP -gt 1 ]; then L=--sequence-parallel; fi\n{LAUNCH} --tensor-model-parallel-size $TP $L\n"
    )
    with pytest.raises(QuestionsError, match=r"word 1 \(TP\) .* a number, above, at or below 1; give --set 1=N"):
        read(tmp_path, text)
