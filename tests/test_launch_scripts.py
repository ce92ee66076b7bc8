"""Launch scripts in the styles that users write, read to the same job as the YAML of their arguments."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from megatron_memory_estimator import ConfigError, TrainingJob
from megatron_memory_estimator.inputs.megatron.words import parse_words
from megatron_memory_estimator.inputs.shell.script import Launch, read_script
from megatron_memory_estimator.inputs.shell.values import Value

from .helpers import ROOT

SCRIPTS = sorted((ROOT / "tests" / "launch_scripts").glob("*.sh"))


def plain(job: TrainingJob) -> TrainingJob:
    """The job without where it was read from."""
    return dataclasses.replace(job, name="", source="", assumptions=(), warnings=())


def test_there_are_twelve_styles() -> None:
    assert len(SCRIPTS) >= 12


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.stem))
def test_a_script_is_the_job_of_its_yaml(script: Path) -> None:
    yaml = script.with_name(script.stem.split("_")[0] + ".yaml")
    found = TrainingJob.from_megatron_args(script)
    assert found.layout.world_size == 16
    assert plain(found) == plain(TrainingJob.from_megatron_args(str(yaml), 16))


def launch(text: str, **given: str) -> Launch:
    return read_script(text, given)


def words(text: str, **given: str) -> list[Value]:
    return launch(text + "\npython pretrain_gpt.py $A", **given).words


EXPANSIONS = [
    ("A=$((2 * (3 + 4) % 5 - -1))", ["5"]),
    ("X=3; A=${X:+--set-$X}", ["--set-3"]),
    ("A=${X:+--no}", []),
    ("A=${X-left}${Y:-right}", ["leftright"]),
    ("A='$X'", ["$X"]),
    ('A="a  b"; A="$A c"', ["a", "b", "c"]),
    ("A=a\\ b", ["a", "b"]),
    ('B=(1 2); B+=(3); A="${B[@]}"', ["1", "2", "3"]),
    ("if [ 2 -gt 1 ] && [ a != b ]; then A=yes; else A=no; fi", ["yes"]),
    ("if [[ -n $X || 1 == 1 ]]; then A=yes; fi", ["yes"]),
    ("if ! [ 1 = 1 ]; then A=yes; else\n if [ 1 = 1 ]; then A=inner; fi\nfi", ["inner"]),
    ("case x.y in a) A=1;; x*|z) A=2;; *) A=3;; esac", ["2"]),
    ("f() { A=never; }\nA=kept", ["kept"]),
    ("A=a # comment", ["a"]),
    ("for i in 1 2; do A=$i; done; A=after", ["after"]),
]


@pytest.mark.parametrize(("text", "expected"), EXPANSIONS)
def test_expansions(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_quoted_arrays_keep_their_words() -> None:
    text = 'A=(\'a b\' c)\npython pretrain_gpt.py "${A[@]}" "${B[@]:-}" ${A[@]}'
    assert launch(text).words[:2] == ["a b", "c"]


def test_the_caller_sets_variables() -> None:
    assert words("TP=${TP:-2}; A=$TP", TP="8") == ["8"]
    assert words("TP=2; A=$TP", TP="8") == ["8"]


LAUNCHERS = [
    ("torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py", 32),
    ("torchrun --nproc-per-node=8 --nnodes=2:4 pretrain_gpt.py", None),
    ("torchrun --nproc_per_node gpu pretrain_gpt.py", None),
    ("srun -N 4 --ntasks-per-node=8 python pretrain_gpt.py", 32),
    ("srun -N4 --gres=gpu:h100:8 python pretrain_gpt.py", 32),
    ("srun -n 16 python pretrain_gpt.py", 16),
    ("mpirun -np 24 python pretrain_gpt.py", 24),
    ("srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py", 16),
    ("#SBATCH --nodes=3\n#SBATCH --gpus-per-node=8\nsrun python pretrain_gpt.py", 24),
    ("export WORLD_SIZE=$((4*8))\npython pretrain_gpt.py", 32),
    ("python pretrain_gpt.py", None),
]


@pytest.mark.parametrize(("text", "gpus"), LAUNCHERS)
def test_launchers(text: str, gpus: int | None) -> None:
    assert launch(text).num_gpus == gpus


WRONG_SCRIPTS = [
    ("echo hello", "starts no training script"),
    ("A=('x", "single quote that does not end"),
    ("A=(x", "array A that does not end"),
    ("if true; then", "has a if that does not end"),
    ("A=$((1 +))\npython pretrain_gpt.py $A", "cannot be worked out"),
    ("A=$((1/0))\npython pretrain_gpt.py $A", "cannot be worked out"),
    ("cat <<EOF\nx", "here-document that EOF does not end"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG_SCRIPTS)
def test_scripts_that_cannot_be_read(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        launch(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize("entry", ["pretrain_vlm.py", "pretrain_bert.py", "dir/pretrain_t5.py", "train_rl.py"])
def test_programs_that_train_other_models(entry: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 {entry} --num-layers 2")
    with pytest.raises(ConfigError, match="trains another kind of model than a decoder"):
        TrainingJob.from_megatron_args(script)


def test_an_unset_variable_matters_only_where_memory_depends_on_it(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    base = "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64"
    base += " --max-position-embeddings 64 --micro-batch-size 1 --vocab-size 1000 --bf16 --save $1/$(date)"
    script.write_text(base)
    assert TrainingJob.from_megatron_args(script, 1).model.num_layers == 2
    script.write_text(base + " --tensor-model-parallel-size $TP")
    with pytest.raises(ConfigError, match=r"takes its value from \$TP, which has none; give --set TP=VALUE"):
        TrainingJob.from_megatron_args(script, 1)
    assert TrainingJob.from_megatron_args(script, 2, set_variables={"TP": "2"}).layout.tp == 2


def test_words() -> None:
    found = parse_words(
        ["--num-layers", "2", "--no-rope-fusion", "--num-layers=4", "--recompute-modules", "mlp", "moe", "--swiglu"]
    )
    assert found.values == {
        "num_layers": 4,
        "apply_rope_fusion": False,
        "recompute_modules": ["mlp", "moe"],
        "swiglu": True,
    }
    assert not found.others.unknown and not found.questions()


WRONG_WORDS = [
    (
        "--num-layer 2",
        "unknown Megatron argument --num-layer (did you mean --num-layers?): correct the spelling",
    ),
    ("--num-layers", "--num-layers needs a value"),
    ("--num-layers two", "--num-layers='two' must be a whole number"),
    ("--num-layers 2 3", "takes one value, but '3' follows it"),
    ("--swiglu yes", "takes no value, but 'yes' follows it"),
    ("word --swiglu", "stands before the first Megatron argument"),
    ("--hidden-dropout some", "--hidden-dropout='some' must be a number"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG_WORDS)
def test_words_that_megatron_refuses(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_words(text.split()).settled()
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("#SBATCH --nodes=0\n#SBATCH --ntasks-per-node=8", "--nodes=0"),
        ("#SBATCH --nodes=+2\n#SBATCH --ntasks-per-node=8", "--nodes=+2"),
        ("#SBATCH --nodes=$N\n#SBATCH --ntasks-per-node=8", "--nodes=$N"),
        ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=two", "--gpus-per-node=two"),
        ("#SBATCH --nodes=2\n#SBATCH --gres=gpu:1_0", "--gres=gpu:1_0"),
    ],
)
def test_a_count_that_is_none_is_asked_for(header: str, said: str) -> None:
    """It is not called "not given"."""
    launch = read_script(f"#!/bin/bash\n{header}\nsrun python pretrain_gpt.py --num-layers 2")
    assert launch.num_gpus is None
    assert launch.gpus_unknown.replace("'", "") == f"{said} is no count; give --num-gpus N"
